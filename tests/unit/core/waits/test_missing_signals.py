"""Tests for the texts that describe the signals a condition still waits for."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given

from flowfabric.core.waits.conditions import AllOf, AnyOf, Condition, Count, OperatorOnly, Single, TimeoutOnly
from flowfabric.core.waits.evaluate import SignalFacts, approval_progress, is_satisfied, missing_signals
from flowfabric.core.waits.sources import source_name
from tests.unit.core.waits.condition_strategies import conditions, signals

ADA = SignalFacts(UUID(int=1), "approval", "approve", "ada", 1)


@pytest.mark.parametrize(
    ("condition", "missing"),
    [
        (Single("payment", "paid"), 'signal "paid" on waitpoint "payment"'),
        (Single("payment"), 'a signal on waitpoint "payment"'),
        (Count(2, "sources", ["approval"]), '1 more of 2 sources on "approval"'),
        (
            Count(2, "sources", ["approval"], "approve"),
            '1 more of 2 sources of signal "approve" on "approval"',
        ),
        (Count(3, "signals", ["approval"]), '2 more of 3 signals on "approval"'),
        (Count(3, "signals", ["approval"], "reject"), '3 more of 3 signals "reject" on "approval"'),
        (
            Count(2, "waitpoints", ["approval", "b", "c"]),
            'a signal on 1 more of 2 waitpoints: "b" and "c"',
        ),
        (
            Count(1, "signals", ["a", "b", "c", "d", "e", "f", "g"]),
            '1 more of 1 signals on "a", "b", "c", "d", "e" and 2 more',
        ),
        (OperatorOnly(), "an operator to resume it"),
        (TimeoutOnly(), "its timeout"),
        (AnyOf([Single("a"), TimeoutOnly()]), 'a signal on waitpoint "a" or its timeout'),
        (AnyOf([Single("a")]), 'a signal on waitpoint "a"'),
        (
            AnyOf([AllOf([Single("a"), Single("b")]), OperatorOnly()]),
            '(a signal on waitpoint "a" and a signal on waitpoint "b") or an operator to resume it',
        ),
        (
            AnyOf([AllOf([AnyOf([Single("a"), Single("b")]), Single("approval"), Single("c")]), TimeoutOnly()]),
            '((a signal on waitpoint "a" or a signal on waitpoint "b") and a signal on waitpoint "c") or its timeout',
        ),
    ],
)
def test_missing_signal_is_described(condition: Condition, missing: str) -> None:
    assert missing_signals(condition, [ADA]) == (missing,)


def test_all_of_has_one_line_per_missing_member() -> None:
    condition = AllOf([Single("payment", "paid"), Single("approval"), AllOf([Single("x"), OperatorOnly()])])
    assert missing_signals(condition, [ADA]) == (
        'signal "paid" on waitpoint "payment"',
        'a signal on waitpoint "x"',
        "an operator to resume it",
    )


def test_sources_that_are_not_verified_are_marked_where_the_approvers_are_known() -> None:
    count = Count(2, "sources", ["a", "b"])
    assert missing_signals(count, []) == ('2 more of 2 sources on "a" and "b"',)
    assert missing_signals(count, [], approvers={}) == (
        '2 more of 2 sources on "a" and "b" (sources are not verified)',
    )
    assert missing_signals(count, [], approvers={"a": "ann"}) == (
        '2 more of 2 sources on "a" and "b" (sources on "b" are not verified)',
    )
    assert missing_signals(count, [], approvers={"a": "ann", "b": "bob"}) == missing_signals(count, [])
    assert "verified" not in missing_signals(Count(2, "signals", ["a"]), [], approvers={})[0]
    assert "verified" in missing_signals(AllOf([AnyOf([count])]), [], approvers={})[0]


KEYS = ["gather[0]/approval:refund[ops]", "gather[0]/approval:refund[finance]", "gather[0]/approval:refund[legal]"]
APPROVERS = dict(zip(KEYS, ["ops", "finance", "legal"], strict=True))
APPROVAL = AnyOf([Count(2, "sources", KEYS, "approve"), Count(2, "sources", KEYS, "reject")])


def decision(key: str, name: str, order: int = 1) -> SignalFacts:
    return SignalFacts(UUID(int=order), key, name, f"approver:{APPROVERS[key]}", order)


@pytest.mark.parametrize(
    ("decisions", "progress"),
    [
        ([], "0 of 2 (ops, finance and legal have not decided)"),
        ([(0, "approve")], "1 of 2 (ops approved; finance and legal have not decided)"),
        ([(1, "reject")], "0 of 2 (finance rejected; ops and legal have not decided)"),
        ([(1, "reject"), (0, "approve")], "1 of 2 (ops approved; finance rejected; legal has not decided)"),
        ([(0, "approve"), (0, "comment")], "1 of 2 (ops approved; finance and legal have not decided)"),
    ],
)
def test_an_approval_says_who_has_decided_and_who_has_not(decisions: list[tuple[int, str]], progress: str) -> None:
    received = [decision(KEYS[place], name, order) for order, (place, name) in enumerate(decisions)]
    assert missing_signals(APPROVAL, received, APPROVERS) == (f'approval "refund": {progress}',)
    other = AnyOf([APPROVAL, Single("timer")])
    assert missing_signals(other, received, APPROVERS, {"timer": "08:00:00 UTC"}) == (
        f'approval "refund": {progress} or 08:00:00 UTC',
    )


def test_an_approval_without_declared_approvers_names_those_who_decided() -> None:
    approval = AnyOf(
        [Count(3, "sources", ["approval:plan"], "approve"), Count(1, "sources", ["approval:plan"], "reject")]
    )
    sources = ["engine:8:operator:ada", "claimed:4:link:bob", "claimed:4:link:unknown"]
    received = [SignalFacts(UUID(int=n), "approval:plan", "approve", source, n) for n, source in enumerate(sources[:2])]
    assert missing_signals(approval, [], {}) == ('approval "plan": 0 of 3 (no decision yet)',)
    assert missing_signals(approval, received, {}) == ('approval "plan": 2 of 3 (ada and bob [unverified] approved)',)
    assert source_name(sources[2]) == "link [unverified]"


def test_a_condition_without_an_approval_has_no_progress_of_one() -> None:
    assert approval_progress(Single("go"), []) is None
    assert approval_progress(AnyOf([Single("go"), Single("no")]), []) is None
    different = AnyOf([Count(1, "sources", ["a"], "approve"), Count(1, "sources", ["b"], "reject")])
    assert approval_progress(different, []) is None
    lone = approval_progress(Count(2, "sources", ["a", "b"]), [], {"a": "ann", "b": "bob"})
    assert str(lone) == "approval: 0 of 2 (ann and bob have not decided)"


def test_children_are_named_and_their_failures_are_left_out_beside_all_their_ends() -> None:
    keys = ["quote[0]", "quote[1]"]
    children = {key: f'child "{key}" to end' for key in keys}
    ends = AnyOf([Count(2, "waitpoints", keys), Count(1, "waitpoints", keys, "failed")])
    assert missing_signals(Single(keys[0]), [], {}, children) == ('child "quote[0]" to end',)
    assert missing_signals(ends, [], {}, children) == ('2 more of 2 children: "quote[0]" and "quote[1]"',)


@given(conditions, signals)
def test_something_is_missing_exactly_when_the_condition_is_not_satisfied(
    condition: Condition, received: list[SignalFacts]
) -> None:
    missing = missing_signals(condition, received)
    assert (missing == ()) == is_satisfied(condition, received)
    assert all(line.strip() == line != "" for line in missing)
