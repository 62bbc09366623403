"""Tests for building a flow graph and for rejecting invalid graphs."""

from __future__ import annotations

import random
from typing import Any

import pytest

from flowfabric.engine import (
    Edge,
    EdgeKind,
    Graph,
    InvalidRequest,
    Join,
    JoinKind,
    Member,
    Siblings,
    all_of,
    any_of,
    quorum,
)


def raises_code(code: str) -> pytest.RaisesExc[InvalidRequest]:
    return pytest.RaisesExc(InvalidRequest, check=lambda error: error.code == code)


def make_chain(*names: str) -> Graph:
    graph = Graph("line")
    for before, name in zip([None, *names], names, strict=False):
        graph.add(name, "job", after=[before] if before else [])
    return graph


def test_upstream_may_be_a_handle_a_name_or_an_edge() -> None:
    graph = Graph("etl")
    a = graph.add("a", "job")
    upstreams: list[Member | Edge | str] = [a, "a", Edge(a), Edge("a", EdgeKind.ON_SUCCESS)]
    for number, upstream in enumerate(upstreams):
        graph.add(f"m{number}", "job", after=[upstream])
    edges = {edge for member in graph.ordered_members() for edge in member.edges}
    assert edges == {Edge("a")}


def test_members_are_listed_after_their_upstreams() -> None:
    rng = random.Random(7)
    graph, places = Graph("random"), list(range(50))
    order = rng.sample(places, 50)
    for place in order:
        upstreams = rng.sample(range(place), min(place, 3))
        graph.add(f"m{place}", "job", after=[f"m{upstream}" for upstream in upstreams])
    seen: set[str] = set()
    for member in graph.ordered_members():
        assert {edge.upstream_name for edge in member.edges} <= seen
        seen.add(member.name)
    assert len(seen) == 50


def test_cycle_of_any_length_is_rejected() -> None:
    for length in (2, 3, 10):
        graph = Graph("ring")
        for place in range(length):
            graph.add(f"m{place}", "job", after=[f"m{(place + 1) % length}"])
        with raises_code("cycle"):
            graph.ordered_members()


def test_unknown_upstream_name_is_rejected() -> None:
    graph = make_chain("a", "b")
    graph.add("c", "job", after=["missing"])
    with raises_code("unknown_member"):
        graph.ordered_members()


def test_self_edge_duplicate_edge_and_duplicate_member_are_rejected() -> None:
    graph = make_chain("a")
    with raises_code("self_edge"):
        graph.add("b", "job", after=["b"])
    with raises_code("duplicate_edge"):
        graph.add("b", "job", after=["a", Edge("a", EdgeKind.ON_FAILURE)])
    with raises_code("duplicate_member"):
        graph.add("a", "other")
    assert [member.name for member in graph.ordered_members()] == ["a"]


def test_duplicate_input_name_is_rejected() -> None:
    graph = Graph("etl")
    graph.add("a", "job")
    graph.add("b", "job")
    with raises_code("duplicate_edge"):
        graph.add("c", "job", after=[Edge("a", input="x"), Edge("b", input="x")])


@pytest.mark.parametrize("k", [0, -1, True, 1.5, "2", None])
def test_quorum_must_be_a_positive_integer(k: object) -> None:
    with raises_code("invalid_quorum"):
        quorum(k)  # type: ignore[arg-type]


def test_quorum_larger_than_the_number_of_edges_is_rejected() -> None:
    graph = make_chain("a")
    with raises_code("quorum_exceeds_edges"):
        graph.add("b", "job", after=["a"], join=quorum(2))


def test_joins_have_their_defaults() -> None:
    assert all_of() == Join(JoinKind.ALL_OF, None, Siblings.LET_RUN)
    assert any_of() == Join(JoinKind.ANY_OF, None, Siblings.CANCEL_REMAINING)
    assert quorum(3, siblings="let_run") == Join(JoinKind.QUORUM, 3, Siblings.LET_RUN)
    with pytest.raises(InvalidRequest):
        all_of(siblings="shoot")


@pytest.mark.parametrize("after", ["a", 1, Edge("a"), None])
def test_after_must_be_a_list(after: object) -> None:
    with pytest.raises(InvalidRequest):
        make_chain("a").add("b", "job", after=after)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", " a", "a\n", "x" * 257, 7])
def test_invalid_names_are_rejected(name: object) -> None:
    with pytest.raises(InvalidRequest):
        Graph(name)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        make_chain("a").add(name, "job")  # type: ignore[arg-type]


def test_members_accept_no_id_or_key() -> None:
    for option in ("id", "key", "colour"):
        options: dict[str, Any] = {option: "x"}
        with pytest.raises(TypeError):
            make_chain("a").add("b", "job", **options)


def test_digest_depends_on_the_graph_but_not_on_insertion_order() -> None:
    one, other = Graph("g"), Graph("g")
    for name in ("a", "b"):
        one.add(name, "job")
    for name in ("b", "a"):
        other.add(name, "job")
    assert one.digest("ns") == other.digest("ns")
    assert (
        len(
            {
                make_chain("a", "b").digest("ns"),
                make_chain("b", "a").digest("ns"),
                make_chain("a").digest("ns"),
                one.digest("x"),
            }
        )
        == 4
    )


def test_graph_has_at_most_ten_thousand_members() -> None:
    graph = Graph("large")
    for place in range(10_000):
        graph.add(f"m{place}", "job")
    with raises_code("too_many_members"):
        graph.add("one more", "job")
