"""The rows that the reference model expects to be stored. What it leaves out, the sides must still agree on."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any
from uuid import UUID

from flowfabric.engine import Signal, condition_to_json
from tests.model.records import EventRow, Execution
from tests.model.sides import Row, Rows, since_1970_us
from tests.model.waits import RingKey, Slot, Wait
from tests.model.world import World

KEYS = {
    "execution": ("id",), "attempt": ("execution_id", "attempt_index"), "step": ("execution_id", "seq"),
    "event": ("execution_id", "version"), "submission_key": ("namespace", "key"), "reclaim_grant": ("id",),
    "lane": ("namespace", "name"), "suspension": ("execution_id", "number"), "waitpoint": ("id",),
    "signal": ("execution_id", "seq"), "signing_key": ("kid",),
}  # fmt: skip


def expected_rows(world: World) -> Rows:
    """Every row that must be there, with the columns that the model speaks of."""
    living = list(world.executions.values())
    histories = [(item.id, item.events) for item in living] + list(world.gone.items())
    rows: dict[str, list[dict[str, Any]]] = {
        "execution": [_execution(item) for item in living],
        "attempt": [row for item in living for row in _attempts(item)],
        "step": [row for item in living for row in _steps(item)],
        "event": [_event(id_, event) for id_, events in histories for event in events],
        "submission_key": [
            {"namespace": namespace, "key": key, "execution_id": held.execution_id, "expires_at": held.expires_at}
            for (namespace, key), held in world.keys.items()
        ],
        "reclaim_grant": [
            {"id": item.id, "execution_id": item.execution_id, "worker": item.worker.name}
            | {"granted_at": item.granted_at, "expires_at": item.expires_at, "consumed_by": item.consumed_by}
            for item in world.grants.values()
        ],
        "lane": [
            {"namespace": namespace, "name": name, "state": state} for (namespace, name), state in world.lanes.items()
        ],
        "suspension": [_suspension(item, wait) for item in living for wait in item.waits],
        "waitpoint": [_waitpoint(item, slot) for item in living for slot in item.slots],
        "signal": [_signal(signal) for item in living for signal in item.signals],
        "signing_key": [_key(key) for key in world.ring.keys],
    }
    return {table: [_plain(row) for row in found] for table, found in rows.items()}


def differences(expected: Rows, stored: Rows) -> list[str]:
    """Where stored rows differ from the expected ones, in the columns that are expected."""
    found = []
    expected, stored = (rows | {"step": _ranked(rows["step"])} for rows in (expected, stored))
    for table, names in KEYS.items():
        wanted, present = (
            {tuple(row[name] for name in names): row for row in rows[table] if row[names[0]] is not None}
            for rows in (expected, stored)
        )
        found += [f"{table} {key} is missing" for key in wanted.keys() - present.keys()]
        found += [f"{table} {key} should not be there" for key in present.keys() - wanted.keys()]
        for key in wanted.keys() & present.keys():
            for name, value in wanted[key].items():
                if present[key][name] != value:
                    found.append(f"{table} {key}: {name} is {present[key][name]!r}, the model has {value!r}")
    return sorted(found)


def lane_events(stored: Rows) -> list[tuple[str, str, str]]:
    """The events that belong to no execution."""
    return sorted((row["namespace"], row["lane"], row["name"]) for row in stored["event"] if row["version"] is None)


def _execution(item: Execution) -> Row:
    lease, former = item.lease, item.former
    return {
        "id": item.id, "namespace": item.namespace, "lane": item.lane, "kind": item.kind, "priority": item.priority,
        "payload": item.payload, "tags": item.tags, "state": item.state, "blocking_reason": item.blocking_reason,
        "attempt_state": item.attempt_state, "ownership": item.ownership, "epoch": item.epoch,
        "version": item.version, "generation": item.generation, "plain": int(item.plain),
        "created_at": item.created_at, "started_at": item.started_at, "ended_at": item.ended_at,
        "ready_at": item.ready_at, "deadline_at": item.deadline_at, "attempt_timeout_at": item.attempt_timeout_at,
        "attempt_timeout_left_us": item.time_left, "purge_at": item.purge_at,
        "lease_id": lease.id if lease else None, "lease_instance": lease.worker.instance if lease else None,
        "lease_ttl_us": lease.ttl if lease else None, "lease_acquired_at": lease.acquired_at if lease else None,
        "lease_expires_at": lease.expires_at if lease else None,
        "lease_resumed": int(lease.resumed) if lease else None,
        "former_lease_id": former.fence.lease_id if former else None,
        "former_epoch": former.fence.epoch if former else None,
        "attempt_index": item.attempt_index, "attempt_origin": item.origin,
        "attempt_started_at": item.attempt_started_at, "retry_count": item.retries, "reclaim_count": item.reclaims,
        "replay_count": item.replays, "progress_percent": item.percent, "progress_message": item.message,
        "failure_category": item.category, "cancelled_by": item.cancelled_by, "cancel_reason": item.cancel_reason,
        "hold_reason": item.hold_reason, "signal_seq": len(item.signals), "suspension_count": len(item.waits),
        "resume_suspension_id": item.resumption and item.resumption.suspension_id,
        "resume_trigger": item.resumption and item.resumption.trigger,
    }  # fmt: skip


def _attempts(item: Execution) -> list[Row]:
    return [
        {
            "execution_id": item.id, "attempt_index": row.index, "generation": row.generation, "origin": row.origin,
            "started_at": row.started_at, "ended_at": row.ended_at, "outcome": row.outcome, "result": row.result,
            "failure_category": row.category,
        }
        for row in item.attempts
    ]  # fmt: skip


def _steps(item: Execution) -> list[Row]:
    return [
        {"execution_id": item.id, "seq": place, "name": row.name, "status": row.status, "payload": row.payload}
        | {"generation": row.generation, "struck_by": row.struck_by}
        for place, row in enumerate(item.steps)
    ]


def _ranked(steps: list[Row]) -> list[Row]:
    """Sequence numbers may have gaps; only their order means something."""
    ordered = sorted(steps, key=lambda row: (row["execution_id"], row["seq"]))
    groups = groupby(ordered, key=lambda row: row["execution_id"])
    return [row | {"seq": place} for _, group in groups for place, row in enumerate(group)]


def _suspension(item: Execution, wait: Wait) -> Row:
    return {
        "execution_id": item.id, "number": wait.number, "id": wait.id, "generation": wait.generation,
        "epoch": wait.fence.epoch, "lease_id": wait.fence.lease_id, "key": wait.key,
        "condition": condition_to_json(wait.condition), "reason": wait.reason, "rest": wait.rest,
        "opened_at": wait.opened_at, "timeout_at": wait.timeout_at, "on_timeout": wait.on_timeout,
        "resume_delay_us": wait.resume_delay, "closed_at": wait.closed_at, "closed_by": wait.closed_by,
    }  # fmt: skip


def _waitpoint(item: Execution, slot: Slot) -> Row:
    return {"execution_id": item.id} | {name.name: getattr(slot, name.name) for name in fields(slot)}


def _signal(signal: Signal) -> Row:
    return {item.name: getattr(signal, item.name) for item in fields(signal)} | {"counts": int(signal.counts)}


def _key(key: RingKey) -> Row:
    return {
        "kid": key.kid, "secret": "known" if key.collected_at is None else None, "created_at": key.created_at,
        "retired_at": key.retired_at, "verifies_until": key.verifies_until, "end_is_final": int(key.is_final),
        "collected_at": key.collected_at, "active": 1 if key.retired_at is None else None,
    }  # fmt: skip


def _event(id_: UUID, event: EventRow) -> Row:
    return {
        "execution_id": id_, "version": event.version, "family": event.family, "name": event.name, "at": event.at,
        "state": event.state, "epoch": event.epoch, "generation": event.generation,
        "attempt_index": event.attempt_index, "lease_id": event.lease_id, "ends_lease": int(event.ends_lease),
        "principal": event.principal,
    }  # fmt: skip


def _plain(row: Row) -> Row:
    return {name: _value(value) for name, value in row.items()}


def _value(value: Any) -> Any:
    match value:
        case datetime():
            return since_1970_us(value)
        case timedelta():
            return value // timedelta(microseconds=1)
        case UUID() | str():
            return str(value)
        case _:
            return value
