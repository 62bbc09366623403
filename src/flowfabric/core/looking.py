"""What a worker sees when it looks around without giving up its lease."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.frozen import record
from flowfabric.core.views import Outcome
from flowfabric.core.waits import Signal

MOST_SIGNALS = 100


@record(frozen=True, slots=True)
class Looking:
    """What a worker asks for: signals at the waitpoints with these keys behind those places, and ends of executions."""

    execution_id: UUID
    places: Mapping[str, int]
    children: Sequence[UUID]


@record(frozen=True, slots=True)
class Recalling:
    """What a worker asks for that goes on with somebody's work: the steps that answer, so many at most."""

    execution_id: UUID
    most: int


@dataclass(frozen=True, slots=True)
class Override:
    """An operator ended the wait by `resume`: who, why, when, and which suspension it was."""

    by: str
    reason: str
    suspension_id: UUID
    at: datetime


@dataclass(frozen=True, slots=True)
class Look:
    """The store's time; the signals that were asked for, in order of acceptance, the first hundred of each waitpoint;
    how those executions ended that have; and, by key, the waits that an operator ended."""

    now: datetime
    signals: tuple[Signal, ...]
    children: Mapping[UUID, Outcome]
    overridden: Mapping[str, Override]


def places(value: object) -> dict[str, int]:
    """Keys of waitpoints, each with the place after which its signals are wanted."""
    if not isinstance(value, Mapping):
        message = f"waitpoints must map keys to places, {type(value).__name__} does not"
        raise InvalidRequest("invalid_type", message, field="waitpoints")
    limits.whole(len(value), "number of waitpoints", 0, limits.BATCH)
    return {
        limits.name(key, "key"): limits.whole(place, "place of a signal", 0, limits.LARGEST)
        for key, place in value.items()
    }
