"""The graph that a caller draws: what is wrong with it is said when it is drawn or read out."""

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


def refused(code: str) -> pytest.RaisesExc[InvalidRequest]:
    return pytest.RaisesExc(InvalidRequest, check=lambda error: error.code == code)


def line(*names: str) -> Graph:
    graph = Graph("line")
    for before, name in zip([None, *names], names, strict=False):
        graph.add(name, "job", after=[before] if before else [])
    return graph


def test_a_handle_a_name_and_an_edge_say_the_same() -> None:
    graph = Graph("etl")
    a = graph.add("a", "job")
    ways: list[Member | Edge | str] = [a, "a", Edge(a), Edge("a", EdgeKind.ON_SUCCESS)]
    for number, after in enumerate(ways):
        graph.add(f"m{number}", "job", after=[after])
    edges = {edge for member in graph.drawn() for edge in member.edges}
    assert edges == {Edge("a")}


def test_members_are_read_out_after_their_upstreams() -> None:
    chance = random.Random(7)
    graph, places = Graph("random"), list(range(50))
    order = chance.sample(places, 50)
    for place in order:
        upstreams = chance.sample(range(place), min(place, 3))
        graph.add(f"m{place}", "job", after=[f"m{upstream}" for upstream in upstreams])
    seen: set[str] = set()
    for member in graph.drawn():
        assert {edge.upstream_name for edge in member.edges} <= seen
        seen.add(member.name)
    assert len(seen) == 50


def test_a_cycle_of_any_length_is_refused() -> None:
    for length in (2, 3, 10):
        graph = Graph("ring")
        for place in range(length):
            graph.add(f"m{place}", "job", after=[f"m{(place + 1) % length}"])
        with refused("cycle"):
            graph.drawn()


def test_a_name_that_is_not_there_is_refused() -> None:
    graph = line("a", "b")
    graph.add("c", "job", after=["nobody"])
    with refused("unknown_member"):
        graph.drawn()


def test_nothing_comes_after_itself_or_twice_after_another() -> None:
    graph = line("a")
    with refused("self_edge"):
        graph.add("b", "job", after=["b"])
    with refused("duplicate_edge"):
        graph.add("b", "job", after=["a", Edge("a", EdgeKind.ON_FAILURE)])
    with refused("duplicate_member"):
        graph.add("a", "other")
    assert [member.name for member in graph.drawn()] == ["a"]


def test_two_inputs_of_one_name_are_refused() -> None:
    graph = Graph("etl")
    graph.add("a", "job")
    graph.add("b", "job")
    with refused("duplicate_edge"):
        graph.add("c", "job", after=[Edge("a", input="x"), Edge("b", input="x")])


@pytest.mark.parametrize("k", [0, -1, True, 1.5, "2", None])
def test_a_quorum_is_a_whole_number_above_nothing(k: object) -> None:
    with refused("invalid_quorum"):
        quorum(k)  # type: ignore[arg-type]


def test_a_quorum_of_more_than_there_are_edges_is_refused() -> None:
    graph = line("a")
    with refused("quorum_exceeds_edges"):
        graph.add("b", "job", after=["a"], join=quorum(2))


def test_joins_have_their_defaults() -> None:
    assert all_of() == Join(JoinKind.ALL_OF, None, Siblings.LET_RUN)
    assert any_of() == Join(JoinKind.ANY_OF, None, Siblings.CANCEL_REMAINING)
    assert quorum(3, siblings="let_run") == Join(JoinKind.QUORUM, 3, Siblings.LET_RUN)
    with pytest.raises(InvalidRequest):
        all_of(siblings="shoot")


@pytest.mark.parametrize("after", ["a", 1, Edge("a"), None])
def test_what_a_member_comes_after_is_a_list(after: object) -> None:
    with pytest.raises(InvalidRequest):
        line("a").add("b", "job", after=after)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", " a", "a\n", "x" * 257, 7])
def test_names_are_as_all_names_are(name: object) -> None:
    with pytest.raises(InvalidRequest):
        Graph(name)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        line("a").add(name, "job")  # type: ignore[arg-type]


def test_members_are_told_apart_by_name_and_have_no_id_or_key() -> None:
    for barred in ("id", "key", "colour"):
        options: dict[str, Any] = {barred: "x"}
        with pytest.raises(TypeError):
            line("a").add("b", "job", **options)


def test_the_digest_tells_two_graphs_apart_and_not_the_order_they_were_drawn_in() -> None:
    one, other = Graph("g"), Graph("g")
    for name in ("a", "b"):
        one.add(name, "job")
    for name in ("b", "a"):
        other.add(name, "job")
    assert one.digest("ns") == other.digest("ns")
    assert len({line("a", "b").digest("ns"), line("b", "a").digest("ns"), line("a").digest("ns"), one.digest("x")}) == 4


def test_ten_thousand_members_are_the_most() -> None:
    graph = Graph("large")
    for place in range(10_000):
        graph.add(f"m{place}", "job")
    with refused("too_many_members"):
        graph.add("one more", "job")
