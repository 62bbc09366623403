"""What a condition still waits for is said in words, and nothing is said when it is satisfied."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given

from flowfabric.core.conditions import AllOf, AnyOf, Condition, Count, OperatorOnly, Single, TimeoutOnly
from flowfabric.core.evaluating import SignalFacts, satisfied
from flowfabric.core.why_not import why_not
from tests.unit.condition_strategies import conditions, signals

ADA = SignalFacts(UUID(int=1), "approval", "approve", "ada", 1)


@pytest.mark.parametrize(
    ("condition", "missing"),
    [
        (Single("payment", "paid"), "a signal named 'paid' on 'payment'"),
        (Single("payment"), "any signal on 'payment'"),
        (Count(2, "sources", ["approval"]), "1 more of 2 distinct sources on 'approval'"),
        (
            Count(2, "sources", ["approval"], "approve"),
            "1 more of 2 distinct sources with a signal named 'approve' on 'approval'",
        ),
        (Count(3, "signals", ["approval"]), "2 more of 3 signals on 'approval'"),
        (Count(3, "signals", ["approval"], "reject"), "3 more of 3 signals named 'reject' on 'approval'"),
        (
            Count(2, "waitpoints", ["approval", "b", "c"]),
            "any signal on 1 more of 'b', 'c' (2 waitpoints needed)",
        ),
        (Count(1, "signals", ["a", "b", "c", "d", "e"]), "1 more of 1 signals on 'a', 'b', 'c' and 2 more"),
        (OperatorOnly(), "an operator's resume"),
        (TimeoutOnly(), "the timeout"),
        (AnyOf([Single("a"), TimeoutOnly()]), "any signal on 'a' or the timeout"),
        (AnyOf([Single("a")]), "any signal on 'a'"),
        (
            AnyOf([AllOf([Single("a"), Single("b")]), OperatorOnly()]),
            "(any signal on 'a' and any signal on 'b') or an operator's resume",
        ),
        (
            AnyOf([AllOf([AnyOf([Single("a"), Single("b")]), Single("approval"), Single("c")]), TimeoutOnly()]),
            "((any signal on 'a' or any signal on 'b') and any signal on 'c') or the timeout",
        ),
    ],
)
def test_what_is_missing_is_said_in_words(condition: Condition, missing: str) -> None:
    assert why_not(condition, [ADA]) == (missing,)


def test_all_of_says_one_line_for_each_thing_that_is_missing() -> None:
    condition = AllOf([Single("payment", "paid"), Single("approval"), AllOf([Single("x"), OperatorOnly()])])
    assert why_not(condition, [ADA]) == (
        "a signal named 'paid' on 'payment'",
        "any signal on 'x'",
        "an operator's resume",
    )


def test_sources_on_trust_are_called_so_where_it_is_known() -> None:
    count = Count(2, "sources", ["a", "b"])
    assert why_not(count, []) == ("2 more of 2 distinct sources on 'a', 'b'",)
    assert why_not(count, [], approver_bound=[]) == ("2 more of 2 distinct sources on 'a', 'b' (sources on trust)",)
    assert why_not(count, [], approver_bound=["a"]) == ("2 more of 2 distinct sources on 'a', 'b' (on trust on 'b')",)
    assert why_not(count, [], approver_bound=["a", "b"]) == why_not(count, [])
    assert "trust" not in why_not(Count(2, "signals", ["a"]), [], approver_bound=[])[0]
    assert "trust" in why_not(AllOf([AnyOf([count])]), [], approver_bound=[])[0]


@given(conditions, signals)
def test_something_is_missing_exactly_when_the_condition_is_not_satisfied(
    condition: Condition, given_: list[SignalFacts]
) -> None:
    missing = why_not(condition, given_)
    assert (missing == ()) == satisfied(condition, given_)
    assert all(line.strip() == line != "" for line in missing)
