"""Conversion of rows to records and back. Values may have the types of either backend."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any
from uuid import UUID

from flowfabric.core.executions.outcomes import Lease
from flowfabric.core.executions.records import (
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
)
from flowfabric.core.executions.states import AttemptState, BlockingReason, Ownership, State
from flowfabric.core.fast_dataclass import make
from flowfabric.core.policy import Policy, optional_span, span
from flowfabric.store.records import NewExecution
from flowfabric.store.session import Row

# A lookup in a mapping costs a tenth of a call of the enumeration, and rows are read by the thousand.
STATES = {item.value: item for item in State}
REASONS = {item.value: item for item in BlockingReason}
_ATTEMPT_STATES = {item.value: item for item in AttemptState}
_ORIGINS = {item.value: item for item in AttemptOrigin}
_ESCAPED = re.compile(rb"\\(?:([0-7]{3})|\\)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_datetime(value: Any) -> Any:
    """Return a time column as a datetime. It may be a datetime, text, or microseconds since 1970."""
    if isinstance(value, int):
        return _EPOCH + timedelta(microseconds=value)
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def to_epoch_us(value: datetime) -> int:
    """Return a time as microseconds since 1970."""
    return (value - _EPOCH) // _MICROSECOND


def to_uuid(value: Any) -> Any:
    """Return an id column as a UUID. It may be text."""
    return UUID(value) if isinstance(value, str) else value


def to_bytes(value: Any) -> Any:
    """Return a column as bytes.

    Inside JSON, PostgreSQL writes bytes as hexadecimal digits after a prefix. With the setting `bytea_output = escape`
    it writes unprintable bytes as octal escapes.
    """
    if not isinstance(value, str):
        return value
    if value.startswith("\\x"):
        return bytes.fromhex(value[2:])
    return _ESCAPED.sub(lambda match: bytes([int(match[1], 8)]) if match[1] else b"\\", value.encode())


def parse_json(value: Any) -> Any:
    """Return the value of a JSON column."""
    return json.loads(value) if isinstance(value, str) else value


def to_microseconds(value: timedelta | None) -> int | None:
    """Return a duration as it is stored."""
    return None if value is None else value // _MICROSECOND


@lru_cache(maxsize=1024)
def to_timedelta(value: int) -> timedelta:
    """Return a duration column as a timedelta."""
    return timedelta(microseconds=value)


def picker(*names: str) -> Callable[[object], dict[str, object]]:
    """Return a function that returns these attributes of a record as parameters."""
    values = attrgetter(*names)
    return lambda record: dict(zip(names, values(record), strict=True))


def to_json(value: Mapping[str, Any] | None) -> str | None:
    """Return JSON text that is equal on every backend."""
    return None if value is None else json.dumps(value, sort_keys=True)


def parse_tags(document: str) -> dict[str, str]:
    """Return the tags in a JSON document. Most documents are empty, which needs no parsing."""
    return {} if document == "{}" else json.loads(document)


def to_execution(row: Row) -> Execution:
    """Return the execution in a row."""
    values = {
        "id": to_uuid(row["id"]), "namespace": row["namespace"], "lane": row["lane"], "kind": row["kind"],
        "route_id": row["route_id"], "priority": row["priority"], "payload": row["payload"],
        "encoding": row["encoding"], "tags": parse_tags(row["tags"]), "policy": _to_policy(row["policy"]),
        "idempotency_key": row["idempotency_key"], "fingerprint": row["fingerprint"],
        "state": STATES[row["state"]], "blocking_reason": REASONS[row["blocking_reason"]],
        "attempt_state": _ATTEMPT_STATES[row["attempt_state"]],
        "ownership": Ownership(row["ownership"]) if row["ownership"] else None,
        "epoch": row["epoch"], "version": row["version"], "generation": row["generation"],
        "is_standalone": bool(row["plain"]),
        "created_at": to_datetime(row["created_at"]), "changed_at": to_datetime(row["changed_at"]),
        "started_at": to_datetime(row["started_at"]), "ended_at": to_datetime(row["ended_at"]),
        "ready_at": to_datetime(row["ready_at"]), "deadline_at": to_datetime(row["deadline_at"]),
        "attempt_timeout_at": to_datetime(row["attempt_timeout_at"]),
        "attempt_timeout_left": _to_optional_timedelta(row["attempt_timeout_left_us"]),
        "purge_at": to_datetime(row["purge_at"]),
        "lease": _to_held_lease(row), "former": _to_former_lease(row),
        "attempt_index": row["attempt_index"], "attempt_origin": _ORIGINS[row["attempt_origin"]],
        "attempt_started_at": to_datetime(row["attempt_started_at"]), "retry_count": row["retry_count"],
        "reclaim_count": row["reclaim_count"], "replay_count": row["replay_count"], "step_seq": row["step_seq"],
        "signal_seq": row["signal_seq"], "suspension_count": row["suspension_count"], "resumption": _to_resumption(row),
        "progress_percent": row["progress_percent"], "progress_message": row["progress_message"],
        "failure_message": row["failure_message"], "failure_category": row["failure_category"],
        "cancelled_by": row["cancelled_by"], "cancel_reason": row["cancel_reason"], "hold_reason": row["hold_reason"],
        "flow_id": to_uuid(row["flow_id"]), "member_name": row["member_name"], "parent_id": to_uuid(row["parent_id"]),
        "has_children": bool(row["has_children"]), "cancel_request": _to_cancel_request(row),
    }  # fmt: skip
    return make(Execution, values)


def to_lease(row: Row, namespace: str, worker: WorkerId) -> Lease:
    """Return the lease that a claim has just given to a worker."""
    return Lease(
        fence=Fence(to_uuid(row["id"]), row["epoch"], to_uuid(row["lease_id"])),
        namespace=namespace,
        lane=row["lane"],
        kind=row["kind"],
        priority=row["priority"],
        payload=row["payload"],
        encoding=row["encoding"],
        tags=parse_tags(row["tags"]),
        worker=worker,
        origin="resumed" if row["lease_resumed"] else row["attempt_origin"],
        attempt_index=row["attempt_index"],
        generation=row["generation"],
        acquired_at=to_datetime(row["lease_acquired_at"]),
        expires_at=to_datetime(row["lease_expires_at"]),
        ttl=to_timedelta(row["lease_ttl_us"]),
        deadline_at=to_datetime(row["deadline_at"]),
        attempt_timeout_at=to_datetime(row["attempt_timeout_at"]),
        is_standalone=bool(row["plain"]),
        resumption=_to_resumption(row),
        cancel_due_at=to_datetime(row["cancel_due_at"]),
    )


_SAVED_UNCHANGED = (
    "priority", "state", "blocking_reason", "attempt_state", "ownership", "epoch", "generation",
    "changed_at", "started_at", "ended_at", "ready_at", "deadline_at", "attempt_timeout_at", "purge_at",
    "attempt_index", "attempt_origin", "attempt_started_at", "retry_count", "reclaim_count", "replay_count", "step_seq",
    "progress_percent", "progress_message", "failure_message", "failure_category", "cancelled_by", "cancel_reason",
    "hold_reason", "signal_seq", "suspension_count", "has_children", "payload", "encoding",
)  # fmt: skip


def save_parameters(before: Execution, after: Execution) -> dict[str, object]:
    """Return the changed columns of an execution, and the columns that identify its former state."""
    row: dict[str, object] = {
        "execution_id": after.id,
        "version": after.version,
        "old_epoch": before.epoch,
        "old_version": before.version,
        "old_state": before.state,
    }
    old, new = before.__dict__, after.__dict__
    row |= {name: new[name] for name in _SAVED_UNCHANGED if new[name] is not old[name]}
    if after.is_standalone is not before.is_standalone:
        row["plain"] = after.is_standalone
    if after.attempt_timeout_left is not before.attempt_timeout_left:
        row["attempt_timeout_left_us"] = to_microseconds(after.attempt_timeout_left)
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
        "lease_ttl_us": to_microseconds(lease.ttl) if lease else None,
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


def insert_parameters(new: NewExecution) -> dict[str, object]:
    """Return the parameters that insert a submission."""
    submission, policy = new.submission, new.submission.policy
    return {
        "id": new.id,
        "lane": submission.lane,
        "kind": submission.kind,
        "route_id": new.route_id,
        "priority": submission.priority,
        "payload": submission.payload,
        "encoding": submission.encoding,
        "tags": to_json(submission.tags) if submission.tags else "{}",
        "idempotency_key": submission.key,
        "plain": not submission.signals and new.flow_id is None,
        "flow_id": new.flow_id,
        "member_name": new.member_name,
        "parent_id": new.parent_id,
        "fingerprint": new.fingerprint or submission.fingerprint(new.namespace),
        "state": new.state,
        "blocking_reason": new.blocking_reason,
        "ready_at": new.ready_at,
        "deadline_at": submission.deadline,
        **_policy_columns(policy),
    }


def to_attempt(row: Row) -> Attempt:
    """Return the ended attempt in a row."""
    return Attempt(
        execution_id=to_uuid(row["execution_id"]),
        attempt_index=row["attempt_index"],
        generation=row["generation"],
        origin=AttemptOrigin(row["origin"]),
        worker=_to_worker_id(row["worker"], row["instance"]),
        started_at=to_datetime(row["started_at"]),
        ended_at=to_datetime(row["ended_at"]),
        outcome=AttemptOutcome(row["outcome"]),
        result=row["result"],
        encoding=row["encoding"],
        failure_class=row["failure_class"],
        failure_category=row["failure_category"],
        failure_message=row["failure_message"],
        failure_detail=row["failure_detail"],
    )


_ATTEMPT = picker(
    "execution_id",
    "attempt_index",
    "generation",
    "origin",
    "started_at",
    "ended_at",
    "outcome",
    "result",
    "encoding",
    "failure_class",
    "failure_category",
    "failure_message",
    "failure_detail",
)


def attempt_parameters(attempt: Attempt) -> dict[str, object]:
    """Return the parameters that append an ended attempt."""
    return _ATTEMPT(attempt) | _worker_columns(attempt.worker)


def to_event(row: Row) -> Event:
    """Return the event in a row."""
    return Event(
        namespace=row["namespace"],
        family=row["family"],
        name=row["name"],
        at=to_datetime(row["at"]),
        lane=row["lane"],
        execution_id=to_uuid(row["execution_id"]),
        version=row["version"],
        kind=row["kind"],
        state=State(row["state"]) if row["state"] else None,
        epoch=row["epoch"],
        generation=row["generation"],
        attempt_index=row["attempt_index"],
        lease_id=to_uuid(row["lease_id"]),
        worker=_to_worker_id(row["worker"], row["instance"]),
        ends_lease=bool(row["ends_lease"]),
        tags=json.loads(row["tags"]) if row["tags"] else None,
        principal=row["principal"],
        reason=row["reason"],
        details=json.loads(row["details"]) if row["details"] else None,
        flow_id=to_uuid(row["flow_id"]),
    )


_EVENT = picker(
    "namespace",
    "family",
    "name",
    "at",
    "lane",
    "execution_id",
    "version",
    "kind",
    "state",
    "epoch",
    "generation",
    "attempt_index",
    "lease_id",
    "ends_lease",
    "principal",
    "reason",
    "flow_id",
)


def event_parameters(event: Event) -> dict[str, object]:
    """Return the parameters that append an event."""
    documents = {"tags": to_json(event.tags), "details": to_json(event.details)}
    return _EVENT(event) | documents | _worker_columns(event.worker)


def to_step(row: Row) -> RecordedStep:
    """Return the step in a row."""
    return RecordedStep(
        seq=row["seq"],
        name=row["name"],
        status=row["status"],
        payload=row["payload"],
        encoding=row["encoding"],
        attempt_index=row["attempt_index"],
        generation=row["generation"],
        recorded_at=to_datetime(row["recorded_at"]),
    )


def to_grant(row: Row) -> Grant:
    """Return the grant in a row."""
    return Grant(
        id=to_uuid(row["id"]),
        execution_id=to_uuid(row["execution_id"]),
        worker=WorkerId(row["worker"], row["instance"]),
        granted_at=to_datetime(row["granted_at"]),
        expires_at=to_datetime(row["expires_at"]),
        consumed_by=to_uuid(row["consumed_by"]),
    )


@lru_cache(maxsize=1024)
def _policy_columns(policy: Policy) -> dict[str, object]:
    """Return the policy, and those parts of it that statements use."""
    return {
        "policy": policy.to_text(),
        "lease_ttl_policy_us": to_microseconds(span(policy.lease_ttl)),
        "attempt_timeout_policy_us": to_microseconds(optional_span(policy.attempt_timeout)),
        "retention_policy_us": to_microseconds(span(policy.retention)),
        "deadline_us": to_microseconds(optional_span(policy.deadline)),
    }


@lru_cache(maxsize=1024)
def _to_policy(document: str) -> Policy:
    return Policy.from_json(json.loads(document))


def _to_optional_timedelta(value: int | None) -> timedelta | None:
    return None if value is None else timedelta(microseconds=value)


def _to_worker_id(name: str | None, instance: str | None) -> WorkerId | None:
    return WorkerId(name, instance) if name is not None and instance is not None else None


def _worker_columns(worker: WorkerId | None) -> dict[str, object]:
    return {"worker": worker and worker.name, "instance": worker and worker.instance}


def _to_resumption(row: Row) -> Resumption | None:
    if row["resume_suspension_id"] is None:
        return None
    return Resumption(to_uuid(row["resume_suspension_id"]), row["resume_trigger"])


def _to_cancel_request(row: Row) -> CancelRequest | None:
    if row["cancel_due_at"] is None:
        return None
    return CancelRequest(due_at=to_datetime(row["cancel_due_at"]), **json.loads(row["cancel_request"]))


def cancel_columns(request: CancelRequest | None) -> dict[str, object]:
    """Return the columns of a cancel request."""
    if request is None:
        return {"cancel_due_at": None, "cancel_request": None}
    document = {"principal": request.principal, "source": request.source, "reason": request.reason}
    return {"cancel_due_at": request.due_at, "cancel_request": to_json(document)}


def _to_held_lease(row: Row) -> HeldLease | None:
    if row["lease_id"] is None:
        return None
    return HeldLease(
        id=to_uuid(row["lease_id"]),
        worker=WorkerId(row["lease_worker"], row["lease_instance"]),
        ttl=timedelta(microseconds=row["lease_ttl_us"]),
        acquired_at=to_datetime(row["lease_acquired_at"]),
        expires_at=to_datetime(row["lease_expires_at"]),
        check_at=to_datetime(row["lease_check_at"]),
        resumed=bool(row["lease_resumed"]),
    )


def _to_former_lease(row: Row) -> FormerLease | None:
    if row["former_lease_id"] is None:
        return None
    return FormerLease(
        id=to_uuid(row["former_lease_id"]),
        epoch=row["former_epoch"],
        worker=WorkerId(row["former_worker"], row["former_instance"]),
        end=row["former_end"],
        digest=row["former_digest"],
        until=to_datetime(row["former_until"]),
    )
