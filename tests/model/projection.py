"""The rows that the reference model expects.

Columns that the model omits must still be equal in SQLite and PostgreSQL.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any
from uuid import UUID

from flowfabric.engine import StoredSignal, condition_to_json
from tests.model.records import EventRow, Execution
from tests.model.stores import Row, Rows, to_microseconds
from tests.model.wait_records import RingKey, Slot, Wait
from tests.model.world import World

KEYS = {
    "execution": ("id",), "attempt": ("execution_id", "attempt_index"), "step": ("execution_id", "seq"),
    "event": ("execution_id", "version"), "submission_key": ("namespace", "key"), "reclaim_grant": ("id",),
    "lane": ("namespace", "name"), "suspension": ("execution_id", "number"), "waitpoint": ("id",),
    "signal": ("execution_id", "seq"), "signing_key": ("kid",),
}  # fmt: skip


def expected_rows(world: World) -> Rows:
    """Return every expected row with the columns that the model covers."""
    living = list(world.executions.values())
    histories = [(execution.id, execution.events) for execution in living] + list(world.gone.items())
    rows: dict[str, list[dict[str, Any]]] = {
        "execution": [_execution(execution) for execution in living],
        "attempt": [row for execution in living for row in _attempts(execution)],
        "step": [row for execution in living for row in _steps(execution)],
        "event": [_event(id_, event) for id_, events in histories for event in events],
        "submission_key": [
            {
                "namespace": namespace,
                "key": key,
                "execution_id": remembered.execution_id,
                "expires_at": remembered.expires_at,
                "drop_at": remembered.drop_at,
            }
            for (namespace, key), remembered in world.keys.items()
        ],
        "reclaim_grant": [
            {"id": grant.id, "execution_id": grant.execution_id, "worker": grant.worker.name}
            | {"granted_at": grant.granted_at, "expires_at": grant.expires_at, "consumed_by": grant.consumed_by}
            for grant in world.grants.values()
        ],
        "lane": [
            {"namespace": namespace, "name": name, "state": state} for (namespace, name), state in world.lanes.items()
        ],
        "suspension": [_suspension(execution, wait) for execution in living for wait in execution.waits],
        "waitpoint": [_waitpoint(execution, slot) for execution in living for slot in execution.slots],
        "signal": [_signal(signal) for execution in living for signal in execution.signals],
        "signing_key": [_key(key) for key in world.ring.keys],
    }
    return {table: [_to_stored_row(row) for row in table_rows] for table, table_rows in rows.items()}


def differences(expected: Rows, stored: Rows) -> list[str]:
    """Describe where stored rows differ from the expected rows.

    Compare only the columns that the expected rows have.
    """
    problems = []
    expected, stored = (rows | {"step": _number_steps(rows["step"])} for rows in (expected, stored))
    for table, names in KEYS.items():
        expected_by_key, stored_by_key = (
            {tuple(row[name] for name in names): row for row in rows[table] if row[names[0]] is not None}
            for rows in (expected, stored)
        )
        problems += [f"{table} {key} is missing" for key in expected_by_key.keys() - stored_by_key.keys()]
        problems += [f"{table} {key} should not be there" for key in stored_by_key.keys() - expected_by_key.keys()]
        for key in expected_by_key.keys() & stored_by_key.keys():
            for name, value in expected_by_key[key].items():
                if stored_by_key[key][name] != value:
                    problems.append(f"{table} {key}: {name} is {stored_by_key[key][name]!r}, the model has {value!r}")
    return sorted(problems)


def lane_events(stored: Rows) -> list[tuple[str, str, str]]:
    """Return the events that belong to no execution."""
    return sorted((row["namespace"], row["lane"], row["name"]) for row in stored["event"] if row["version"] is None)


def _execution(execution: Execution) -> Row:
    lease, former = execution.lease, execution.former
    return {
        "id": execution.id,
        "namespace": execution.namespace,
        "lane": execution.lane,
        "kind": execution.kind,
        "priority": execution.priority,
        "payload": execution.payload,
        "tags": execution.tags,
        "state": execution.state,
        "blocking_reason": execution.blocking_reason,
        "attempt_state": execution.attempt_state,
        "ownership": execution.ownership,
        "epoch": execution.epoch,
        "version": execution.version,
        "generation": execution.generation,
        "plain": int(execution.is_standalone),
        "created_at": execution.created_at,
        "started_at": execution.started_at,
        "ended_at": execution.ended_at,
        "ready_at": execution.ready_at,
        "deadline_at": execution.deadline_at,
        "attempt_timeout_at": execution.attempt_timeout_at,
        "attempt_timeout_left_us": execution.time_left,
        "purge_at": execution.purge_at,
        "lease_id": lease.id if lease else None,
        "lease_instance": lease.worker.instance if lease else None,
        "lease_ttl_us": lease.ttl if lease else None,
        "lease_acquired_at": lease.acquired_at if lease else None,
        "lease_expires_at": lease.expires_at if lease else None,
        "lease_resumed": int(lease.resumed) if lease else None,
        "former_lease_id": former.fence.lease_id if former else None,
        "former_epoch": former.fence.epoch if former else None,
        "attempt_index": execution.attempt_index,
        "attempt_origin": execution.origin,
        "attempt_started_at": execution.attempt_started_at,
        "retry_count": execution.retries,
        "reclaim_count": execution.reclaims,
        "replay_count": execution.replays,
        "progress_percent": execution.percent,
        "progress_message": execution.message,
        "failure_category": execution.category,
        "cancelled_by": execution.cancelled_by,
        "cancel_reason": execution.cancel_reason,
        "hold_reason": execution.hold_reason,
        "signal_seq": len(execution.signals),
        "suspension_count": len(execution.waits),
        "resume_suspension_id": execution.resumption and execution.resumption.suspension_id,
        "resume_trigger": execution.resumption and execution.resumption.trigger,
    }


def _attempts(execution: Execution) -> list[Row]:
    return [
        {
            "execution_id": execution.id,
            "attempt_index": row.index,
            "generation": row.generation,
            "origin": row.origin,
            "started_at": row.started_at,
            "ended_at": row.ended_at,
            "outcome": row.outcome,
            "result": row.result,
            "failure_category": row.category,
        }
        for row in execution.attempts
    ]


def _steps(execution: Execution) -> list[Row]:
    return [
        {"execution_id": execution.id, "seq": index, "name": row.name, "status": row.status, "payload": row.payload}
        | {"generation": row.generation, "struck_by": row.struck_by}
        for index, row in enumerate(execution.steps)
    ]


def _number_steps(steps: list[Row]) -> list[Row]:
    """Number the steps of each execution, because stored sequence numbers may have gaps."""
    ordered = sorted(steps, key=lambda row: (row["execution_id"], row["seq"]))
    groups = groupby(ordered, key=lambda row: row["execution_id"])
    return [row | {"seq": index} for _, group in groups for index, row in enumerate(group)]


def _suspension(execution: Execution, wait: Wait) -> Row:
    return {
        "execution_id": execution.id,
        "number": wait.number,
        "id": wait.id,
        "generation": wait.generation,
        "epoch": wait.fence.epoch,
        "lease_id": wait.fence.lease_id,
        "key": wait.key,
        "condition": condition_to_json(wait.condition),
        "reason": wait.reason,
        "rest": wait.unused_waitpoints,
        "opened_at": wait.opened_at,
        "timeout_at": wait.timeout_at,
        "on_timeout": wait.on_timeout,
        "resume_delay_us": wait.resume_delay,
        "closed_at": wait.closed_at,
        "closed_by": wait.closed_by,
    }


def _waitpoint(execution: Execution, slot: Slot) -> Row:
    return {"execution_id": execution.id} | {field.name: getattr(slot, field.name) for field in fields(slot)}


def _signal(signal: StoredSignal) -> Row:
    return {field.name: getattr(signal, field.name) for field in fields(signal)} | {"counts": int(signal.counts)}


def _key(key: RingKey) -> Row:
    return {
        "kid": key.kid,
        "secret": "known" if key.collected_at is None else None,
        "created_at": key.created_at,
        "retired_at": key.retired_at,
        "verifies_until": key.verifies_until,
        "end_is_final": int(key.is_final),
        "collected_at": key.collected_at,
        "active": 1 if key.retired_at is None else None,
    }


def _event(id_: UUID, event: EventRow) -> Row:
    return {
        "execution_id": id_,
        "version": event.version,
        "family": event.family,
        "name": event.name,
        "at": event.at,
        "state": event.state,
        "epoch": event.epoch,
        "generation": event.generation,
        "attempt_index": event.attempt_index,
        "lease_id": event.lease_id,
        "ends_lease": int(event.ends_lease),
        "principal": event.principal,
    }


def _to_stored_row(row: Row) -> Row:
    return {name: _to_stored_value(value) for name, value in row.items()}


def _to_stored_value(value: Any) -> Any:
    match value:
        case datetime():
            return to_microseconds(value)
        case timedelta():
            return value // timedelta(microseconds=1)
        case UUID() | str():
            return str(value)
        case _:
            return value
