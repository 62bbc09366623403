"""Check every stored flow against the model, independent of the order of racing calls."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from tests.concurrency.flow_model import (
    EdgePicture,
    FlowPicture,
    GroupPicture,
    MemberPicture,
    find_problems,
)
from tests.concurrency.soundness import assert_sound
from tests.stores import TestStore

Row = dict[str, Any]
Rows = Callable[[str], Awaitable[list[Row]]]

_FLOWS = "SELECT * FROM ff.flow"
_MEMBERS = """
    SELECT id, flow_id, parent_id, state, blocking_reason, started_at, cancelled_by, generation, failure_category,
        cancel_reason, (
            SELECT COUNT(*) FROM ff.execution AS parent JOIN ff.attempt AS a ON a.execution_id = parent.id
            WHERE parent.id = e.parent_id AND parent.state = 'completed'
                AND a.origin = 'replayed' AND a.started_at > e.created_at
        ) AS newer_runs
    FROM ff.execution AS e
"""
_EDGES = "SELECT * FROM ff.edge"
_GROUPS = "SELECT * FROM ff.edge_group"
_EVENTS = "SELECT flow_id, name FROM ff.event WHERE family = 'flow'"


async def assert_flows_sound(store: TestStore) -> None:
    """Assert that histories are sound, flows match their members, and each flow finished with exactly one event."""
    await assert_sound(store)
    pictures = await flow_pictures(store.query)
    wrong = [problem for picture in pictures.values() for problem in find_problems(picture)]
    assert not wrong, wrong[:10]
    finished = Counter(str(row["flow_id"]) for row in await store.query(_EVENTS) if row["name"] == "finished")
    for id_, picture in pictures.items():
        if not any(member.replayed for member in picture.members.values()) and not picture.cancelled:
            assert finished[id_] == (picture.finished is not None), (id_, finished[id_])


async def flow_pictures(rows: Rows, only: UUID | None = None) -> Mapping[str, FlowPicture]:
    """Return the pictures of all flows, or of one flow, by id."""
    where = f" WHERE flow_id = '{only}'" if only else ""
    flows = await rows(_FLOWS + (f" WHERE id = '{only}'" if only else ""))
    parts = [_by_flow(await rows(sql + where)) for sql in (_MEMBERS, _EDGES, _GROUPS)]
    return {str(flow["id"]): _picture(flow, *(part[str(flow["id"])] for part in parts)) for flow in flows}


def _picture(flow: Row, members: Sequence[Row], edges: Sequence[Row], groups: Sequence[Row]) -> FlowPicture:
    policy = flow["cancel_policy"]
    return FlowPicture(
        id=str(flow["id"]),
        sealed=bool(flow["sealed"]),
        cancelled=policy is not None,
        frozen=policy is not None and policy != "flow_only",
        finished=flow["finished"],
        members={str(row["id"]): _member(row) for row in members},
        edges=tuple(_edge(row) for row in edges),
        groups={(group.member, group.seq): group for group in map(_group, groups)},
        counted=(flow["open_members"], flow["ended_badly"]),
    )


def _member(row: Row) -> MemberPicture:
    return MemberPicture(
        id=str(row["id"]),
        state=row["state"],
        blocking_reason=str(row["blocking_reason"]),
        started=row["started_at"] is not None,
        cancelled_by=row["cancelled_by"],
        generation=row["generation"],
        submitted_again=row["newer_runs"] > 0,
        given_up=row["cancelled_by"] == "flow_sibling" and row["cancel_reason"] == "sibling_group_impossible",
        after_failure=row["state"] == "skipped" and row["failure_category"] == "upstream_failed",
    )


def _edge(row: Row) -> EdgePicture:
    kind = "on_failure_or_skip" if row["or_skip"] else row["kind"]
    return EdgePicture(str(row["upstream_id"]), str(row["downstream_id"]), row["seq"], kind, row["state"])


def _group(row: Row) -> GroupPicture:
    return GroupPicture(
        member=str(row["downstream_id"]),
        seq=row["seq"],
        join=row["join_kind"],
        k=row["k"],
        siblings=row["siblings"],
        state=row["state"],
        n=row["n"],
        satisfied=row["satisfied"],
        impossible=row["impossible"],
        draft=bool(row["draft"]),
    )


def _by_flow(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    rows_by_flow: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        rows_by_flow[str(row["flow_id"])].append(row)
    return rows_by_flow
