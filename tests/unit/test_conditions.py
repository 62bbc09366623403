"""A condition checks itself when it is made, and against its suspension; an error names the member by its path."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from flowfabric.core.conditions import (
    AllOf,
    AnyOf,
    AnySignal,
    ByName,
    Condition,
    Count,
    Distinct,
    OperatorOnly,
    Single,
    TimeoutOnly,
    keys_of,
    required_signal_names,
    validate,
)
from flowfabric.engine import InvalidRequest

LONG = "x" * 257
PAID = Single("payment", "paid")


def _refused(make: Callable[[], object]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        make()
    assert len(str(refused.value)) < 400
    return refused.value


def _place(make: Callable[[], object]) -> tuple[str, object]:
    error = _refused(make)
    assert error.fields["path"] == "" or str(error.fields["path"]) in error.message
    return error.code, error.fields["path"]


def _nested(levels: int, inner: Condition = PAID) -> Condition:
    for _ in range(levels):
        inner = AllOf([inner])
    return inner


def _check(condition: Any, *keys: str, has_timeout: bool = False, approvers: dict[str, str] | None = None) -> None:
    validate(condition, keys, has_timeout=has_timeout, approvers=approvers)


# Matchers


def test_a_text_matches_by_name_and_none_matches_any_signal() -> None:
    assert Single("a", "paid") == Single("a", ByName("paid"))
    assert Single("a") == Single("a", None) == Single("a", AnySignal())
    assert Count(1, "signals", ["a"], "paid").matcher == ByName("paid")
    assert Count(1, "signals", ["a"]).matcher == AnySignal()


@pytest.mark.parametrize("bad", ["", " paid", "paid\n", "a\x00b", "a\ud800b", LONG])
def test_a_name_or_key_outside_its_limits_is_refused_anywhere(bad: str) -> None:
    for make in (
        lambda: ByName(bad),
        lambda: Single("a", bad),
        lambda: Single(bad),
        lambda: Count(1, "signals", ["a"], bad),
        lambda: Count(1, "signals", ["a", bad]),
    ):
        assert _refused(make).code == "invalid_name"


@pytest.mark.parametrize("odd", [7, b"paid", ["paid"], object(), True])
def test_a_matcher_of_another_kind_is_refused(odd: Any) -> None:
    assert _refused(lambda: Single("a", odd)).code == "invalid_type"
    assert _refused(lambda: Count(1, "signals", ["a"], odd)).code == "invalid_type"


# Counts


@pytest.mark.parametrize("n", [0, -1, -(2**64)])
def test_a_count_of_nothing_is_refused(n: int) -> None:
    assert _place(lambda: Count(n, "signals", ["a"])) == ("count_n_zero", "")


@pytest.mark.parametrize("n", [1001, 2**31, 10**400])
def test_a_count_beyond_the_total_is_refused(n: int) -> None:
    assert _place(lambda: Count(n, "signals", ["a"])) == ("count_n_too_large", "")


@pytest.mark.parametrize("n", [True, 1.0, "1", None, float("nan")])
def test_a_count_must_be_a_whole_number(n: Any) -> None:
    assert _place(lambda: Count(n, "signals", ["a"])) == ("invalid_type", "")


@pytest.mark.parametrize("distinct", ["source", "SOURCES", "", None, 3, ["sources"]])
def test_an_unknown_kind_of_count_is_refused(distinct: Any) -> None:
    assert _place(lambda: Count(1, distinct, ["a"])) == ("invalid_choice", "")


@pytest.mark.parametrize("distinct", list(Distinct))
def test_the_kind_of_a_count_may_be_given_as_its_word(distinct: Distinct) -> None:
    assert Count(1, distinct.value, ["a"]) == Count(1, distinct, ["a"])
    assert Count(1, distinct.value, ["a"]).distinct is distinct


def test_a_count_without_waitpoints_is_refused() -> None:
    assert _place(lambda: Count(1, "signals", [])) == ("count_waitpoints_empty", "")


@pytest.mark.parametrize("odd", ["abc", b"xyz", {"a"}, None, 3, iter(["a"])])
def test_waitpoints_must_be_a_list(odd: Any) -> None:
    assert _place(lambda: Count(1, "signals", odd)) == ("invalid_type", "")


def test_repeated_keys_of_a_count_are_dropped_before_they_are_numbered() -> None:
    assert Count(2, "waitpoints", ["a", "b", "a"]).waitpoints == ("a", "b")
    assert _place(lambda: Count(2, "waitpoints", ["a", "a"])) == ("count_exceeds_waitpoint_set", "")
    assert len(Count(1, "signals", ["a"] * 1000).waitpoints) == 1


def test_more_distinct_waitpoints_than_there_are_is_refused_but_only_of_waitpoints() -> None:
    assert _place(lambda: Count(3, "waitpoints", ["a", "b"])) == ("count_exceeds_waitpoint_set", "")
    assert Count(3, "sources", ["a", "b"]).n == Count(3, "signals", ["a"]).n == 3


def test_a_count_has_at_most_64_waitpoints() -> None:
    keys = [f"k{number}" for number in range(65)]
    assert len(Count(1, "signals", keys[:64]).waitpoints) == 64
    assert _place(lambda: Count(1, "signals", keys)) == ("too_many_waitpoints", "")
    assert _place(lambda: Count(1, "signals", ["a"] * 1001)) == ("too_many_waitpoints", "")


# Members


def test_all_of_and_any_of_nothing_are_refused() -> None:
    assert _place(lambda: AllOf([])) == ("allof_empty_members", "")
    assert _place(lambda: AnyOf(())) == ("anyof_empty_members", "")


@pytest.mark.parametrize("make", [AllOf, AnyOf])
def test_a_member_that_is_no_condition_is_refused_with_its_path(make: Callable[[Any], Condition]) -> None:
    assert _place(lambda: make([PAID, "payment"])) == ("invalid_type", "members[1]")
    assert _place(lambda: make([PAID, AllOf])) == ("invalid_type", "members[1]")
    for odd in (PAID, "ab", None, {PAID}, iter([PAID])):
        assert _place(lambda odd=odd: make(odd)) == ("invalid_type", "")  # type: ignore[misc]


def test_four_levels_are_accepted_and_the_fifth_is_refused_with_its_path() -> None:
    assert keys_of(_nested(4)) == ("payment",)
    assert _place(lambda: _nested(5)) == ("condition_depth_exceeded", "members[0].members[0].members[0].members[0]")


def test_a_count_is_a_level_and_the_other_leaves_are_not() -> None:
    count = Count(1, "signals", ["a"])
    assert keys_of(_nested(3, count)) == ("a",)
    assert _refused(lambda: _nested(4, count)).code == "condition_depth_exceeded"
    for leaf in (Single("a"), OperatorOnly(), TimeoutOnly()):
        _nested(4, leaf)


def test_the_path_names_the_deep_member_among_shallow_ones() -> None:
    deep = AnyOf([PAID, _nested(3)])
    assert _place(lambda: AllOf([PAID, deep])) == (
        "condition_depth_exceeded",
        "members[1].members[1].members[0].members[0]",
    )


def test_a_condition_has_at_most_64_leaves() -> None:
    assert len(AllOf([PAID] * 64).members) == 64
    assert _place(lambda: AllOf([PAID] * 65)) == ("too_many_leaves", "members[64]")
    assert _place(lambda: AllOf([PAID] * 10_000)) == ("too_many_leaves", "members[64]")
    halves = [AnyOf([PAID] * 32), AnyOf([PAID] * 32)]
    assert len(AllOf(halves).members) == 2
    assert _place(lambda: AllOf([*halves, TimeoutOnly()])) == ("too_many_leaves", "members[2]")


def test_a_condition_names_at_most_64_waitpoints() -> None:
    first, second = [f"k{number}" for number in range(40)], [f"k{number}" for number in range(24, 65)]
    assert _place(lambda: AllOf([Count(1, "signals", first), Count(1, "signals", second)])) == (
        "too_many_waitpoints",
        "members[1]",
    )
    assert len(keys_of(AllOf([Count(1, "signals", first), Count(1, "signals", second[:-1])]))) == 64


def test_all_n_together_are_at_most_a_thousand() -> None:
    half, more = Count(500, "signals", ["a"]), Count(501, "sources", ["a"])
    assert keys_of(AllOf([half, AnyOf([half])])) == ("a",)
    assert _place(lambda: AllOf([half, AnyOf([PAID, more])])) == ("count_n_too_large", "members[1].members[1]")


# The whole


def test_every_key_must_be_bound() -> None:
    condition = AllOf([PAID, AnyOf([Single("review"), Count(1, "signals", ["review", "legal"])])])
    _check(condition, "payment", "review", "legal")
    error = _refused(lambda: _check(condition, "payment", "review"))
    assert (error.code, error.fields["path"]) == ("waitpoint_not_bound", "members[1].members[1]")
    assert error.fields["waitpoint"] == "legal"


def test_every_binding_must_be_used() -> None:
    error = _refused(lambda: _check(PAID, "payment", "review"))
    assert (error.code, error.fields["waitpoints"]) == ("waitpoint_not_used", ("review",))
    condition = AnyOf([PAID, OperatorOnly()])
    assert _place(lambda: _check(condition, "payment", "review")) == ("waitpoint_not_used", "")


def test_a_condition_that_names_no_waitpoint_needs_none_and_may_bind_some() -> None:
    _check(OperatorOnly())
    _check(OperatorOnly(), "payment")
    _check(TimeoutOnly(), "payment", has_timeout=True)
    assert _place(lambda: _check(OperatorOnly(), *(f"k{number}" for number in range(65)))) == (
        "too_many_waitpoints",
        "",
    )


def test_timeout_only_needs_a_timeout_wherever_it_stands() -> None:
    assert _place(lambda: _check(TimeoutOnly())) == ("timeout_only_without_deadline", "")
    nested = AnyOf([PAID, AllOf([TimeoutOnly()])])
    assert _place(lambda: _check(nested, "payment")) == ("timeout_only_without_deadline", "members[1].members[0]")
    _check(nested, "payment", has_timeout=True)


def test_more_sources_than_there_are_approvers_is_refused() -> None:
    two = Count(2, "sources", ["a", "b"])
    _check(two, "a", "b", approvers={"a": "ops", "b": "finance"})
    _check(two, "a", "b", approvers={"a": "ops"})
    condition = AllOf([Single("a"), two])
    assert _place(lambda: _check(condition, "a", "b", approvers={"a": "ops", "b": "ops"})) == (
        "count_exceeds_sources",
        "members[1]",
    )
    _check(Count(2, "signals", ["a"]), "a", approvers={"a": "ops"})


@pytest.mark.parametrize("odd", [None, "payment", {"type": "single"}, [PAID], Single, 7])
def test_what_is_no_condition_is_refused(odd: Any) -> None:
    assert _place(lambda: _check(odd, "payment")) == ("invalid_type", "")


def test_a_condition_that_contains_itself_is_refused_and_not_followed() -> None:
    loop = AllOf([PAID])
    object.__setattr__(loop, "members", (loop,))
    assert _refused(lambda: _check(loop, "payment")).code == "condition_depth_exceeded"


# What is known of a condition


def test_keys_come_once_in_the_order_of_their_first_mention() -> None:
    condition = AllOf([Single("b"), Count(1, "signals", ["c", "b", "a"]), AnyOf([Single("a"), OperatorOnly()])])
    assert keys_of(condition) == ("b", "c", "a")
    assert keys_of(TimeoutOnly()) == ()


def test_the_names_that_a_waitpoint_waits_for_come_once_in_order() -> None:
    condition = AnyOf([Count(2, "sources", ["a", "b"], "approve"), Single("a", "reject"), Single("a", "approve")])
    assert required_signal_names(condition, "a") == ("approve", "reject")
    assert required_signal_names(condition, "b") == ("approve",)


def test_a_leaf_for_any_signal_beside_a_named_one_means_any() -> None:
    condition = AllOf([Single("a", "approve"), Count(1, "signals", ["a"])])
    assert required_signal_names(condition, "a") is None


def test_no_signal_helps_on_a_waitpoint_that_no_leaf_looks_at() -> None:
    assert required_signal_names(AnyOf([PAID, OperatorOnly()]), "elsewhere") == ()
    assert required_signal_names(OperatorOnly(), "payment") == ()


def test_conditions_are_values() -> None:
    condition = AllOf([PAID, Count(2, "sources", ["a"], "approve")])
    same = AllOf((Single("payment", ByName("paid")), Count(2, Distinct.SOURCES, ("a", "a"), "approve")))
    assert condition == same and hash(condition) == hash(same)
    assert pickle.loads(pickle.dumps(condition)) == condition
