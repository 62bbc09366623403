"""Suspensions, waitpoints, signals and signing keys in SQL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from flowfabric.core.condition_json import from_json, to_json
from flowfabric.core.evaluating import SignalFacts
from flowfabric.core.keyring import Key, KeyRing
from flowfabric.core.secret import Secret
from flowfabric.core.waits import (
    Binding,
    Effect,
    OnTimeout,
    Rest,
    Signal,
    Suspension,
    SuspensionReason,
    TokenParts,
    Trigger,
    Unbinding,
    WaitChanges,
    Waitpoint,
    WaitpointKind,
    WaitpointState,
)
from flowfabric.sqlstore.rows import document, identity, micros, octets, picking, span_of, when
from flowfabric.sqlstore.session import Batch, Parameters, Row, Session
from flowfabric.store.flows import Closing
from flowfabric.store.waiting import Asked, Heard


class SqlWaits:
    """What hangs on an execution that waits."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def apply(self, changes: Sequence[WaitChanges]) -> None:
        await write_waits(self._session, changes)

    async def end(self, execution_ids: Sequence[UUID], now: datetime, *, were_active: bool = False) -> None:
        closing = Closing(were_active=execution_ids) if were_active else Closing(others=execution_ids)
        await self._session.run_batches(beside=closings(closing), now=now)

    async def before_suspending(
        self, execution_ids: Sequence[UUID], asked: Sequence[tuple[UUID, int, str]], *, minting: bool
    ) -> tuple[dict[UUID, list[Waitpoint]], dict[UUID, Suspension], KeyRing | None]:
        ids, keys = list(execution_ids), [key for _, _, key in asked]
        waitpoints, suspensions, ring = await self._session.fetch_all(
            ("open_waitpoints", {"execution_ids": ids}),
            ("suspensions_named", {"execution_ids": ids, "keys": keys}),
            (_SHARE if minting else _RING, {}),
        )
        found = map(suspension_of, suspensions)
        by_name = {(item.execution_id, item.generation, item.key): item for item in found}
        named = {name[0]: by_name[name] for name in asked if name in by_name}
        return _by_execution(waitpoints), named, _shared(ring) if minting else ring_of(ring)

    async def before_signalling(
        self, execution_ids: Sequence[UUID], asked: Sequence[Asked]
    ) -> tuple[dict[UUID, list[Waitpoint]], dict[UUID, Suspension], Heard, KeyRing]:
        ids = {"execution_ids": list(execution_ids)}
        waitpoints, suspensions, signals, ring = await self._session.fetch_all(
            ("open_waitpoints", ids), ("open_suspensions", ids), (_HEARD, _hearing(execution_ids, asked)), (_RING, {})
        )
        return _by_execution(waitpoints), _open(suspensions), heard_of(signals, asked), ring_of(ring)

    async def open_suspensions(self, execution_ids: Sequence[UUID]) -> dict[UUID, Suspension]:
        return _open(await self._session.fetch("open_suspensions", execution_ids=list(execution_ids)))

    async def last_suspension(
        self, execution_id: UUID, *, id_: UUID | None = None, lease_id: UUID | None = None
    ) -> Suspension | None:
        found = await self._session.fetch("last_suspension", execution_id=execution_id, id=id_, lease_id=lease_id)
        return suspension_of(found[0]) if found else None

    async def open_waitpoints(self, execution_ids: Sequence[UUID]) -> dict[UUID, list[Waitpoint]]:
        return _by_execution(await self._session.fetch("open_waitpoints", execution_ids=list(execution_ids)))

    async def bound_waitpoints(self, execution_id: UUID, number: int) -> list[Waitpoint]:
        found = await self._session.fetch("bound_waitpoints", execution_id=execution_id, number=number)
        return [waitpoint_of(row) for row in found]

    async def waitpoints(self, ids: Sequence[UUID]) -> dict[UUID, Waitpoint]:
        found = await self._session.fetch("get_waitpoints", ids=list(ids))
        return {item.id: item for item in map(waitpoint_of, found)}

    async def last_waitpoint(self, execution_id: UUID, key: str, by: datetime) -> Waitpoint | None:
        found = await self._session.fetch("last_waitpoint", execution_id=execution_id, key=key, by=by)
        return waitpoint_of(found[0]) if found else None

    async def list_waitpoints(self, execution_id: UUID, after: UUID, limit: int) -> list[Waitpoint]:
        found = await self._session.fetch("list_waitpoints", execution_id=execution_id, after=after, limit=limit)
        return [waitpoint_of(row) for row in found]

    async def standing_keys(self, execution_id: UUID) -> list[str]:
        return [row["key"] for row in await self._session.fetch("standing_waitpoints", execution_id=execution_id)]

    async def unused(self, waitpoint_ids: Sequence[UUID]) -> dict[UUID, tuple[SignalFacts, ...]]:
        return _grouped(await self._session.fetch("unused_signals", waitpoint_ids=list(waitpoint_ids)), "waitpoint_id")

    async def heard(self, execution_ids: Sequence[UUID], asked: Sequence[Asked] = ()) -> Heard:
        return heard_of(await self._session.fetch(_HEARD, **_hearing(execution_ids, asked)), asked)

    async def signals(
        self, asked: Sequence[tuple[UUID, int, int]], *, include_unmatched: bool, limit: int
    ) -> dict[UUID, list[Signal]]:
        shared = {"include_unmatched": include_unmatched, "limit": limit}
        items = [{"execution_id": id_, "number": number, "after": after, **shared} for id_, number, after in asked]
        found: dict[UUID, list[Signal]] = {}
        for signal in map(signal_of, await self._session.fetch_each("signals_of", items)):
            found.setdefault(signal.execution_id, []).append(signal)
        return found


