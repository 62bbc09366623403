"""Signals satisfy a condition whatever their order, and the few that count tell as much as all of them."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.conditions import AllOf, AnyOf, Condition, Count, Distinct, OperatorOnly, Single, TimeoutOnly
from flowfabric.core.evaluating import (
    Counted,
    SignalFacts,
    counting_signals,
    counts,
    most_counting,
    satisfied,
    satisfied_keys,
)
from tests.unit.condition_strategies import conditions, signals

APPROVAL = Count(2, "sources", ["ops", "cfo"], "approve")


def _signal(waitpoint: str = "a", name: str = "approve", source: str = "ada", number: int = 1) -> SignalFacts:
    return SignalFacts(UUID(int=number), waitpoint, name, source, number)


def _plainly(condition: Condition, given_: list[SignalFacts]) -> bool:
    """The evaluator once more, written straight from the definition."""
    match condition:
        case Single():
            name = getattr(condition.matcher, "name", None)
            return any(s.waitpoint == condition.waitpoint and (name is None or s.name == name) for s in given_)
        case AllOf():
            return len([m for m in condition.members if _plainly(m, given_)]) == len(condition.members)
        case AnyOf():
            return len([m for m in condition.members if _plainly(m, given_)]) > 0
        case Count():
            name = getattr(condition.matcher, "name", None)
            candidates = [(w, s) for w in condition.waitpoints for s in given_ if s.waitpoint == w]
            kept = [(w, s) for w, s in candidates if name is None or s.name == name]
            found: dict[Distinct, set[Any]] = {
                Distinct.WAITPOINTS: {w for w, _ in kept},
                Distinct.SIGNALS: {s.id for _, s in kept},
                Distinct.SOURCES: {s.source for _, s in kept},
            }
            return len(found[Distinct(condition.distinct)]) >= condition.n
    return False


# Evaluation


def test_a_single_is_satisfied_by_a_signal_of_its_name_on_its_waitpoint() -> None:
    condition = Single("a", "approve")
    assert satisfied(condition, [_signal()])
    assert not satisfied(condition, [_signal(name="Approve"), _signal(waitpoint="b")])
    assert satisfied(Single("a"), [_signal(name="whatever")])
    assert not satisfied(Single("a"), [])


def test_a_count_of_sources_takes_each_source_once() -> None:
    first, again = _signal("ops"), _signal("cfo", number=2)
    assert not satisfied(APPROVAL, [first, again])
    assert satisfied(APPROVAL, [first, _signal("ops", source="bob", number=2)])
    assert not satisfied(APPROVAL, [first, _signal("ops", "reject", source="bob", number=2)])


def test_a_count_of_signals_takes_each_id_once() -> None:
    condition = Count(2, "signals", ["a"])
    assert not satisfied(condition, [_signal(), _signal(source="bob")])
    assert satisfied(condition, [_signal(), _signal(number=2)])


def test_a_count_of_waitpoints_takes_each_waitpoint_once() -> None:
    condition = Count(2, "waitpoints", ["a", "b"])
    assert not satisfied(condition, [_signal(), _signal(source="bob", number=2)])
    assert satisfied(condition, [_signal(), _signal("b", number=2)])


def test_two_counts_of_the_same_kind_do_not_share_what_they_count() -> None:
    condition = AllOf([Count(2, "sources", ["a"]), Count(2, "sources", ["b"])])
    assert not satisfied(condition, [_signal("a", source="ada"), _signal("b", source="bob")])


def test_all_of_needs_every_member_in_any_order() -> None:
    condition = AllOf([Single("a"), Single("b"), Count(1, "sources", ["c"])])
    three = [_signal(key, number=number) for number, key in enumerate("abc")]
    assert all(satisfied(condition, order) for order in permutations(three))
    assert not any(satisfied(condition, [x for x in three if x is not left]) for left in three)


def test_any_of_needs_one_member() -> None:
    condition = AnyOf([APPROVAL, Count(1, "sources", ["ops", "cfo"], "reject")])
    assert satisfied(condition, [_signal("cfo", "reject")])
    assert not satisfied(condition, [_signal("cfo")])


def test_no_signal_satisfies_what_waits_for_an_operator_or_the_timeout() -> None:
    many = [_signal(key, "timeout", number=number) for number, key in enumerate("abc")]
    assert not satisfied(OperatorOnly(), many)
    assert not satisfied(TimeoutOnly(), many)
    assert not satisfied(AllOf([Single("a"), OperatorOnly()]), many)
    assert satisfied(AnyOf([Single("a"), TimeoutOnly()]), many)


@given(conditions, signals)
def test_the_evaluator_agrees_with_the_definition(condition: Condition, given_: list[SignalFacts]) -> None:
    assert satisfied(condition, given_) == _plainly(condition, given_)


# Counting


@pytest.mark.parametrize(
    ("signal", "counted"),
    [
        (_signal("ops", source="bob", number=9), "yes"),
        (_signal("cfo", source="bob", number=9), "yes"),
        (_signal("cfo", source="ada", number=9), "nothing_new"),
        (_signal("ops", "reject", source="bob", number=9), "not_matched"),
        (_signal("elsewhere", source="bob", number=9), "not_in_condition"),
    ],
)
def test_a_signal_is_told_whether_it_counts_and_why_not(signal: SignalFacts, counted: str) -> None:
    assert counts(APPROVAL, [_signal("ops")], signal) == Counted(counted)


def test_only_the_first_match_of_a_single_counts() -> None:
    assert counts(Single("a"), [], _signal()) is Counted.YES
    assert counts(Single("a"), [_signal()], _signal(source="bob", number=2)) is Counted.NOTHING_NEW


def test_a_count_that_has_enough_takes_no_more() -> None:
    counting = [_signal("ops"), _signal("cfo", source="bob", number=2)]
    assert counts(APPROVAL, counting, _signal("cfo", source="eve", number=3)) is Counted.NOTHING_NEW


def test_a_signal_that_helps_one_leaf_counts_though_another_has_it() -> None:
    condition = AllOf([Single("a"), Count(2, "sources", ["a"])])
    assert counts(condition, [_signal()], _signal(source="bob", number=2)) is Counted.YES


def test_a_signal_to_a_waitpoint_of_an_operator_only_wait_is_not_in_the_condition() -> None:
    assert counts(OperatorOnly(), [], _signal()) is Counted.NOT_IN_CONDITION
    assert counts(TimeoutOnly(), [], _signal()) is Counted.NOT_IN_CONDITION


def test_buffered_signals_are_counted_in_the_order_of_their_acceptance() -> None:
    late, early = _signal(number=5), _signal(number=2)
    assert counting_signals(Single("a"), [late, early]) == (early,)


@given(conditions, signals)
def test_the_counting_signals_tell_as_much_as_all_at_every_moment(
    condition: Condition, given_: list[SignalFacts]
) -> None:
    counting: list[SignalFacts] = []
    for place, signal in enumerate(given_, start=1):
        if counts(condition, counting, signal) is Counted.YES:
            counting.append(signal)
        assert satisfied(condition, counting) == satisfied(condition, given_[:place])
        assert satisfied_keys(condition, counting) == satisfied_keys(condition, given_[:place])
        assert len(counting) <= most_counting(condition)
    assert counting_signals(condition, given_) == tuple(counting)


@given(conditions, signals, st.randoms(use_true_random=False))
def test_another_order_counts_other_signals_and_comes_to_the_same(
    condition: Condition, given_: list[SignalFacts], chance: random.Random
) -> None:
    shuffled = [replace(signal, order=chance.randrange(100)) for signal in given_]
    assert satisfied(condition, counting_signals(condition, shuffled)) == satisfied(condition, given_)


@given(conditions, signals)
def test_every_counting_signal_was_needed_when_it_came(condition: Condition, given_: list[SignalFacts]) -> None:
    counting = counting_signals(condition, given_)
    for place, signal in enumerate(counting):
        assert counts(condition, counting[:place], signal) is Counted.YES


def test_at_most_as_many_signals_count_as_all_leaves_want() -> None:
    condition = AllOf([Single("a"), Count(3, "signals", ["a"]), AnyOf([Count(40, "sources", ["a"]), OperatorOnly()])])
    assert most_counting(condition) == 1 + 3 + 40
    many = [_signal(source=f"s{number}", number=number) for number in range(10_000)]
    assert len(counting_signals(condition, many)) == 40
    assert most_counting(TimeoutOnly()) == 0


# What closes when the rest is kept


def test_the_rest_keeps_the_waitpoints_of_the_members_that_are_not_satisfied() -> None:
    condition = AnyOf([AllOf([Single("a"), Single("b")]), Single("c"), Single("d")])
    assert satisfied_keys(condition, [_signal("c"), _signal("a")]) == ("c",)
    assert satisfied_keys(condition, [_signal("c"), _signal("a"), _signal("b")]) == ("a", "b", "c")
    assert satisfied_keys(condition, [_signal("a")]) == ()


def test_a_waitpoint_of_a_satisfied_member_closes_though_another_member_names_it() -> None:
    condition = AnyOf([APPROVAL, Count(1, "sources", ["ops"], "reject")])
    assert satisfied_keys(condition, [_signal("ops", "reject")]) == ("ops",)


def test_without_an_any_of_at_the_root_all_waitpoints_close_or_none() -> None:
    condition = AllOf([AnyOf([Single("a"), Single("b")]), Single("c")])
    assert satisfied_keys(condition, [_signal("a"), _signal("c")]) == ("a", "b", "c")
    assert satisfied_keys(condition, [_signal("a")]) == ()
