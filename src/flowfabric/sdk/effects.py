"""Verbs of the client inside tasks: in a step they are part of it and have a key that is equal in every try, in the
function of a task itself they are made steps."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from flowfabric.core.ids import derived_id
from flowfabric.sdk import units
from flowfabric.sdk.aliases import Durable, T

_PLAIN = str.maketrans("#[/", "___")


def is_in_task() -> bool:
    """True in the function of a task itself, where an effect must be recorded."""
    return units.in_step() is None and units.unit() is not None


def keyed(verb: str, key: str | None) -> str | None:
    """The key to send with: the caller's, in a step one that is equal in every try, otherwise none."""
    step = units.in_step()
    return step.idempotency_key(verb) if key is None and step is not None else key


def known_id(verb: str) -> UUID | None:
    """The id for something new that a step makes, equal in every try; None outside of steps."""
    step = units.in_step()
    return None if step is None else derived_id(step.run.lease.execution_id, step.idempotency_key(verb))


def as_step(name: str, fn: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> Durable[T]:
    """The verb as a step under this name."""
    from flowfabric.sdk.steps import step

    return step.options(name=name.translate(_PLAIN))(fn, *args)