class SqlSigningKeys:
    """The key ring."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def ring(self) -> KeyRing:
        return ring_of(await self._session.fetch(_RING))

    async def lock(self) -> None:
        await self._session.fetch("lock_keys")

    async def share(self) -> KeyRing | None:
        return _shared(await self._session.fetch(_SHARE))

    async def add(self, key: Key) -> bool:
        return bool(await self._session.fetch("add_signing_key", **_key_parameters(key)))

    async def change(self, keys: Sequence[Key]) -> None:
        if keys:
            unchanging = {"check_value", "created_at"}
            items = [
                {name: value for name, value in _key_parameters(key).items() if name not in unchanging} for key in keys
            ]
            await self._session.fetch_each("change_signing_key", items)

    async def cut_off(self, kid: str, end: datetime) -> int:
        [row] = await self._session.fetch("count_cut_off", kid=kid, end=end)
        return int(row["count"])


async def write_waits(session: Session, changes: Sequence[WaitChanges], *beside: Batch) -> None:
    """Writes changes of waits, together with what else is to be written."""
    *others, added = wait_rows(changes)
    make_room = any(item.moved for item in changes)
    await session.write(*beside, *others, *(() if make_room else (added,)))
    if make_room:
        # Expired waitpoints make room for new ones of the same key.
        await session.write(added)
    await session.fetch_each("bind_signals", [_binding(bound) for item in changes for bound in item.bound])
    await session.fetch_each("unbind_signals", [_freeing(freed) for item in changes for freed in item.unbound])


def _binding(bound: Binding) -> dict[str, object]:
    return {
        "number": bound.number,
        "waitpoint_ids": list(bound.waitpoint_ids),
        "counting": list(bound.counting),
        "only_counting": bound.only_counting,
    }


def _freeing(freed: Unbinding) -> dict[str, object]:
    ids = list(freed.waitpoint_ids)
    return {"execution_id": freed.execution_id, "number": freed.number, "waitpoint_ids": ids}


def closings(closing: Closing) -> list[tuple[str, Parameters]]:
    """The statements that close what is open on executions that have ended."""
    ids = [*closing.were_active, *closing.others]
    suspensions = [("end_suspensions", {"execution_ids": list(closing.others)})] if closing.others else []
    return [*suspensions, ("end_waitpoints", {"execution_ids": ids})] if ids else []


def touched(changes: Sequence[WaitChanges]) -> set[UUID]:
    """The executions on which something changes."""
    ids: set[UUID] = set()
    for item in changes:
        suspensions, waitpoints = (*item.opened, *item.changed), (*item.added, *item.moved)
        ids.update(row.execution_id for row in suspensions)
        ids.update(row.execution_id for row in waitpoints)
        ids.update(row.execution_id for row in item.received)
        ids.update(row.execution_id for row in item.unbound)
    return ids


def wait_rows(changes: Sequence[WaitChanges]) -> list[Batch]:
    """The rows of waits that are written, by statement; new waitpoints come last."""
    return [
        ("open_suspension", [_suspension_parameters(row) for item in changes for row in item.opened]),
        ("change_suspension", [_changed(row) for item in changes for row in item.changed]),
        ("move_waitpoint", [_moved(row) for item in changes for row in item.moved]),
        ("add_signal", [_signal_parameters(row) for item in changes for row in item.received]),
        ("add_waitpoint", [_waitpoint_parameters(row) for item in changes for row in item.added]),
    ]


def _by_execution(found: Sequence[Row]) -> dict[UUID, list[Waitpoint]]:
    grouped: dict[UUID, list[Waitpoint]] = {}
    for waitpoint in map(waitpoint_of, found):
        grouped.setdefault(waitpoint.execution_id, []).append(waitpoint)
    return grouped


def _open(found: Sequence[Row]) -> dict[UUID, Suspension]:
    return {item.execution_id: item for item in map(suspension_of, found)}


_HEARD = "counting_and_accepted_signals"
_RING = "key_ring"
_SHARE = "share_active_key"


def _hearing(execution_ids: Sequence[UUID], asked: Sequence[Asked]) -> Parameters:
    return {
        "execution_ids": list(execution_ids),
        "ids": [item.id for item in asked],
        "waitpoint_ids": [item.waitpoint_id for item in asked if item.waitpoint_id is not None],
        "keys": [item.key for item in asked if item.key is not None],
    }


def heard_of(found: Sequence[Row], asked: Sequence[Asked]) -> Heard:
    """What rows of signals tell: which have counted, and which came before."""
    counting = [row for row in found if row["counting"]]
    accepted = [row for row in found if not row["counting"]]
    by_id = {(identity(row["execution_id"]), identity(row["id"])): identity(row["id"]) for row in accepted}
    by_key = {(identity(row["waitpoint_id"]), row["key"]): identity(row["id"]) for row in accepted if row["key"]}
    earlier = {
        item.execution_id: by_id.get((item.execution_id, item.id)) or by_key.get((item.waitpoint_id, item.key))
        for item in asked
    }
    return Heard(_grouped(counting, "execution_id"), {key: id_ for key, id_ in earlier.items() if id_ is not None})


def _grouped(found: Sequence[Row], by: str) -> dict[UUID, tuple[SignalFacts, ...]]:
    groups: dict[UUID, list[SignalFacts]] = {}
    for row in found:
        facts = SignalFacts(identity(row["id"]), row["waitpoint"], row["name"], row["source"], row["seq"])
        groups.setdefault(identity(row[by]), []).append(facts)
    return {id_: tuple(group) for id_, group in groups.items()}


def suspension_of(row: Row) -> Suspension:
    """The suspension that a row holds."""
    return Suspension(
        id=identity(row["id"]), execution_id=identity(row["execution_id"]), number=row["number"],
        generation=row["generation"], epoch=row["epoch"], lease_id=identity(row["lease_id"]), key=row["key"],
        digest=row["digest"], condition=from_json(document(row["condition"])), reason=SuspensionReason(row["reason"]),
        rest=Rest(row["rest"]), opened_at=when(row["opened_at"]), timeout_at=when(row["timeout_at"]),
        on_timeout=OnTimeout(row["on_timeout"]), resume_delay=span_of(row["resume_delay_us"]),
        closed_at=when(row["closed_at"]), closed_by=Trigger(row["closed_by"]) if row["closed_by"] else None,
    )  # fmt: skip


_SUSPENSION = picking(
    "id", "execution_id", "number", "generation", "epoch", "lease_id", "key", "digest", "reason", "rest", "opened_at",
    "timeout_at", "on_timeout", "closed_at", "closed_by",
)  # fmt: skip
_changed = picking("execution_id", "number", "timeout_at", "closed_at", "closed_by")


def _suspension_parameters(item: Suspension) -> dict[str, object]:
    return _SUSPENSION(item) | {
        "condition": json.dumps(to_json(item.condition)),
        "resume_delay_us": micros(item.resume_delay),
    }


def waitpoint_of(row: Row) -> Waitpoint:
    """The waitpoint that a row holds."""
    token = TokenParts(
        kid=row["kid"], nonce=octets(row["nonce"]), hash=octets(row["token_hash"]), approver=row["approver"],
        ends_at=when(row["token_ends_at"]),
    ) if row["kid"] else None  # fmt: skip
    return Waitpoint(
        id=identity(row["id"]), execution_id=identity(row["execution_id"]), key=row["key"],
        kind=WaitpointKind(row["kind"]), state=WaitpointState(row["state"]), created_at=when(row["created_at"]),
        suspension=row["suspension"], token=token, expires_at=when(row["expires_at"]),
        child_id=identity(row["child_id"]), fires_at=when(row["fires_at"]), closed_at=when(row["closed_at"]),
        close_reason=row["close_reason"], generation=row["generation"],
    )  # fmt: skip


_WAITPOINT = picking(
    "id", "execution_id", "key", "kind", "state", "suspension", "child_id", "fires_at", "created_at", "expires_at",
    "closed_at", "close_reason", "generation",
)  # fmt: skip


def _waitpoint_parameters(item: Waitpoint) -> dict[str, object]:
    token = item.token
    return _WAITPOINT(item) | {
        "kid": token and token.kid,
        "nonce": token and token.nonce,
        "token_hash": token and token.hash,
        "approver": token and token.approver,
        "token_ends_at": token and token.ends_at,
    }


def _moved(item: Waitpoint) -> dict[str, object]:
    return {"waitpoint_id": item.id} | _waitpoint_parameters(item)


def signal_of(row: Row) -> Signal:
    """The signal that a row holds."""
    return Signal(
        id=identity(row["id"]), execution_id=identity(row["execution_id"]), seq=row["seq"],
        waitpoint_id=identity(row["waitpoint_id"]), waitpoint=row["waitpoint"], name=row["name"],
        category=row["category"], source=row["source"], source_type=row["source_type"],
        source_identity=row["source_identity"], correlation=row["correlation"], payload=row["payload"],
        encoding=row["encoding"], key=row["key"], created_at=when(row["created_at"]),
        accepted_at=when(row["accepted_at"]), effect=Effect(row["effect"]), suspension=row["suspension"],
        counts=bool(row["counts"]),
    )  # fmt: skip


_signal_parameters = picking(
    "id", "execution_id", "seq", "waitpoint_id", "waitpoint", "suspension", "counts", "name", "category", "source",
    "source_type", "source_identity", "correlation", "payload", "encoding", "key", "created_at", "accepted_at",
    "effect",
)  # fmt: skip


def ring_of(found: Sequence[Row]) -> KeyRing:
    """The key ring that rows hold."""
    return KeyRing(tuple(map(_key, found)))


def _shared(found: Sequence[Row]) -> KeyRing | None:
    """The ring, if its active key is shared."""
    return ring_of(found) if any(row["shared"] for row in found) else None


def _key(row: Row) -> Key:
    return Key(
        kid=row["kid"], check=row["check_value"], secret=None if row["secret"] is None else Secret(row["secret"]),
        created_at=when(row["created_at"]), retired_at=when(row["retired_at"]),
        verifies_until=when(row["verifies_until"]), end_is_final=bool(row["end_is_final"]), in_use=bool(row["in_use"]),
        collected_at=when(row["collected_at"]),
    )  # fmt: skip


def _key_parameters(key: Key) -> dict[str, object]:
    return {
        "kid": key.kid,
        "check_value": key.check,
        "secret": None if key.secret is None else key.secret.reveal(),
        "created_at": key.created_at,
        "retired_at": key.retired_at,
        "verifies_until": key.verifies_until,
        "end_is_final": key.end_is_final,
        "collected_at": key.collected_at,
        "active": True if key.retired_at is None else None,
    }
