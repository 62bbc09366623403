"""Suspensions, waitpoints and signals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from flowfabric.core.tokens.key_ring import KeyRing
from flowfabric.core.waits.condition_json import from_json, to_json
from flowfabric.core.waits.evaluate import SignalFacts
from flowfabric.core.waits.records import (
    SKIPPED,
    SignalBinding,
    SignalObservation,
    SignalUnbinding,
    StoredSignal,
    Suspension,
    TokenParts,
    WaitChanges,
    Waitpoint,
)
from flowfabric.store.records import Closing, ReceivedSignals, SignalLookup, SignalQueue, SuspensionName
from flowfabric.store.rows import (
    parameters_of,
    parse_json,
    picker,
    row_reader,
    to_bytes,
    to_datetime,
    to_microseconds,
    to_uuid,
)
from flowfabric.store.session import AggregateStore, Batch, Parameters, Row, Session
from flowfabric.store.signing_keys import READ_AND_SHARE_RING, READ_RING, to_key_ring, to_shared_key_ring


class WaitStore(AggregateStore):
    """Reads and writes suspensions, waitpoints and signals."""

    async def apply(self, changes: Sequence[WaitChanges]) -> None:
        """Write changes of suspensions, waitpoints and signals, or raise.

        The rows of their executions must be new, or the same transaction must write these rows too. Otherwise
        optimistic writes would miss the changes; see `OptimisticSnapshot`.
        """
        await write_waits(self._session, changes)

    async def end(self, execution_ids: Sequence[UUID], now: datetime, *, were_active: bool = False) -> None:
        """Close the open waitpoints of ended executions. Without `were_active`, also close their open suspensions."""
        closing = Closing(were_active=execution_ids) if were_active else Closing(others=execution_ids)
        await self._session.run_batches(beside=closing_statements(closing), now=now)

    async def read_for_suspend(
        self, names: Sequence[SuspensionName], *, minting: bool
    ) -> tuple[dict[UUID, list[Waitpoint]], dict[UUID, Suspension], KeyRing | None]:
        """Return open waitpoints, existing suspensions with these names, and the key ring, all by execution id.

        With `minting`, the key ring is share-locked, and has the value None without an active key.
        """
        ids = [name.execution_id for name in names]
        named = {
            "execution_ids": ids,
            "ids": [name.id for name in names],
            "pairs": [f"{name.execution_id}{name.id}" for name in names],
            "keys": [name.key for name in names if name.key is not None],
        }
        waitpoints, suspensions, key_ring = await self._session.fetch_all(
            ("open_waitpoints", {"execution_ids": ids}),
            ("suspensions_named", named),
            (READ_AND_SHARE_RING if minting else READ_RING, {}),
        )
        return (
            _waitpoints_by_execution(waitpoints),
            _find_named([to_suspension(row) for row in suspensions], names),
            to_shared_key_ring(key_ring) if minting else to_key_ring(key_ring),
        )

    async def read_for_signals(
        self, execution_ids: Sequence[UUID], lookups: Sequence[SignalLookup]
    ) -> tuple[dict[UUID, list[Waitpoint]], dict[UUID, Suspension], ReceivedSignals, KeyRing]:
        """Return the open waitpoints and suspensions of executions, their signals, and the key ring."""
        ids = {"execution_ids": list(execution_ids)}
        waitpoints, suspensions, signals, key_ring = await self._session.fetch_all(
            ("open_waitpoints", ids),
            ("open_suspensions", ids),
            (_RECEIVED_SIGNALS, _received_parameters(execution_ids, lookups)),
            (READ_RING, {}),
        )
        return (
            _waitpoints_by_execution(waitpoints),
            _suspensions_by_execution(suspensions),
            to_received_signals(signals, lookups),
            to_key_ring(key_ring),
        )

    async def open_suspensions(self, execution_ids: Sequence[UUID]) -> dict[UUID, Suspension]:
        """Return the open suspension of each execution that has one."""
        return _suspensions_by_execution(
            await self._session.fetch("open_suspensions", execution_ids=list(execution_ids))
        )

    async def last_suspension(
        self, execution_id: UUID, *, id_: UUID | None = None, lease_id: UUID | None = None, number: int | None = None
    ) -> Suspension | None:
        """Return the newest suspension of an execution.

        With `id_` or `number`, return that suspension. With `lease_id`, return the newest suspension that this lease
        opened.
        """
        rows = await self._session.fetch(
            "last_suspension", execution_id=execution_id, id=id_, lease_id=lease_id, number=number
        )
        return to_suspension(rows[0]) if rows else None

    async def open_waitpoints(self, execution_ids: Sequence[UUID]) -> dict[UUID, list[Waitpoint]]:
        """Return the open waitpoints of each execution that has any, in order of their keys."""
        return _waitpoints_by_execution(await self._session.fetch("open_waitpoints", execution_ids=list(execution_ids)))

    async def bound_waitpoints(self, execution_id: UUID, number: int) -> list[Waitpoint]:
        """Return the waitpoints that suspension `number` has bound, including closed waitpoints."""
        rows = await self._session.fetch("bound_waitpoints", execution_id=execution_id, number=number)
        return [to_waitpoint(row) for row in rows]

    async def waitpoints(self, ids: Sequence[UUID]) -> dict[UUID, Waitpoint]:
        """Return the waitpoints with these ids that exist."""
        rows = await self._session.fetch("get_waitpoints", ids=list(ids))
        return {waitpoint.id: waitpoint for waitpoint in map(to_waitpoint, rows)}

    async def last_waitpoint(self, execution_id: UUID, key: str, by: datetime) -> Waitpoint | None:
        """Return the newest waitpoint with this key that existed at the time `by`, whether open or closed."""
        rows = await self._session.fetch("last_waitpoint", execution_id=execution_id, key=key, by=by)
        return to_waitpoint(rows[0]) if rows else None

    async def list_waitpoints(self, execution_id: UUID, after: UUID, limit: int) -> list[Waitpoint]:
        """Return the waitpoints of an execution with an id above `after`, in order."""
        rows = await self._session.fetch("list_waitpoints", execution_id=execution_id, after=after, limit=limit)
        return [to_waitpoint(row) for row in rows]

    async def declared_signals(self, execution_ids: Sequence[UUID]) -> dict[UUID, dict[str, str | None]]:
        """Return, for executions with standing waitpoints, the keys of these and the schemas of their payloads."""
        declared: dict[UUID, dict[str, str | None]] = {}
        for row in await self._session.fetch("standing_waitpoints", execution_ids=list(execution_ids)):
            declared.setdefault(to_uuid(row["execution_id"]), {})[row["key"]] = row["payload_schema"]
        return declared

    async def available_signals(
        self, queues: Sequence[SignalQueue], positioned: Sequence[Waitpoint]
    ) -> tuple[dict[UUID, tuple[SignalFacts, ...]], dict[UUID, tuple[SignalFacts, ...]]]:
        """Return the first signals of queues, which belong to no suspension, in order of acceptance.

        Also return, for the waitpoints in `positioned`, the signals that their last suspension observed.
        """
        rows = await self._session.fetch(
            "available_signals",
            waitpoint_ids=[queue.waitpoint_id for queue in queues],
            places=[queue.after for queue in queues],
            limits=[queue.limit for queue in queues],
            skipped=sorted({seq for queue in queues for seq in queue.skipped}),
            positioned_ids=[waitpoint.id for waitpoint in positioned],
            execution_ids=[waitpoint.execution_id for waitpoint in positioned],
        )
        unused, observed = [row for row in rows if not row["observed"]], [row for row in rows if row["observed"]]
        return _group_facts(unused, "waitpoint_id"), _group_facts(observed, "waitpoint_id")

    async def skip_signal(self, execution_id: UUID, seq: int) -> StoredSignal | None:
        """Exclude a signal from all waits, and return the signal. Return None for an unknown or excluded signal."""
        rows = await self._session.fetch("skip_signal", execution_id=execution_id, seq=seq, skipped=SKIPPED)
        return to_signal(rows[0]) if rows else None

    async def restore_skipped_signals(self, execution_id: UUID) -> None:
        """Make the skipped signals of an execution available again."""
        await self._session.fetch("restore_skipped_signals", execution_id=execution_id, skipped=SKIPPED)

    async def skipped_signals(self, execution_id: UUID) -> int:
        """Return how many signals of an execution were skipped."""
        [row] = await self._session.fetch("count_skipped_signals", execution_id=execution_id, skipped=SKIPPED)
        number: int = row["number"]
        return number

    async def with_unused_signals(self, waitpoint_ids: Sequence[UUID]) -> set[UUID]:
        """Return which of these waitpoints have signals that belong to no suspension."""
        rows = await self._session.fetch("waitpoints_with_signals", waitpoint_ids=list(waitpoint_ids))
        return {to_uuid(row["waitpoint_id"]) for row in rows}

    async def received_signals(
        self, execution_ids: Sequence[UUID], lookups: Sequence[SignalLookup] = ()
    ) -> ReceivedSignals:
        """Return the signals that count in open suspensions, and which of `lookups` were received before."""
        return to_received_signals(
            await self._session.fetch(_RECEIVED_SIGNALS, **_received_parameters(execution_ids, lookups)), lookups
        )

    async def keyed_signals(
        self, waitpoint_id: UUID, names: Sequence[str], limit: int, *, id_: UUID | None = None
    ) -> list[StoredSignal]:
        """Return the signals of a waitpoint that have an idempotency key and one of these names, in order.

        With `id_`, return only that signal.
        """
        rows = await self._session.fetch(
            "keyed_signals", waitpoint_id=waitpoint_id, names=list(names), id=id_, limit=limit
        )
        return [to_signal(row) for row in rows]

    async def signals(
        self, requests: Sequence[tuple[UUID, int, int]], *, include_unmatched: bool, limit: int
    ) -> dict[UUID, list[StoredSignal]]:
        """Return the signals of one suspension per execution, in order of acceptance.

        A request is an execution id, the number of its suspension, and the signal `seq` after which to begin. At most
        `limit` signals are returned for each request. Without `include_unmatched`, only signals that counted are
        returned.
        """
        shared = {"include_unmatched": include_unmatched, "limit": limit}
        parameters = [
            {"execution_id": id_, "number": number, "after": after, **shared} for id_, number, after in requests
        ]
        signals: dict[UUID, list[StoredSignal]] = {}
        for signal in map(to_signal, await self._session.fetch_each("signals_of", parameters)):
            signals.setdefault(signal.execution_id, []).append(signal)
        return signals


async def write_waits(session: Session, changes: Sequence[WaitChanges], *beside: Batch) -> None:
    """Write changes of waits together with other batches."""
    *others, added = wait_batches(changes)
    closes_first = any(change.moved for change in changes)
    await session.write(*beside, *others, *(() if closes_first else (added,)))
    if closes_first:
        # An expired waitpoint must be closed before a new waitpoint with the same key is added.
        await session.write(added)
    await session.fetch_each(
        "bind_signals", [_binding_parameters(binding) for change in changes for binding in change.bound]
    )
    await session.fetch_each(
        "observe_signals", [_observation_parameters(item) for change in changes for item in change.observed]
    )
    unbound = [unbinding for change in changes for unbinding in change.unbound]
    for statement, only_counting in (("unbind_signals", False), ("unbind_counting_signals", True)):
        await session.fetch_each(
            statement, [_unbinding_parameters(one) for one in unbound if one.only_counting is only_counting]
        )


def _binding_parameters(binding: SignalBinding) -> dict[str, object]:
    return {
        "number": binding.number,
        "waitpoint_ids": list(binding.waitpoint_ids),
        "counting": list(binding.counting),
    }


def _observation_parameters(observation: SignalObservation) -> dict[str, object]:
    return {
        "execution_id": observation.execution_id,
        "number": observation.number,
        "counting": list(observation.counting),
        "touched": [*observation.counting, *observation.released],
    }


def _unbinding_parameters(unbinding: SignalUnbinding) -> dict[str, object]:
    ids = list(unbinding.waitpoint_ids)
    return {"execution_id": unbinding.execution_id, "number": unbinding.number, "waitpoint_ids": ids}


def closing_statements(closing: Closing) -> list[tuple[str, Parameters]]:
    """Return the statements that close open suspensions and waitpoints of ended executions."""
    ids = [*closing.were_active, *closing.others]
    suspensions = [("end_suspensions", {"execution_ids": list(closing.others)})] if closing.others else []
    return [*suspensions, ("end_waitpoints", {"execution_ids": ids})] if ids else []


def touched_executions(changes: Sequence[WaitChanges]) -> set[UUID]:
    """Return the executions whose waits change."""
    ids: set[UUID] = set()
    for change in changes:
        suspensions, waitpoints = (*change.opened, *change.changed), (*change.added, *change.moved)
        ids.update(row.execution_id for row in suspensions)
        ids.update(row.execution_id for row in waitpoints)
        ids.update(row.execution_id for row in change.received)
        ids.update(row.execution_id for row in change.unbound)
    return ids


def wait_batches(changes: Sequence[WaitChanges]) -> list[Batch]:
    """Return the rows of waits to write, as one batch per statement. The batch of new waitpoints comes last."""
    return [
        ("open_suspension", [_suspension_parameters(row) for change in changes for row in change.opened]),
        ("change_suspension", [_change_parameters(row) for change in changes for row in change.changed]),
        ("move_waitpoint", [_move_parameters(row) for change in changes for row in change.moved]),
        ("add_signal", [_signal_parameters(row) for change in changes for row in change.received]),
        ("add_waitpoint", [_waitpoint_parameters(row) for change in changes for row in change.added]),
    ]


def _waitpoints_by_execution(rows: Sequence[Row]) -> dict[UUID, list[Waitpoint]]:
    grouped: dict[UUID, list[Waitpoint]] = {}
    for waitpoint in map(to_waitpoint, rows):
        grouped.setdefault(waitpoint.execution_id, []).append(waitpoint)
    return grouped


def _suspensions_by_execution(rows: Sequence[Row]) -> dict[UUID, Suspension]:
    return {suspension.execution_id: suspension for suspension in map(to_suspension, rows)}


def _find_named(suspensions: Sequence[Suspension], names: Sequence[SuspensionName]) -> dict[UUID, Suspension]:
    """Return, by execution id, the suspension that has the key of the name, or else the one that has its id."""
    if not suspensions:
        return {}
    by_key = {(row.execution_id, row.generation, row.key): row for row in suspensions if row.key is not None}
    by_id = {(row.execution_id, row.id): row for row in suspensions}
    found = {
        name.execution_id: by_key.get((name.execution_id, name.generation, name.key or ""))
        or by_id.get((name.execution_id, name.id))
        for name in names
    }
    return {id_: suspension for id_, suspension in found.items() if suspension is not None}


_RECEIVED_SIGNALS = "counting_and_accepted_signals"


def _received_parameters(execution_ids: Sequence[UUID], lookups: Sequence[SignalLookup]) -> Parameters:
    return {
        "execution_ids": list(execution_ids),
        "ids": [lookup.id for lookup in lookups],
        "waitpoint_ids": [lookup.waitpoint_id for lookup in lookups if lookup.waitpoint_id is not None],
        "keys": [lookup.key for lookup in lookups if lookup.key is not None],
    }


def to_received_signals(rows: Sequence[Row], lookups: Sequence[SignalLookup]) -> ReceivedSignals:
    """Return the signals that count towards open suspensions, and the earlier signal for each of `lookups`, if any."""
    counting = [row for row in rows if row["counting"]]
    accepted = [row for row in rows if not row["counting"]]
    by_id = {(to_uuid(row["execution_id"]), to_uuid(row["id"])): to_uuid(row["id"]) for row in accepted}
    by_key = {(to_uuid(row["waitpoint_id"]), row["key"]): to_uuid(row["id"]) for row in accepted if row["key"]}
    earlier = {
        lookup.execution_id: by_id.get((lookup.execution_id, lookup.id))
        or by_key.get((lookup.waitpoint_id, lookup.key))
        for lookup in lookups
    }
    return ReceivedSignals(
        _group_facts(counting, "execution_id"), {key: id_ for key, id_ in earlier.items() if id_ is not None}
    )


def _group_facts(rows: Sequence[Row], by: str) -> dict[UUID, tuple[SignalFacts, ...]]:
    groups: dict[UUID, list[SignalFacts]] = {}
    for row in rows:
        facts = SignalFacts(to_uuid(row["id"]), row["waitpoint"], row["name"], row["source"], row["seq"])
        groups.setdefault(to_uuid(row[by]), []).append(facts)
    return {id_: tuple(group) for id_, group in groups.items()}


def _to_token(row: Row) -> TokenParts | None:
    if not row["kid"]:
        return None
    return TokenParts(
        kid=row["kid"],
        nonce=to_bytes(row["nonce"]),
        hash=to_bytes(row["token_hash"]),
        approver=row["approver"],
        ends_at=to_datetime(row["token_ends_at"]),
    )


to_suspension = row_reader(
    Suspension, condition=lambda row: from_json(parse_json(row["condition"])), resume_delay="resume_delay_us"
)
to_waitpoint = row_reader(Waitpoint, token=_to_token)
to_signal = row_reader(StoredSignal)
_suspension_columns = parameters_of(Suspension, without=["condition", "resume_delay"])
_waitpoint_columns = parameters_of(Waitpoint, without=["token"])
_signal_parameters = parameters_of(StoredSignal)
_change_parameters = picker("execution_id", "number", "timeout_at", "closed_at", "closed_by")


def _suspension_parameters(suspension: Suspension) -> dict[str, object]:
    return _suspension_columns(suspension) | {
        "condition": json.dumps(to_json(suspension.condition)),
        "resume_delay_us": to_microseconds(suspension.resume_delay),
    }


def _waitpoint_parameters(waitpoint: Waitpoint) -> dict[str, object]:
    token = waitpoint.token
    return _waitpoint_columns(waitpoint) | {
        "kid": token and token.kid,
        "nonce": token and token.nonce,
        "token_hash": token and token.hash,
        "approver": token and token.approver,
        "token_ends_at": token and token.ends_at,
    }


def _move_parameters(waitpoint: Waitpoint) -> dict[str, object]:
    return {"waitpoint_id": waitpoint.id} | _waitpoint_parameters(waitpoint)
