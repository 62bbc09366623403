"""Tests for building a flow: members, edges, joins, and rejected graphs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowfabric import App, Flow, InvalidRequest, ValueRefused
from flowfabric.engine import EdgeKind, JoinKind, Siblings
from flowfabric.values.placeholders import ENCODING, decode_inputs, fill

app = App("flows.db")


@app.task
async def extract(region: str) -> list[int]:
    return [len(region)]


@app.task
async def summarise(parts: list[list[int]], title: str = "sum") -> str:
    return title


@app.task
async def publish(parts_by_region: dict[str, list[int]], number: int = 1) -> None: ...


def get_member_spec(flow: Flow, name: str) -> Any:
    return flow._graph().members[name]


def test_members_are_named_after_their_tasks_and_numbered() -> None:
    flow = app.flow("etl")
    nodes = [flow.add(extract, "eu"), flow.add(extract, "us"), flow.add(extract.options(name="asia"), "asia")]
    assert [node.name for node in nodes] == ["extract", "extract#2", "asia"]


def test_reference_adds_an_edge_and_an_input_placeholder() -> None:
    flow = app.flow()
    a, b = flow.add(extract, "eu"), flow.add(extract, "us")
    flow.add(summarise, [a.result, [1, 2], b.result])
    member = get_member_spec(flow, "summarise")
    assert [(edge.upstream, edge.kind) for edge in member.edges] == [
        ("extract", EdgeKind.ON_SUCCESS),
        ("extract#2", EdgeKind.ON_SUCCESS),
    ]
    assert member.join.kind is JoinKind.ALL_OF
    assert member.submission.encoding == ENCODING
    inputs, placeholders = decode_inputs(member.submission.payload)
    assert inputs == {"parts": [None, [1, 2], None], "title": "sum"}
    for placeholder in placeholders:
        fill(inputs, placeholder, [7])
    assert inputs == {"parts": [[7], [1, 2], [7]], "title": "sum"}


def test_references_inside_dicts_become_placeholders() -> None:
    flow = app.flow()
    a = flow.add(extract, "eu")
    flow.add(publish, {"eu": a.result, "us": [1]})
    _, [placeholder] = decode_inputs(get_member_spec(flow, "publish").submission.payload)
    assert placeholder.path == ("parts_by_region", "eu")


def test_arguments_without_references_are_stored_as_plain_json() -> None:
    flow = app.flow()
    flow.add(extract, "eu")
    submission = get_member_spec(flow, "extract").submission
    assert (submission.encoding, json.loads(submission.payload)) == ("json", {"region": "eu"})


def test_arguments_beside_a_reference_are_validated() -> None:
    flow = app.flow()
    a = flow.add(extract, "eu")
    with pytest.raises(ValueRefused, match="number"):
        flow.add(publish, {"eu": a.result}, "one")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        flow.add(publish, {"eu": a.result, "us": object()})  # type: ignore[dict-item]


def test_first_is_an_any_of_join_that_cancels_the_rest() -> None:
    flow = app.flow()
    a, b = flow.add(extract, "eu"), flow.add(extract, "us")
    flow.add(summarise, [flow.first(a, b)])
    flow.add(summarise, flow.quorum(2, a, b, cancel_rest=False))
    first, quorum = get_member_spec(flow, "summarise"), get_member_spec(flow, "summarise#2")
    assert (first.join.kind, first.join.siblings) == (JoinKind.ANY_OF, Siblings.CANCEL_REMAINING)
    assert (quorum.join.kind, quorum.join.k, quorum.join.siblings) == (JoinKind.QUORUM, 2, Siblings.LET_RUN)


def test_a_member_has_one_join() -> None:
    flow = app.flow()
    a, b, c = (flow.add(extract, where) for where in ("eu", "us", "asia"))
    with pytest.raises(InvalidRequest, match="one join"):
        flow.add(summarise, [flow.first(a, b), c.result])
    joined = flow.add(summarise, [flow.first(a, b)])
    with pytest.raises(InvalidRequest, match="already has a join"):
        flow.after(joined, c)


def test_after_adds_an_edge_of_the_given_kind() -> None:
    flow = app.flow()
    a, b = flow.add(extract, "eu"), flow.add(extract, "us")
    flow.after(b, a, on="failure")
    [edge] = get_member_spec(flow, "extract#2").edges
    assert (edge.upstream, edge.kind) == ("extract", EdgeKind.ON_FAILURE_OR_SKIP)
    with pytest.raises(InvalidRequest, match="keep only one"):
        flow.after(b, a, on="completion")


def test_members_of_another_flow_are_rejected() -> None:
    a = app.flow("one").add(extract, "eu")
    flow = app.flow("two")
    for invalid_call in (lambda: flow.add(summarise, [a.result]), lambda: flow.first(a), lambda: flow.after(a)):
        with pytest.raises(InvalidRequest, match="another flow"):
            invalid_call()


def test_duplicate_member_name_is_rejected() -> None:
    flow = app.flow()
    flow.add(extract.options(name="a"), "eu")
    with pytest.raises(InvalidRequest, match="already"):
        flow.add(extract.options(name="a"), "us")


def test_options_of_single_executions_are_rejected() -> None:
    flow = app.flow()
    for task in (extract.options(key="k"), extract.options(detached=True), extract.options(connection=object())):
        with pytest.raises(InvalidRequest, match="do not apply to members of a flow"):
            flow.add(task, "eu")


def test_result_cannot_be_used_before_the_flow_runs() -> None:
    result = app.flow().add(extract, "eu").result
    with pytest.raises(InvalidRequest, match="known only when the flow runs"):
        bool(result)
    with pytest.raises(InvalidRequest, match="known only when the flow runs"):
        list(result)
