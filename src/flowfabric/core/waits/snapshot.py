"""Snapshots of waits, which a worker reads without giving up its lease."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from flowfabric.core import validation
from flowfabric.core.executions.views import Outcome
from flowfabric.core.fast_dataclass import record
from flowfabric.core.waits.records import StoredSignal

MAX_SIGNALS = 100


@record(frozen=True, slots=True)
class WaitSnapshotRequest:
    """A worker's request for the signals of its waitpoints and the outcomes of its children.

    `places` maps the key of each waitpoint to the sequence number after which its signals are requested. `skipped` are
    sequence numbers of more signals to return.
    """

    execution_id: UUID
    places: Mapping[str, int]
    children: Sequence[UUID]
    skipped: Sequence[int] = ()


@record(frozen=True, slots=True)
class JournalRequest:
    """A request of a worker for at most `limit` recorded steps of the execution that it continues."""

    execution_id: UUID
    limit: int


@dataclass(frozen=True, slots=True)
class Override:
    """The record of a wait that an operator ended by `resume`."""

    by: str
    reason: str
    suspension_id: UUID
    at: datetime


@dataclass(frozen=True, slots=True)
class WaitSnapshot:
    """The requested signals in order of acceptance, at most 100 per waitpoint, and the outcomes of ended children.

    `now` is the store's time. `overridden` has the waits that an operator ended, by the key of the wait.
    """

    now: datetime
    signals: tuple[StoredSignal, ...]
    children: Mapping[UUID, Outcome]
    overridden: Mapping[str, Override]


def parse_places(value: object) -> dict[str, int]:
    """Return a validated mapping from keys of waitpoints to the sequence numbers after which signals are requested."""
    if not isinstance(value, Mapping):
        raise validation.wrong_type("waitpoints", "a mapping of keys to sequence numbers", value)
    validation.integer(len(value), "number of waitpoints", 0, validation.MAX_BATCH)
    return {
        validation.name(key, "key"): validation.integer(place, "sequence number of a signal", 0, validation.MAX_INTEGER)
        for key, place in value.items()
    }
