"""Which failures are tried again: all that may pass, or only those of certain categories and classes."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from flowfabric.core import limits
from flowfabric.core.attempts import ATTEMPT_TIMEOUT
from flowfabric.core.errors import InvalidRequest

Retryable: TypeAlias = str | type[Exception]


def checked(retry_on: object) -> tuple[Retryable, ...]:
    """Names of categories and classes of exceptions, and nothing else."""
    if isinstance(retry_on, str | bytes) or not isinstance(retry_on, Collection):
        message = "retry_on must be a collection of categories and classes of exceptions"
        raise InvalidRequest("invalid_type", message, field="retry_on")
    return tuple(_checked(item) for item in retry_on)


def _checked(item: object) -> Retryable:
    if isinstance(item, type) and issubclass(item, Exception):
        return item
    if isinstance(item, str):
        return limits.name(item, "retry_on")
    message = f"retry_on must hold categories and classes of exceptions, not {limits.shown(item)}"
    raise InvalidRequest("invalid_type", message, field="retry_on")


def categories(retry_on: Collection[Retryable]) -> tuple[str, ...]:
    """The same as the engine applies it, which knows categories only. An attempt that took too long is a timeout."""
    named = {item if isinstance(item, str) else item.__name__ for item in retry_on}
    if any(isinstance(item, type) and issubclass(TimeoutError, item) for item in retry_on):
        named.add(ATTEMPT_TIMEOUT)
    return tuple(sorted(named))


def retried_as(error: BaseException, category: str, retry_on: Collection[Retryable]) -> str | None:
    """The category by which a failure is tried again; None if it is not."""
    if not retry_on or category in retry_on:
        return category
    classes = (item for item in retry_on if isinstance(item, type))
    return next((kind.__name__ for kind in classes if isinstance(error, kind)), None)
