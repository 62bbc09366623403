"""Shared reads in SQL. Of a look, signals, ends of executions, overridden waits and the time are rows."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from flowfabric.core.flow_outcomes import Input
from flowfabric.core.looking import Look, Looking, Override, Recalling
from flowfabric.core.records import RecordedStep
from flowfabric.core.states import State
from flowfabric.core.views import Glance, Outcome, failure_of
from flowfabric.sqlstore.rows import identity, step, when
from flowfabric.sqlstore.session import Row, Session
from flowfabric.sqlstore.waiting import signal_of


class SqlLooks:
    """What callers ask for at the same time."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def look(self, namespace: str, asked: Sequence[Looking], most: int) -> dict[UUID, Look]:
        shared = {"namespace": namespace, "most": most, "now": self._session.bound_now}
        found = _by_execution(await self._session.fetch_each("look", [_looking(item) | shared for item in asked]))
        return {id_: _look(rows) for id_, rows in found.items()}

    async def journals(self, namespace: str, asked: Sequence[Recalling]) -> dict[UUID, list[RecordedStep]]:
        items = [{"namespace": namespace, "execution_id": item.execution_id, "limit": item.most} for item in asked]
        found = _by_execution(await self._session.fetch_each("journal", items))
        return {id_: [step(row) for row in rows if row["seq"] is not None] for id_, rows in found.items()}

    async def glances(self, namespace: str, ids: Sequence[UUID]) -> dict[UUID, Glance]:
        found = await self._session.fetch("glances", namespace=namespace, ids=list(ids))
        return {identity(row["id"]): _glance(row) for row in found}

    async def inputs(self, namespace: str, ids: Sequence[UUID]) -> dict[UUID, dict[str, Input]]:
        found: dict[UUID, dict[str, Input]] = {}
        for row in await self._session.fetch("inputs", namespace=namespace, ids=list(ids)):
            of_member = found.setdefault(identity(row["member_id"]), {})
            if row["upstream_id"] is not None:
                of_member[row["input"]] = _input(row)
        return found


def _looking(asked: Looking) -> dict[str, object]:
    keys, places = list(asked.places), list(asked.places.values())
    return {"execution_id": asked.execution_id, "keys": keys, "places": places, "children": list(asked.children)}


def _by_execution(found: Sequence[Row]) -> dict[UUID, list[Row]]:
    grouped: dict[UUID, list[Row]] = {}
    for row in found:
        grouped.setdefault(identity(row["execution_id"]), []).append(row)
    return grouped


def _input(row: Row) -> Input:
    ended_at = when(row["ended_at"])
    outcome = None if ended_at is None else State(row["state"])
    return Input(identity(row["upstream_id"]), outcome, row["result"], row["encoding"], ended_at)


def _glance(row: Row) -> Glance:
    state = State(row["state"])
    if row["ended_at"] is None:
        return Glance(state, row["hold_reason"], None)
    failure = failure_of(state, row["failure_message"], row["failure_category"], row["failure_detail"])
    outcome = Outcome(
        state=state, result=row["result"], encoding=row["encoding"], failure=failure,
        cancelled_by=row["cancelled_by"], cancel_reason=row["cancel_reason"], ended_at=when(row["ended_at"]),
    )  # fmt: skip
    return Glance(state, None, outcome)


def _look(found: Sequence[Row]) -> Look:
    signals = tuple(signal_of(row) for row in found if row["part"] == "signal")
    children = {identity(row["id"]): _outcome(row) for row in found if row["part"] == "child"}
    overridden = {row["waitpoint"]: _override(row) for row in found if row["part"] == "override"}
    [now] = [when(row["accepted_at"]) for row in found if row["part"] == "time"]
    return Look(now, signals, children, overridden)


def _outcome(row: Row) -> Outcome:
    state, left = State(row["name"]), row["payload"]
    return Outcome(
        state=state, result=left if state is State.COMPLETED else None, encoding=row["encoding"],
        cancelled_by=row["source_type"], cancel_reason=row["source_identity"], ended_at=when(row["accepted_at"]),
        failure=failure_of(state, row["source"], row["category"], left),
    )  # fmt: skip


def _override(row: Row) -> Override:
    return Override(
        by=row["source_identity"], reason=row["source"], suspension_id=identity(row["id"]), at=when(row["accepted_at"])
    )
