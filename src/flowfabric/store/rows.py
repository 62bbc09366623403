"""Convert rows to records and back. Values in rows may have the types of either backend.

Most columns have the name of a record field. `row_reader` and `parameters_of` make functions that convert by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from enum import EnumType
from functools import lru_cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_type_hints
from uuid import UUID

from flowfabric.core.executions.outcomes import Lease
from flowfabric.core.executions.records import (
    Attempt,
    AttemptOrigin,
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
    route_digest,
)
from flowfabric.core.fast_dataclass import make
from flowfabric.core.policy import Policy, optional_span, span
from flowfabric.store.records import NewExecution
from flowfabric.store.session import Row

_ESCAPED = re.compile(rb"\\(?:([0-7]{3})|\\)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
Record = TypeVar("Record")


def to_datetime(value: Any) -> Any:
    """Return a time column as a datetime. The value may be a datetime, text, or microseconds since 1970."""
    if isinstance(value, int):
        return _EPOCH + timedelta(microseconds=value)
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def to_epoch_us(value: datetime) -> int:
    """Return a time as microseconds since 1970."""
    return (value - _EPOCH) // _MICROSECOND


def to_uuid(value: Any) -> Any:
    """Return an id column as a UUID. The value may be a UUID or text."""
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
    """Return a duration in microseconds, which is how it is stored."""
    return None if value is None else value // _MICROSECOND


@lru_cache(maxsize=1024)
def to_timedelta(value: int | None) -> Any:
    """Return a duration column as a timedelta."""
    return None if value is None else timedelta(microseconds=value)


def to_names(value: Any) -> tuple[str, ...]:
    """Return a column of names as a tuple. The value may be a list, or text with a JSON array."""
    return tuple(parse_json(value))


def picker(*names: str) -> Callable[[object], dict[str, object]]:
    """Return a function that returns these attributes of a record as parameters."""
    values = attrgetter(*names)
    return lambda record: dict(zip(names, values(record), strict=True))


def parameters_of(kind: type, *, without: Collection[str] = ()) -> Callable[[object], dict[str, object]]:
    """Return a function that returns all fields of a record as parameters, except the fields named in `without`."""
    return picker(*[field.name for field in fields(kind) if field.name not in without])


def row_reader(kind: type[Record], **sources: str | Callable[[Row], object]) -> Callable[[Row], Record]:
    """Return a function that converts a row to a record.

    Each field is read from the column of the same name, and converted to the type of the field. `sources` may give a
    different column name for a field, or a function that makes the field from the whole row.
    """
    # Compiled code is up to twice as fast as a loop over the fields, and rows are read by the thousand.
    names: dict[str, Any] = {"__name__": __name__, "kind": kind, "make": make}
    arguments = []
    types = get_type_hints(kind)
    assert sources.keys() <= types.keys(), "every source is for a field"
    for name, type_ in types.items():
        source = sources.get(name, name)
        convert, value = (_converter(type_), f"row['{source}']") if isinstance(source, str) else (source, "row")
        names[f"convert_{name}"] = convert
        arguments.append(f"{name}=convert_{name}({value})" if convert else f"{name}={value}")
    call = "kind({})" if hasattr(kind, "__slots__") else "make(kind, dict({}))"
    code = compile("lambda row: " + call.format(", ".join(arguments)), f"<row_reader of {kind.__name__}>", "eval")
    reader: Callable[[Row], Record] = eval(code, names)
    return reader


def _converter(type_: Any) -> Callable[[Any], Any] | None:
    """Return the function that converts a column to the type of a field, or None if its values need no conversion."""
    kinds = get_args(type_) if isinstance(type_, UnionType) else [type_]
    [kind] = [kind for kind in kinds if kind is not NoneType]
    if isinstance(kind, EnumType):
        # Looking up a value in a dict takes a tenth of the time of calling the enum class.
        members: Iterable[Any] = kind
        return {None: None, **{member.value: member for member in members}}.__getitem__
    return _CONVERTERS.get(kind)


_CONVERTERS: dict[Any, Callable[[Any], Any]] = {
    UUID: to_uuid,
    datetime: to_datetime,
    timedelta: to_timedelta,
    bool: bool,
    tuple[str, ...]: to_names,
}


def to_json(value: Mapping[str, Any] | None) -> str | None:
    """Return a mapping as JSON text with sorted keys, so that equal mappings give equal text."""
    return None if value is None else json.dumps(value, sort_keys=True)


def parse_tags(document: str) -> dict[str, str]:
    """Return the tags in a JSON document. Most documents are empty, which needs no parsing."""
    return {} if document == "{}" else json.loads(document)


def to_lease(row: Row, namespace: str, worker: WorkerId) -> Lease:
    """Return the lease that a claim has just given to a worker."""
    origin = "resumed" if row["lease_resumed"] else row["attempt_origin"]
    return Lease(
        fence=Fence(to_uuid(row["id"]), row["epoch"], to_uuid(row["lease_id"]), namespace),
        namespace=namespace,
        lane=row["lane"],
        kind=row["kind"],
        priority=row["priority"],
        payload=row["payload"],
        encoding=row["encoding"],
        tags=parse_tags(row["tags"]),
        worker=worker,
        origin=origin,
        attempt_index=row["attempt_index"],
        generation=row["generation"],
        acquired_at=to_datetime(row["lease_acquired_at"]),
        expires_at=to_datetime(row["lease_expires_at"]),
        ttl=to_timedelta(row["lease_ttl_us"]),
        deadline_at=to_datetime(row["deadline_at"]),
        attempt_timeout_at=to_datetime(row["attempt_timeout_at"]),
        is_standalone=bool(row["plain"]),
        has_journal=origin != AttemptOrigin.FRESH,
        resumption=_to_resumption(row),
        cancel_due_at=to_datetime(row["cancel_due_at"]),
        era=row["era"] or 0,
    )


_SAVED_UNCHANGED = (
    "priority", "state", "blocking_reason", "attempt_state", "ownership", "epoch", "generation",
    "changed_at", "started_at", "ended_at", "ready_at", "deadline_at", "attempt_timeout_at", "purge_at",
    "attempt_index", "attempt_origin", "attempt_started_at", "retry_count", "reclaim_count", "replay_count",
    "progress_percent", "progress_message", "failure_message", "failure_category", "cancelled_by", "cancel_reason",
    "hold_reason", "signal_seq", "suspension_count", "has_children", "payload", "encoding",
)  # fmt: skip


def save_parameters(before: Execution, after: Execution) -> dict[str, object]:
    """Return the changed columns of an execution, and the old values that its row must still have."""
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


def fence_parameters(fence: Fence) -> dict[str, object]:
    """Return the parameters by which a guarded statement checks a lease."""
    return {"execution_id": fence.execution_id, "epoch": fence.epoch, "lease_id": fence.lease_id}


def matched_ids(returned: Sequence[Row], ids: Sequence[UUID]) -> set[UUID]:
    """Return those of `ids` that a guarded statement returned. Usually it returned all of them."""
    return set(ids) if len(returned) == len(ids) else {to_uuid(row["id"]) for row in returned}


INSERT_COLUMNS = (
    "id", "lane", "kind", "route", "priority", "payload", "encoding", "tags", "idempotency_key", "plain", "flow_id",
    "member_name", "parent_id", "creator", "fingerprint", "state", "blocking_reason", "ready_at", "deadline_at",
    "policy", "lease_ttl_policy_us", "attempt_timeout_policy_us", "retention_policy_us", "deadline_us",
)  # fmt: skip


def insert_values(new: NewExecution) -> tuple[object, ...]:
    """Return the values of `INSERT_COLUMNS` that insert a submission."""
    submission = new.submission
    return (
        new.id,
        submission.lane,
        submission.kind,
        route_digest(new.namespace, submission.lane, submission.kind, tuple(submission.requires)),
        submission.priority,
        submission.payload,
        submission.encoding,
        to_json(submission.tags) if submission.tags else "{}",
        submission.key,
        not submission.signals and new.flow_id is None,
        new.flow_id,
        new.member_name,
        new.parent_id,
        submission.creator,
        new.fingerprint or submission.fingerprint(new.namespace),
        new.state,
        new.blocking_reason,
        new.ready_at,
        new.deadline_at or submission.deadline,
        *_policy_values(submission.policy),
    )


def attempt_parameters(attempt: Attempt) -> dict[str, object]:
    """Return the parameters that append an ended attempt."""
    return _attempt_columns(attempt) | worker_columns(attempt.worker)


_attempt_columns = parameters_of(Attempt, without=["worker"])


def event_parameters(event: Event) -> dict[str, object]:
    """Return the parameters that append an event."""
    documents = {"tags": to_json(event.tags), "details": to_json(event.details)}
    return _event_columns(event) | documents | worker_columns(event.worker)


_event_columns = parameters_of(Event, without=["worker", "tags", "details", "cursor"])


@lru_cache(maxsize=1024)
def _policy_values(policy: Policy) -> tuple[object, ...]:
    """Return the values of the columns of a policy: its text, and the durations that SQL statements need."""
    return (
        policy.to_text(),
        to_microseconds(span(policy.lease_ttl)),
        to_microseconds(optional_span(policy.attempt_timeout)),
        to_microseconds(span(policy.retention)),
        to_microseconds(optional_span(policy.deadline)),
    )


@lru_cache(maxsize=1024)
def _to_policy(document: str) -> Policy:
    return Policy.from_json(json.loads(document))


def _to_worker_id(row: Row) -> WorkerId | None:
    return None if row["worker"] is None else WorkerId(row["worker"], row["instance"])


def worker_columns(worker: WorkerId | None) -> dict[str, object]:
    """Return the columns of a worker."""
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
    document: dict[str, object] = {
        "principal": request.principal,
        "source": request.source,
        "reason": request.reason,
    }
    if request.children:
        document["children"] = True
    return {"cancel_due_at": request.due_at, "cancel_request": to_json(document)}


_to_held_lease = row_reader(
    HeldLease,
    id="lease_id",
    worker=lambda row: WorkerId(row["lease_worker"], row["lease_instance"]),
    ttl="lease_ttl_us",
    acquired_at="lease_acquired_at",
    expires_at="lease_expires_at",
    check_at="lease_check_at",
    resumed="lease_resumed",
)
_to_former_lease = row_reader(
    FormerLease,
    id="former_lease_id",
    epoch="former_epoch",
    worker=lambda row: WorkerId(row["former_worker"], row["former_instance"]),
    end="former_end",
    digest="former_digest",
    until="former_until",
)
to_execution = row_reader(
    Execution,
    tags=lambda row: parse_tags(row["tags"]),
    policy=lambda row: _to_policy(row["policy"]),
    is_standalone="plain",
    attempt_timeout_left="attempt_timeout_left_us",
    lease=lambda row: None if row["lease_id"] is None else _to_held_lease(row),
    former=lambda row: None if row["former_lease_id"] is None else _to_former_lease(row),
    resumption=_to_resumption,
    cancel_request=_to_cancel_request,
)
to_attempt = row_reader(Attempt, worker=_to_worker_id)
to_event = row_reader(
    Event,
    worker=_to_worker_id,
    tags=lambda row: json.loads(row["tags"]) if row["tags"] else None,
    details=lambda row: json.loads(row["details"]) if row["details"] else None,
    cursor=lambda _: None,
)
to_step = row_reader(RecordedStep)
to_grant = row_reader(Grant, worker=_to_worker_id)
