"""Tests for evaluating conditions and for the signals that count towards them."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.waits.conditions import (
    AllOf,
    AnyOf,
    Condition,
    Count,
    Distinct,
    OperatorOnly,
    Single,
    TimeoutOnly,
    leaves,
)
from flowfabric.core.waits.evaluate import (
    Counted,
    SignalFacts,
    counting_signals,
    is_satisfied,
    judge_signal,
    required,
    satisfied_keys,
)
from tests.unit.core.waits.condition_strategies import conditions, signals

APPROVAL = Count(2, "sources", ["ops", "cfo"], "approve")


def _make_signal(waitpoint: str = "a", name: str = "approve", source: str = "ada", number: int = 1) -> SignalFacts:
    return SignalFacts(UUID(int=number), waitpoint, name, source, number)


def _evaluate_by_definition(condition: Condition, received: list[SignalFacts]) -> bool:
    """Evaluate a condition by a second implementation that follows the definition literally."""
    match condition:
        case Single():
            name = getattr(condition.matcher, "name", None)
            return any(s.waitpoint == condition.waitpoint and (name is None or s.name == name) for s in received)
        case AllOf():
            return len([m for m in condition.members if _evaluate_by_definition(m, received)]) == len(condition.members)
        case AnyOf():
            return len([m for m in condition.members if _evaluate_by_definition(m, received)]) > 0
        case Count():
            name = getattr(condition.matcher, "name", None)
            candidates = [(w, s) for w in condition.waitpoints for s in received if s.waitpoint == w]
            matching = [(w, s) for w, s in candidates if name is None or s.name == name]
            distinct_values: dict[Distinct, set[Any]] = {
                Distinct.WAITPOINTS: {w for w, _ in matching},
                Distinct.SIGNALS: {s.id for _, s in matching},
                Distinct.SOURCES: {s.source for _, s in matching},
            }
            return len(distinct_values[Distinct(condition.distinct)]) >= condition.n
    return False


# Evaluation


def test_single_is_satisfied_by_its_name_on_its_waitpoint() -> None:
    condition = Single("a", "approve")
    assert is_satisfied(condition, [_make_signal()])
    assert not is_satisfied(condition, [_make_signal(name="Approve"), _make_signal(waitpoint="b")])
    assert is_satisfied(Single("a"), [_make_signal(name="anything")])
    assert not is_satisfied(Single("a"), [])


def test_count_of_sources_counts_each_source_once() -> None:
    first, same_source = _make_signal("ops"), _make_signal("cfo", number=2)
    assert not is_satisfied(APPROVAL, [first, same_source])
    assert is_satisfied(APPROVAL, [first, _make_signal("ops", source="bob", number=2)])
    assert not is_satisfied(APPROVAL, [first, _make_signal("ops", "reject", source="bob", number=2)])


def test_count_of_signals_counts_each_id_once() -> None:
    condition = Count(2, "signals", ["a"])
    assert not is_satisfied(condition, [_make_signal(), _make_signal(source="bob")])
    assert is_satisfied(condition, [_make_signal(), _make_signal(number=2)])


def test_count_of_waitpoints_counts_each_waitpoint_once() -> None:
    condition = Count(2, "waitpoints", ["a", "b"])
    assert not is_satisfied(condition, [_make_signal(), _make_signal(source="bob", number=2)])
    assert is_satisfied(condition, [_make_signal(), _make_signal("b", number=2)])


def test_counts_of_the_same_kind_are_independent() -> None:
    condition = AllOf([Count(2, "sources", ["a"]), Count(2, "sources", ["b"])])
    assert not is_satisfied(condition, [_make_signal("a", source="ada"), _make_signal("b", source="bob")])


def test_all_of_needs_every_member_in_any_order() -> None:
    condition = AllOf([Single("a"), Single("b"), Count(1, "sources", ["c"])])
    three = [_make_signal(key, number=number) for number, key in enumerate("abc")]
    assert all(is_satisfied(condition, order) for order in permutations(three))
    assert not any(is_satisfied(condition, [x for x in three if x is not omitted]) for omitted in three)


def test_any_of_needs_one_member() -> None:
    condition = AnyOf([APPROVAL, Count(1, "sources", ["ops", "cfo"], "reject")])
    assert is_satisfied(condition, [_make_signal("cfo", "reject")])
    assert not is_satisfied(condition, [_make_signal("cfo")])


def test_no_signal_satisfies_operator_only_or_timeout_only() -> None:
    many = [_make_signal(key, "timeout", number=number) for number, key in enumerate("abc")]
    assert not is_satisfied(OperatorOnly(), many)
    assert not is_satisfied(TimeoutOnly(), many)
    assert not is_satisfied(AllOf([Single("a"), OperatorOnly()]), many)
    assert is_satisfied(AnyOf([Single("a"), TimeoutOnly()]), many)


@given(conditions, signals)
def test_evaluator_agrees_with_the_definition(condition: Condition, received: list[SignalFacts]) -> None:
    assert is_satisfied(condition, received) == _evaluate_by_definition(condition, received)


# Counts


@pytest.mark.parametrize(
    ("signal", "counted"),
    [
        (_make_signal("ops", source="bob", number=9), "yes"),
        (_make_signal("cfo", source="bob", number=9), "yes"),
        (_make_signal("cfo", source="ada", number=9), "nothing_new"),
        (_make_signal("ops", "reject", source="bob", number=9), "not_matched"),
        (_make_signal("elsewhere", source="bob", number=9), "not_in_condition"),
    ],
)
def test_counts_returns_if_a_signal_counts_or_the_reason(signal: SignalFacts, counted: str) -> None:
    assert judge_signal(APPROVAL, [_make_signal("ops")], signal) == Counted(counted)


def test_only_the_first_match_of_a_single_counts() -> None:
    assert judge_signal(Single("a"), [], _make_signal()) is Counted.YES
    assert judge_signal(Single("a"), [_make_signal()], _make_signal(source="bob", number=2)) is Counted.NOTHING_NEW


def test_satisfied_count_needs_no_further_signals() -> None:
    counting = [_make_signal("ops"), _make_signal("cfo", source="bob", number=2)]
    assert judge_signal(APPROVAL, counting, _make_signal("cfo", source="eve", number=3)) is Counted.NOTHING_NEW


def test_signal_counts_if_it_helps_at_least_one_leaf() -> None:
    condition = AllOf([Single("a"), Count(2, "sources", ["a"])])
    assert judge_signal(condition, [_make_signal()], _make_signal(source="bob", number=2)) is Counted.YES


def test_signal_is_not_in_an_operator_only_or_timeout_only_condition() -> None:
    assert judge_signal(OperatorOnly(), [], _make_signal()) is Counted.NOT_IN_CONDITION
    assert judge_signal(TimeoutOnly(), [], _make_signal()) is Counted.NOT_IN_CONDITION


def test_buffered_signals_are_counted_in_the_order_of_their_acceptance() -> None:
    late, early = _make_signal(number=5), _make_signal(number=2)
    assert counting_signals(Single("a"), [late, early]) == (early,)


def _max_counting(condition: Condition) -> int:
    return sum(required(leaf) for _, leaf in leaves(condition) if isinstance(leaf, Single | Count))


@given(conditions, signals)
def test_counting_signals_are_equivalent_to_all_signals_at_every_step(
    condition: Condition, received: list[SignalFacts]
) -> None:
    counting: list[SignalFacts] = []
    for index, signal in enumerate(received, start=1):
        if judge_signal(condition, counting, signal) is Counted.YES:
            counting.append(signal)
        assert is_satisfied(condition, counting) == is_satisfied(condition, received[:index])
        assert satisfied_keys(condition, counting) == satisfied_keys(condition, received[:index])
        assert len(counting) <= _max_counting(condition)
    assert counting_signals(condition, received) == tuple(counting)


@given(conditions, signals, st.randoms(use_true_random=False))
def test_order_of_signals_does_not_change_the_result(
    condition: Condition, received: list[SignalFacts], rng: random.Random
) -> None:
    shuffled = [replace(signal, order=rng.randrange(100)) for signal in received]
    assert is_satisfied(condition, counting_signals(condition, shuffled)) == is_satisfied(condition, received)


@given(conditions, signals)
def test_every_counting_signal_was_needed_on_arrival(condition: Condition, received: list[SignalFacts]) -> None:
    counting = counting_signals(condition, received)
    for index, signal in enumerate(counting):
        assert judge_signal(condition, counting[:index], signal) is Counted.YES


def test_number_of_counting_signals_is_bounded_by_the_leaves() -> None:
    condition = AllOf([Single("a"), Count(3, "signals", ["a"]), AnyOf([Count(40, "sources", ["a"]), OperatorOnly()])])
    assert _max_counting(condition) == 1 + 3 + 40
    many = [_make_signal(source=f"s{number}", number=number) for number in range(10_000)]
    assert len(counting_signals(condition, many)) == 40
    assert _max_counting(TimeoutOnly()) == 0


# Waitpoints to close when the others stay open


def test_waitpoints_of_unsatisfied_members_stay_open() -> None:
    condition = AnyOf([AllOf([Single("a"), Single("b")]), Single("c"), Single("d")])
    assert satisfied_keys(condition, [_make_signal("c"), _make_signal("a")]) == ("c",)
    assert satisfied_keys(condition, [_make_signal("c"), _make_signal("a"), _make_signal("b")]) == ("a", "b", "c")
    assert satisfied_keys(condition, [_make_signal("a")]) == ()


def test_waitpoint_of_a_satisfied_member_closes_even_if_shared() -> None:
    condition = AnyOf([APPROVAL, Count(1, "sources", ["ops"], "reject")])
    assert satisfied_keys(condition, [_make_signal("ops", "reject")]) == ("ops",)


def test_all_waitpoints_close_together_without_any_of_at_the_root() -> None:
    condition = AllOf([AnyOf([Single("a"), Single("b")]), Single("c")])
    assert satisfied_keys(condition, [_make_signal("a"), _make_signal("c")]) == ("a", "b", "c")
    assert satisfied_keys(condition, [_make_signal("a")]) == ()
