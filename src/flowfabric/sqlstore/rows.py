"""Rows to records and back. The backends hand over their own types for times and ids; both are taken here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any
from uuid import UUID

from flowfabric.core.frozen import made
from flowfabric.core.outcomes import Lease
from flowfabric.core.policy import Policy, optional_span, span
from flowfabric.core.records import (
    Attempt,
    AttemptOrigin,
    AttemptOutcome,
    CancelRequest,
    Event,
    Execution,
    Fence,
    FormerLease,
    Grant,
    HeldLease,
    RecordedStep,
    Resumption,
    WorkerId,
)  # fmt: skip
from flowfabric.core.states import AttemptState, BlockingReason, Ownership, State
from flowfabric.sqlstore.session import Row
from flowfabric.store.executions import NewExecution

# Rows are read by the thousand, and a look into a mapping costs a tenth of a call of the enumeration.
STATES = {item.value: item for item in State}
REASONS = {item.value: item for item in BlockingReason}
_ATTEMPT_STATES = {item.value: item for item in AttemptState}
_ORIGINS = {item.value: item for item in AttemptOrigin}
_ESCAPED = re.compile(rb"\\(?:([0-7]{3})|\\)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def when(value: Any) -> Any:
    """A time column: a datetime, its text, or microseconds since 1970."""
    if isinstance(value, int):
        return _EPOCH + timedelta(microseconds=value)
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def since_1970_us(value: datetime) -> int:
    """A time as microseconds since 1970."""
    return (value - _EPOCH) // _MICROSECOND


def identity(value: Any) -> Any:
    """An id column: a UUID, or its text."""
    return UUID(value) if isinstance(value, str) else value


def octets(value: Any) -> Any:
    """A column of bytes, or their text as PostgreSQL writes it into JSON: hexadecimal digits behind a mark, or whatever
    is not printable in octal, where the settings of the server, the role or the caller say `bytea_output = escape`."""
    if not isinstance(value, str):
        return value
    if value.startswith("\\x"):
        return bytes.fromhex(value[2:])
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 8)]) if found[1] else b"\\", value.encode())


def document(value: Any) -> Any:
    """What a JSON column stands for."""
    return json.loads(value) if isinstance(value, str) else value


def micros(value: timedelta | None) -> int | None:
    """A duration as it is stored."""
    return None if value is None else value // _MICROSECOND


@lru_cache(maxsize=1024)
def span_of(value: int) -> timedelta:
    """A duration column."""
    return timedelta(microseconds=value)


def picking(*names: str) -> Callable[[object], dict[str, object]]:
    """A function that takes these attributes of a record as parameters."""
    values = attrgetter(*names)
    return lambda record: dict(zip(names, values(record), strict=True))


def to_json(value: Mapping[str, Any] | None) -> str | None:
    """A JSON column, written the same way on every backend."""
    return None if value is None else json.dumps(value, sort_keys=True)


def tags(document: str) -> dict[str, str]:
    """The tags that a document holds; nearly all hold none."""
    return {} if document == "{}" else json.loads(document)


def execution(row: Row) -> Execution:
    """The execution that a row holds."""
    values = {
        "id": identity(row["id"]), "namespace": row["namespace"], "lane": row["lane"], "kind": row["kind"],
        "route_id": row["route_id"], "priority": row["priority"], "payload": row["payload"],
        "encoding": row["encoding"], "tags": tags(row["tags"]), "policy": _policy(row["policy"]),
        "idempotency_key": row["idempotency_key"], "fingerprint": row["fingerprint"],
        "state": STATES[row["state"]], "blocking_reason": REASONS[row["blocking_reason"]],
        "attempt_state": _ATTEMPT_STATES[row["attempt_state"]],
        "ownership": Ownership(row["ownership"]) if row["ownership"] else None,
        "epoch": row["epoch"], "version": row["version"], "generation": row["generation"], "plain": bool(row["plain"]),
        "created_at": when(row["created_at"]), "changed_at": when(row["changed_at"]),
        "started_at": when(row["started_at"]), "ended_at": when(row["ended_at"]),
        "ready_at": when(row["ready_at"]), "deadline_at": when(row["deadline_at"]),
        "attempt_timeout_at": when(row["attempt_timeout_at"]),
        "attempt_timeout_left": _duration(row["attempt_timeout_left_us"]), "purge_at": when(row["purge_at"]),
        "lease": _lease(row), "former": _former(row),
        "attempt_index": row["attempt_index"], "attempt_origin": _ORIGINS[row["attempt_origin"]],
        "attempt_started_at": when(row["attempt_started_at"]), "retry_count": row["retry_count"],
        "reclaim_count": row["reclaim_count"], "replay_count": row["replay_count"], "step_seq": row["step_seq"],
        "signal_seq": row["signal_seq"], "suspension_count": row["suspension_count"], "resumption": _resumption(row),
        "progress_percent": row["progress_percent"], "progress_message": row["progress_message"],
        "failure_message": row["failure_message"], "failure_category": row["failure_category"],
        "cancelled_by": row["cancelled_by"], "cancel_reason": row["cancel_reason"], "hold_reason": row["hold_reason"],
        "flow_id": identity(row["flow_id"]), "member_name": row["member_name"], "parent_id": identity(row["parent_id"]),
        "has_children": bool(row["has_children"]), "cancel_request": _cancel_request(row),
    }  # fmt: skip
    return made(Execution, values)


def lease(row: Row, namespace: str, worker: WorkerId) -> Lease:
    """The lease that a claim has just given to a worker."""
    return Lease(
        fence=Fence(identity(row["id"]), row["epoch"], identity(row["lease_id"])), namespace=namespace,
        lane=row["lane"], kind=row["kind"], priority=row["priority"], payload=row["payload"], encoding=row["encoding"],
        tags=tags(row["tags"]), worker=worker, origin="resumed" if row["lease_resumed"] else row["attempt_origin"],
        attempt_index=row["attempt_index"], generation=row["generation"], acquired_at=when(row["lease_acquired_at"]),
        expires_at=when(row["lease_expires_at"]), ttl=span_of(row["lease_ttl_us"]),
        deadline_at=when(row["deadline_at"]), attempt_timeout_at=when(row["attempt_timeout_at"]),
        plain=bool(row["plain"]), resumption=_resumption(row), cancel_due_at=when(row["cancel_due_at"]),
    )  # fmt: skip


_SAVED_AS_THEY_ARE = (
    "priority", "state", "blocking_reason", "attempt_state", "ownership", "epoch", "generation",
    "plain", "changed_at", "started_at", "ended_at", "ready_at", "deadline_at", "attempt_timeout_at", "purge_at",
    "attempt_index", "attempt_origin", "attempt_started_at", "retry_count", "reclaim_count", "replay_count", "step_seq",
    "progress_percent", "progress_message", "failure_message", "failure_category", "cancelled_by", "cancel_reason",
    "hold_reason", "signal_seq", "suspension_count", "has_children", "payload", "encoding",
)  # fmt: skip


def saved(before: Execution, after: Execution) -> dict[str, object]:
    """The parameters that write an execution over what it was before: what has changed, and what it is found by."""
    row: dict[str, object] = {
        "execution_id": after.id,
        "version": after.version,
        "old_epoch": before.epoch,
        "old_version": before.version,
        "old_state": before.state,
    }
    was, now = before.__dict__, after.__dict__
    row |= {name: now[name] for name in _SAVED_AS_THEY_ARE if now[name] is not was[name]}
    if after.attempt_timeout_left is not before.attempt_timeout_left:
        row["attempt_timeout_left_us"] = micros(after.attempt_timeout_left)
    if after.lease is not before.lease:
        row |= _lease_columns(after.lease)
    if after.former is not before.former:
        row |= _former_columns(after.former)
    if after.resumption is not before.resumption:
        row["resume_suspension_id"] = after.resumption and after.resumption.suspension_id
        row["resume_trigger"] = after.resumption and after.resumption.trigger
    if after.cancel_request is not before.cancel_request:
        row |= cancel_columns(after.cancel_request)
    return row


def _lease_columns(lease: HeldLease | None) -> dict[str, object]:
    return {
        "lease_id": lease and lease.id,
        "lease_worker": lease and lease.worker.name,
        "lease_instance": lease and lease.worker.instance,
        "lease_ttl_us": micros(lease.ttl) if lease else None,
        "lease_acquired_at": lease and lease.acquired_at,
        "lease_expires_at": lease and lease.expires_at,
        "lease_check_at": lease and lease.check_at,
        "lease_resumed": lease.resumed if lease else None,
    }


def _former_columns(former: FormerLease | None) -> dict[str, object]:
    return {
        "former_lease_id": former and former.id,
        "former_epoch": former.epoch if former else None,
        "former_worker": former and former.worker.name,
        "former_instance": former and former.worker.instance,
        "former_end": former and former.end,
        "former_digest": former and former.digest,
        "former_until": former and former.until,
    }


def inserted(item: NewExecution) -> dict[str, object]:
    """The parameters that insert a submission."""
    submission, policy = item.submission, item.submission.policy
    return {
        "id": item.id,
        "lane": submission.lane,
        "kind": submission.kind,
        "route_id": item.route_id,
        "priority": submission.priority,
        "payload": submission.payload,
        "encoding": submission.encoding,
        "tags": to_json(submission.tags) if submission.tags else "{}",
        "idempotency_key": submission.key,
        "plain": not submission.signals and item.flow_id is None,
        "flow_id": item.flow_id,
        "member_name": item.member_name,
        "parent_id": item.parent_id,
        "fingerprint": item.fingerprint or submission.fingerprint(item.namespace),
        "state": item.state,
        "blocking_reason": item.blocking_reason,
        "ready_at": item.ready_at,
        "deadline_at": submission.deadline,
        **_policy_columns(policy),
    }


def attempt(row: Row) -> Attempt:
    """The ended attempt that a row holds."""
    return Attempt(
        execution_id=identity(row["execution_id"]), attempt_index=row["attempt_index"], generation=row["generation"],
        origin=AttemptOrigin(row["origin"]), worker=_worker(row["worker"], row["instance"]),
        started_at=when(row["started_at"]), ended_at=when(row["ended_at"]), outcome=AttemptOutcome(row["outcome"]),
        result=row["result"], encoding=row["encoding"], failure_class=row["failure_class"],
        failure_category=row["failure_category"], failure_message=row["failure_message"],
        failure_detail=row["failure_detail"],
    )  # fmt: skip


_ATTEMPT = picking(
    "execution_id", "attempt_index", "generation", "origin", "started_at", "ended_at", "outcome", "result", "encoding",
    "failure_class", "failure_category", "failure_message", "failure_detail",
)  # fmt: skip


def attempt_parameters(item: Attempt) -> dict[str, object]:
    """The parameters that append an ended attempt."""
    return _ATTEMPT(item) | _worker_columns(item.worker)


def event(row: Row) -> Event:
    """The event that a row holds."""
    return Event(
        namespace=row["namespace"], family=row["family"], name=row["name"], at=when(row["at"]), lane=row["lane"],
        execution_id=identity(row["execution_id"]), version=row["version"], kind=row["kind"],
        state=State(row["state"]) if row["state"] else None, epoch=row["epoch"], generation=row["generation"],
        attempt_index=row["attempt_index"], lease_id=identity(row["lease_id"]),
        worker=_worker(row["worker"], row["instance"]), ends_lease=bool(row["ends_lease"]),
        tags=json.loads(row["tags"]) if row["tags"] else None, principal=row["principal"], reason=row["reason"],
        details=json.loads(row["details"]) if row["details"] else None, flow_id=identity(row["flow_id"]),
    )  # fmt: skip


_EVENT = picking(
    "namespace", "family", "name", "at", "lane", "execution_id", "version", "kind", "state", "epoch", "generation",
    "attempt_index", "lease_id", "ends_lease", "principal", "reason", "flow_id",
)  # fmt: skip


def event_parameters(item: Event) -> dict[str, object]:
    """The parameters that append an event."""
    documents = {"tags": to_json(item.tags), "details": to_json(item.details)}
    return _EVENT(item) | documents | _worker_columns(item.worker)


def step(row: Row) -> RecordedStep:
    """The step that a row holds."""
    return RecordedStep(
        seq=row["seq"], name=row["name"], status=row["status"], payload=row["payload"], encoding=row["encoding"],
        attempt_index=row["attempt_index"], generation=row["generation"], recorded_at=when(row["recorded_at"]),
    )  # fmt: skip


def grant(row: Row) -> Grant:
    """The grant that a row holds."""
    return Grant(
        id=identity(row["id"]), execution_id=identity(row["execution_id"]),
        worker=WorkerId(row["worker"], row["instance"]), granted_at=when(row["granted_at"]),
        expires_at=when(row["expires_at"]), consumed_by=identity(row["consumed_by"]),
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _policy_columns(policy: Policy) -> dict[str, object]:
    """The policy, and the parts of it that statements work with."""
    return {
        "policy": policy.to_text(),
        "lease_ttl_policy_us": micros(span(policy.lease_ttl)),
        "attempt_timeout_policy_us": micros(optional_span(policy.attempt_timeout)),
        "retention_policy_us": micros(span(policy.retention)),
        "deadline_us": micros(optional_span(policy.deadline)),
    }


@lru_cache(maxsize=1024)
def _policy(document: str) -> Policy:
    return Policy.from_json(json.loads(document))


def _duration(value: int | None) -> timedelta | None:
    return None if value is None else timedelta(microseconds=value)


def _worker(name: str | None, instance: str | None) -> WorkerId | None:
    return WorkerId(name, instance) if name is not None and instance is not None else None


def _worker_columns(worker: WorkerId | None) -> dict[str, object]:
    return {"worker": worker and worker.name, "instance": worker and worker.instance}


def _resumption(row: Row) -> Resumption | None:
    if row["resume_suspension_id"] is None:
        return None
    return Resumption(identity(row["resume_suspension_id"]), row["resume_trigger"])


def _cancel_request(row: Row) -> CancelRequest | None:
    if row["cancel_due_at"] is None:
        return None
    return CancelRequest(due_at=when(row["cancel_due_at"]), **json.loads(row["cancel_request"]))


def cancel_columns(wanted: CancelRequest | None) -> dict[str, object]:
    """A cancel request as it is stored."""
    if wanted is None:
        return {"cancel_due_at": None, "cancel_request": None}
    document = {"principal": wanted.principal, "source": wanted.source, "reason": wanted.reason}
    return {"cancel_due_at": wanted.due_at, "cancel_request": to_json(document)}


def _lease(row: Row) -> HeldLease | None:
    if row["lease_id"] is None:
        return None
    return HeldLease(
        id=identity(row["lease_id"]), worker=WorkerId(row["lease_worker"], row["lease_instance"]),
        ttl=timedelta(microseconds=row["lease_ttl_us"]), acquired_at=when(row["lease_acquired_at"]),
        expires_at=when(row["lease_expires_at"]), check_at=when(row["lease_check_at"]),
        resumed=bool(row["lease_resumed"]),
    )  # fmt: skip


def _former(row: Row) -> FormerLease | None:
    if row["former_lease_id"] is None:
        return None
    return FormerLease(
        id=identity(row["former_lease_id"]), epoch=row["former_epoch"],
        worker=WorkerId(row["former_worker"], row["former_instance"]), end=row["former_end"],
        digest=row["former_digest"], until=when(row["former_until"]),
    )  # fmt: skip
