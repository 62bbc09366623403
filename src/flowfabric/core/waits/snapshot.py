"""Snapshots of waits, which a worker reads without giving up its lease."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    sequence numbers of more signals to return. `limits` maps keys to numbers of signals to return, by default 100.
    """

    execution_id: UUID
    places: Mapping[str, int]
    children: Sequence[UUID]
    skipped: Sequence[int] = ()
    limits: Mapping[str, int] = field(default_factory=dict)


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
    """The requested signals in order of acceptance, and the outcomes of ended children.

    For each waitpoint, there are at most as many unused signals as requested. There are also the signals that the last
    suspension has observed there.

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


def parse_limits(value: object) -> dict[str, int]:
    """Return a validated mapping from keys of waitpoints to the numbers of signals that are requested."""
    if not isinstance(value, Mapping):
        raise validation.wrong_type("limits", "a mapping of keys to numbers", value)
    validation.integer(len(value), "number of limits", 0, validation.MAX_BATCH)
    return {
        validation.name(key, "key"): validation.integer(limit, "limit", 1, validation.MAX_BATCH)
        for key, limit in value.items()
    }
