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
    Effect,
    OnTimeout,
    Rest,
    Signal,
    Suspension,
    SuspensionReason,
    TokenParts,
    Trigger,
    WaitChanges,
    Waitpoint,
    WaitpointKind,
    WaitpointState,
)
from flowfabric.sqlstore.rows import identity, micros, span_of, when
from flowfabric.sqlstore.session import Parameters, Row, Session


class SqlWaits:
    """What hangs on an execution that waits."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def apply(self, changes: Sequence[WaitChanges]) -> None:
        await _each(
            self._session, "open_suspension", [_suspension_parameters(row) for item in changes for row in item.opened]
        )
        await _exactly(
            self._session,
            "change_suspension",
            [_suspension_parameters(row) for item in changes for row in item.changed],
        )
        # Expired waitpoints make room for new ones of the same key, so they go first.
        await _exactly(
            self._session, "move_waitpoint", [_waitpoint_parameters(row) for item in changes for row in item.moved]
        )
        await _each(
            self._session, "add_waitpoint", [_waitpoint_parameters(row) for item in changes for row in item.added]
        )
        await _each(self._session, "add_signal", [_signal_parameters(row) for item in changes for row in item.received])
        for item in changes:
            for bound in item.bound:
                await self._session.fetch(
                    "bind_signals", number=bound.number, waitpoint_ids=list(bound.waitpoint_ids),
                    counting=list(bound.counting), only_counting=bound.only_counting,
                )  # fmt: skip
            for freed in item.unbound:
                await self._session.fetch(
                    "unbind_signals", execution_id=freed.execution_id, number=freed.number,
                    waitpoint_ids=list(freed.waitpoint_ids),
                )  # fmt: skip

    async def end(self, execution_ids: Sequence[UUID], now: datetime, *, were_active: bool = False) -> None:
        if not were_active:
            await self._session.fetch("end_suspensions", execution_ids=list(execution_ids), now=now)
        await self._session.fetch("end_waitpoints", execution_ids=list(execution_ids), now=now)

    async def open_suspensions(self, execution_ids: Sequence[UUID]) -> dict[UUID, Suspension]:
        found = await self._session.fetch("open_suspensions", execution_ids=list(execution_ids))
        return {item.execution_id: item for item in map(_suspension, found)}

    async def suspensions_named(self, asked: Sequence[tuple[UUID, int, str]]) -> dict[UUID, Suspension]:
        ids, _, keys = (list(column) for column in zip(*asked, strict=True))
        found = map(_suspension, await self._session.fetch("suspensions_named", execution_ids=ids, keys=keys))
        by_name = {(item.execution_id, item.generation, item.key): item for item in found}
        return {name[0]: by_name[name] for name in asked if name in by_name}

    async def suspensions(self, execution_id: UUID, limit: int) -> list[Suspension]:
        return [
            _suspension(row)
            for row in await self._session.fetch("suspensions_of", execution_id=execution_id, limit=limit)
        ]

    async def open_waitpoints(self, execution_ids: Sequence[UUID]) -> dict[UUID, list[Waitpoint]]:
        grouped: dict[UUID, list[Waitpoint]] = {}
        for row in await self._session.fetch("open_waitpoints", execution_ids=list(execution_ids)):
            grouped.setdefault(identity(row["execution_id"]), []).append(waitpoint_of(row))
        return grouped

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

    async def counting(self, execution_ids: Sequence[UUID]) -> dict[UUID, tuple[SignalFacts, ...]]:
        return _grouped(
            await self._session.fetch("counting_signals", execution_ids=list(execution_ids)), "execution_id"
        )

    async def accepted(self, asked: Sequence[tuple[UUID, UUID, UUID, str | None]]) -> dict[UUID, UUID]:
        executions, ids, waitpoints, keys = (list(column) for column in zip(*asked, strict=True))
        found = await self._session.fetch(
            "accepted_signals", execution_ids=executions, ids=ids, waitpoint_ids=waitpoints,
            keys=[key for key in keys if key is not None],
        )  # fmt: skip
        by_id = {(identity(row["execution_id"]), identity(row["id"])): identity(row["id"]) for row in found}
        by_key = {(identity(row["waitpoint_id"]), row["key"]): identity(row["id"]) for row in found if row["key"]}
        earlier = {
            execution: by_id.get((execution, id_)) or by_key.get((waitpoint, key))
            for execution, id_, waitpoint, key in asked
        }
        return {execution: id_ for execution, id_ in earlier.items() if id_ is not None}

    async def signals(
        self, execution_id: UUID, number: int, *, include_unmatched: bool, after: int, limit: int
    ) -> list[Signal]:
        found = await self._session.fetch(
            "signals_of", execution_id=execution_id, number=number, include_unmatched=include_unmatched, after=after,
            limit=limit,
        )  # fmt: skip
        return [_signal(row) for row in found]


class SqlSigningKeys:
    """The key ring."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def ring(self) -> KeyRing:
        return KeyRing(tuple(_key(row) for row in await self._session.fetch("key_ring")))

    async def lock(self) -> None:
        await self._session.fetch("lock_keys")

    async def share(self, kid: str) -> bool:
        return bool(await self._session.fetch("share_active_key", kid=kid))

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


