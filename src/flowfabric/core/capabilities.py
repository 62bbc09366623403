"""Matching what an execution requires with what a worker offers."""

from __future__ import annotations

from collections.abc import Iterable

from flowfabric.core.errors import Refused


def missing(required: Iterable[str], offered: Iterable[str]) -> tuple[str, ...]:
    """The required tokens that the worker does not offer, sorted; empty means that it may run the execution."""
    return tuple(sorted(set(required) - set(offered)))


def require(required: Iterable[str], offered: Iterable[str]) -> None:
    """Refuses with `capability_mismatch` unless everything required is offered."""
    lacking = missing(required, offered)
    if lacking:
        message = f"the worker does not offer {', '.join(lacking)}, which the execution requires"
        raise Refused("capability_mismatch", message, missing=lacking)
