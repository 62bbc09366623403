"""Reads for several callers by one statement, and optimistic writes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from flowfabric.core.executions.records import RecordedStep
from flowfabric.core.executions.states import State
from flowfabric.core.executions.views import LeaseSnapshot, Outcome, StateSnapshot, make_failure
from flowfabric.core.flows.outcomes import Input
from flowfabric.core.waits.snapshot import JournalRequest, Override, WaitSnapshot, WaitSnapshotRequest
from flowfabric.store.commit_hints import CommitHints
from flowfabric.store.executions import ExecutionStore, WriteSet
from flowfabric.store.records import OptimisticSnapshot, SignalLookup
from flowfabric.store.rows import attempt_parameters, event_parameters, to_datetime, to_step, to_uuid
from flowfabric.store.session import AggregateStore, Batch, Row, Session
from flowfabric.store.waits import WaitStore, to_signal, wait_batches


class SnapshotStore(AggregateStore):
    """Batched reads. No execution may occur twice in one call."""

    async def read_waits(
        self, namespace: str, requests: Sequence[WaitSnapshotRequest], limit: int
    ) -> dict[UUID, WaitSnapshot]:
        """Return, for each existing execution, everything that its running worker may wait for.

        These are signals after the requested sequence numbers (at most `limit` per waitpoint, unless the request has
        another limit), outcomes of children, and waits that an operator overrode.
        """
        shared = {"namespace": namespace, "now": self._session.bound_now}
        parameters = [_request_parameters(request, limit) | shared for request in requests]
        grouped = _group_by_execution(await self._session.fetch_each("look", parameters))
        return {id_: _to_wait_snapshot(rows) for id_, rows in grouped.items()}

    async def read_journals(self, namespace: str, requests: Sequence[JournalRequest]) -> dict[UUID, list[RecordedStep]]:
        """Return the valid steps of each existing execution."""
        parameters = [
            {"namespace": namespace, "execution_id": request.execution_id, "limit": request.limit}
            for request in requests
        ]
        grouped = _group_by_execution(await self._session.fetch_each("journal", parameters))
        return {id_: [to_step(row) for row in rows if row["seq"] is not None] for id_, rows in grouped.items()}

    async def peek(self, namespace: str, ids: Sequence[UUID]) -> dict[UUID, StateSnapshot]:
        """Return the states of executions, with the outcomes of ended ones."""
        rows = await self._session.fetch("glances", namespace=namespace, ids=list(ids))
        return {to_uuid(row["id"]): _to_state_snapshot(row) for row in rows}

    async def peek_leases(self, namespaces: Sequence[str], ids: Sequence[UUID]) -> dict[UUID, LeaseSnapshot]:
        """Return the live leases and the requested cancels of executions."""
        rows = await self._session.fetch("peek_leases", namespaces=list(namespaces), ids=list(ids))
        return {
            to_uuid(row["id"]): LeaseSnapshot(to_uuid(row["lease_id"]), to_datetime(row["cancel_due_at"]))
            for row in rows
        }

    async def read_inputs(self, namespace: str, ids: Sequence[UUID]) -> dict[UUID, dict[str, Input]]:
        """Return the outcomes of the upstream members of each execution, by input name."""
        inputs: dict[UUID, dict[str, Input]] = {}
        for row in await self._session.fetch("inputs", namespace=namespace, ids=list(ids)):
            member_inputs = inputs.setdefault(to_uuid(row["member_id"]), {})
            if row["upstream_id"] is not None:
                member_inputs[row["input"]] = _to_input(row)
        return inputs


def _request_parameters(request: WaitSnapshotRequest, limit: int) -> dict[str, object]:
    keys, places = list(request.places), list(request.places.values())
    return {
        "execution_id": request.execution_id,
        "keys": keys,
        "places": places,
        "limits": [request.limits.get(key, limit) for key in keys],
        "children": list(request.children),
        "skipped": list(request.skipped),
    }


def _group_by_execution(rows: Sequence[Row]) -> dict[UUID, list[Row]]:
    grouped: dict[UUID, list[Row]] = {}
    for row in rows:
        grouped.setdefault(to_uuid(row["execution_id"]), []).append(row)
    return grouped


def _to_input(row: Row) -> Input:
    ended_at = to_datetime(row["ended_at"])
    outcome = None if ended_at is None else State(row["state"])
    return Input(to_uuid(row["upstream_id"]), outcome, row["result"], row["encoding"], ended_at)


def _to_state_snapshot(row: Row) -> StateSnapshot:
    state = State(row["state"])
    if row["ended_at"] is None:
        return StateSnapshot(state, row["hold_reason"], None)
    failure = make_failure(state, row["failure_message"], row["failure_category"], row["failure_detail"])
    outcome = Outcome(
        state=state,
        result=row["result"],
        encoding=row["encoding"],
        failure=failure,
        cancelled_by=row["cancelled_by"],
        cancel_reason=row["cancel_reason"],
        ended_at=to_datetime(row["ended_at"]),
    )
    return StateSnapshot(state, None, outcome)


def _to_wait_snapshot(rows: Sequence[Row]) -> WaitSnapshot:
    signals = tuple(to_signal(row) for row in rows if row["part"] == "signal")
    children = {to_uuid(row["id"]): _to_outcome(row) for row in rows if row["part"] == "child"}
    overridden = {row["waitpoint"]: _to_override(row) for row in rows if row["part"] == "override"}
    [now] = [to_datetime(row["accepted_at"]) for row in rows if row["part"] == "time"]
    return WaitSnapshot(now, signals, children, overridden)


def _to_outcome(row: Row) -> Outcome:
    state, payload = State(row["name"]), row["payload"]
    return Outcome(
        state=state,
        result=payload if state is State.COMPLETED else None,
        encoding=row["encoding"],
        cancelled_by=row["source_type"],
        cancel_reason=row["source_identity"],
        ended_at=to_datetime(row["accepted_at"]),
        failure=make_failure(state, row["source"], row["category"], payload),
    )


def _to_override(row: Row) -> Override:
    return Override(
        by=row["source_identity"],
        reason=row["source"],
        suspension_id=to_uuid(row["id"]),
        at=to_datetime(row["accepted_at"]),
    )


class OptimisticStore(AggregateStore):
    """Reads and writes without locks.

    This class is for a database with one writer at a time, where ordinary statements are enough. A backend with many
    writers overrides all methods.
    """

    def __init__(self, session: Session, hints: CommitHints, executions: ExecutionStore, waits: WaitStore) -> None:
        super().__init__(session, hints)
        self._executions = executions
        self._waits = waits

    async def read_for_signals(self, lookups: Sequence[SignalLookup]) -> OptimisticSnapshot | None:
        """Read all that is needed to deliver these signals. No two of the signals may go to the same execution."""
        ids = [lookup.execution_id for lookup in lookups]
        executions = await self._executions.lock_free(ids)
        if not executions:
            return None
        waitpoints, suspensions, received, key_ring = await self._waits.read_for_signals(ids, lookups)
        return OptimisticSnapshot(
            now=await self._session.now(),
            executions=executions,
            row_versions={},
            waitpoints=waitpoints,
            suspensions=suspensions,
            received=received,
            key_ring=key_ring,
        )

    async def write(self, write_set: WriteSet, snapshot: OptimisticSnapshot) -> Collection[UUID]:
        """Write the changes of those executions whose rows are not locked and have not changed since `snapshot`.

        Return the ids of these executions. One statement writes everything.
        """
        await self._session.write(*self._batches(write_set))
        self._hints.note_events(write_set.events)
        return {after.id for _, after in write_set.executions}

    def _batches(self, write_set: WriteSet) -> list[Batch]:
        """Return all rows to write, as one batch for each statement."""
        assert not any(changes.bound or changes.observed or changes.unbound for changes in write_set.waits), (
            "bindings are written by separate statements"
        )
        return [
            *self._executions.save_batches(write_set.executions),
            ("append_attempt", [attempt_parameters(changes) for changes in write_set.attempts]),
            ("append_event", [event_parameters(changes) for changes in write_set.events]),
            *wait_batches(write_set.waits),
        ]