async def _each(session: Session, statement: str, items: Sequence[Parameters]) -> Sequence[Row]:
    return await session.fetch_each(statement, items) if items else []


async def _exactly(session: Session, statement: str, items: Sequence[Parameters]) -> None:
    written = await _each(session, statement, items)
    # The execution is locked, so this cannot fail unless a body decided on something that was not open.
    assert len(written) == len(items), "a wait was written over something that is closed"


def _grouped(found: Sequence[Row], by: str) -> dict[UUID, tuple[SignalFacts, ...]]:
    groups: dict[UUID, list[SignalFacts]] = {}
    for row in found:
        facts = SignalFacts(identity(row["id"]), row["waitpoint"], row["name"], row["source"], row["seq"])
        groups.setdefault(identity(row[by]), []).append(facts)
    return {id_: tuple(group) for id_, group in groups.items()}


def _suspension(row: Row) -> Suspension:
    return Suspension(
        id=identity(row["id"]), execution_id=identity(row["execution_id"]), number=row["number"],
        generation=row["generation"], epoch=row["epoch"], lease_id=identity(row["lease_id"]), key=row["key"],
        digest=row["digest"], condition=from_json(json.loads(row["condition"])), reason=SuspensionReason(row["reason"]),
        rest=Rest(row["rest"]), opened_at=when(row["opened_at"]), timeout_at=when(row["timeout_at"]),
        on_timeout=OnTimeout(row["on_timeout"]), resume_delay=span_of(row["resume_delay_us"]),
        closed_at=when(row["closed_at"]), closed_by=Trigger(row["closed_by"]) if row["closed_by"] else None,
    )  # fmt: skip


def _suspension_parameters(item: Suspension) -> dict[str, object]:
    names = (
        "id", "execution_id", "number", "generation", "epoch", "lease_id", "key", "digest", "reason", "rest",
        "opened_at", "timeout_at", "on_timeout", "closed_at", "closed_by",
    )  # fmt: skip
    return {name: getattr(item, name) for name in names} | {
        "condition": json.dumps(to_json(item.condition)),
        "resume_delay_us": micros(item.resume_delay),
    }


def waitpoint_of(row: Row) -> Waitpoint:
    """The waitpoint that a row holds."""
    token = TokenParts(
        kid=row["kid"], nonce=row["nonce"], hash=row["token_hash"], approver=row["approver"],
        ends_at=when(row["token_ends_at"]),
    ) if row["kid"] else None  # fmt: skip
    return Waitpoint(
        id=identity(row["id"]), execution_id=identity(row["execution_id"]), key=row["key"],
        kind=WaitpointKind(row["kind"]), state=WaitpointState(row["state"]), created_at=when(row["created_at"]),
        suspension=row["suspension"], token=token, expires_at=when(row["expires_at"]),
        child_id=identity(row["child_id"]), fires_at=when(row["fires_at"]), closed_at=when(row["closed_at"]),
        close_reason=row["close_reason"],
    )  # fmt: skip


def _waitpoint_parameters(item: Waitpoint) -> dict[str, object]:
    names = (
        "id", "execution_id", "key", "kind", "state", "suspension", "child_id", "fires_at", "created_at", "expires_at",
        "closed_at", "close_reason",
    )  # fmt: skip
    token = item.token
    return {name: getattr(item, name) for name in names} | {
        "kid": token and token.kid,
        "nonce": token and token.nonce,
        "token_hash": token and token.hash,
        "approver": token and token.approver,
        "token_ends_at": token and token.ends_at,
    }


def _signal(row: Row) -> Signal:
    return Signal(
        id=identity(row["id"]), execution_id=identity(row["execution_id"]), seq=row["seq"],
        waitpoint_id=identity(row["waitpoint_id"]), waitpoint=row["waitpoint"], name=row["name"],
        category=row["category"], source=row["source"], source_type=row["source_type"],
        source_identity=row["source_identity"], correlation=row["correlation"], payload=row["payload"],
        encoding=row["encoding"], key=row["key"], created_at=when(row["created_at"]),
        accepted_at=when(row["accepted_at"]), effect=Effect(row["effect"]), suspension=row["suspension"],
        counts=bool(row["counts"]),
    )  # fmt: skip


def _signal_parameters(item: Signal) -> dict[str, object]:
    names = (
        "id", "execution_id", "seq", "waitpoint_id", "waitpoint", "suspension", "counts", "name", "category", "source",
        "source_type", "source_identity", "correlation", "payload", "encoding", "key", "created_at", "accepted_at",
        "effect",
    )  # fmt: skip
    return {name: getattr(item, name) for name in names}


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
