"""Test that conditions are validated on creation and against their suspension.

Every error names the path of the invalid member.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from flowfabric.core.waits.conditions import (
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
    required_signal_names,
    validate,
    waitpoint_keys,
)
from flowfabric.engine import InvalidRequest

LONG = "x" * 257
PAID = Single("payment", "paid")


def _catch_error(make: Callable[[], object]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        make()
    assert len(str(refused.value)) < 400
    return refused.value


def _get_code_and_path(make: Callable[[], object]) -> tuple[str, object]:
    error = _catch_error(make)
    assert error.fields["path"] == "" or str(error.fields["path"]) in error.message
    return error.code, error.fields["path"]


def _nest(levels: int, inner: Condition = PAID) -> Condition:
    for _ in range(levels):
        inner = AllOf([inner])
    return inner


def _check(condition: Any, *keys: str, has_timeout: bool = False, approvers: dict[str, str] | None = None) -> None:
    validate(condition, keys, has_timeout=has_timeout, approvers=approvers)


# Matchers


def test_string_matches_by_name_and_none_matches_any_signal() -> None:
    assert Single("a", "paid") == Single("a", ByName("paid"))
    assert Single("a") == Single("a", None) == Single("a", AnySignal())
    assert Count(1, "signals", ["a"], "paid").matcher == ByName("paid")
    assert Count(1, "signals", ["a"]).matcher == AnySignal()


@pytest.mark.parametrize("bad", ["", " paid", "paid\n", "a\x00b", "a\ud800b", LONG])
def test_invalid_name_or_key_is_rejected_everywhere(bad: str) -> None:
    for make in (
        lambda: ByName(bad),
        lambda: Single("a", bad),
        lambda: Single(bad),
        lambda: Count(1, "signals", ["a"], bad),
        lambda: Count(1, "signals", ["a", bad]),
    ):
        assert _catch_error(make).code == "invalid_name"


@pytest.mark.parametrize("odd", [7, b"paid", ["paid"], object(), True])
def test_matcher_of_another_type_is_rejected(odd: Any) -> None:
    assert _catch_error(lambda: Single("a", odd)).code == "invalid_type"
    assert _catch_error(lambda: Count(1, "signals", ["a"], odd)).code == "invalid_type"


# Counts


@pytest.mark.parametrize("n", [0, -1, -(2**64)])
def test_count_below_one_is_rejected(n: int) -> None:
    assert _get_code_and_path(lambda: Count(n, "signals", ["a"])) == ("count_n_zero", "")


@pytest.mark.parametrize("n", [1001, 2**31, 10**400])
def test_count_above_the_limit_is_rejected(n: int) -> None:
    assert _get_code_and_path(lambda: Count(n, "signals", ["a"])) == ("count_n_too_large", "")


@pytest.mark.parametrize("n", [True, 1.0, "1", None, float("nan")])
def test_count_must_be_an_integer(n: Any) -> None:
    assert _get_code_and_path(lambda: Count(n, "signals", ["a"])) == ("invalid_type", "")


@pytest.mark.parametrize("distinct", ["source", "SOURCES", "", None, 3, ["sources"]])
def test_unknown_kind_of_count_is_rejected(distinct: Any) -> None:
    assert _get_code_and_path(lambda: Count(1, distinct, ["a"])) == ("invalid_choice", "")


@pytest.mark.parametrize("distinct", list(Distinct))
def test_kind_of_a_count_may_be_its_value(distinct: Distinct) -> None:
    assert Count(1, distinct.value, ["a"]) == Count(1, distinct, ["a"])
    assert Count(1, distinct.value, ["a"]).distinct is distinct


def test_count_without_waitpoints_is_rejected() -> None:
    assert _get_code_and_path(lambda: Count(1, "signals", [])) == ("count_waitpoints_empty", "")


@pytest.mark.parametrize("odd", ["abc", b"xyz", {"a"}, None, 3, iter(["a"])])
def test_waitpoints_must_be_a_list(odd: Any) -> None:
    assert _get_code_and_path(lambda: Count(1, "signals", odd)) == ("invalid_type", "")


def test_repeated_keys_of_a_count_are_dropped() -> None:
    assert Count(2, "waitpoints", ["a", "b", "a"]).waitpoints == ("a", "b")
    assert _get_code_and_path(lambda: Count(2, "waitpoints", ["a", "a"])) == ("count_exceeds_waitpoint_set", "")
    assert len(Count(1, "signals", ["a"] * 1000).waitpoints) == 1


def test_count_may_exceed_its_waitpoints_unless_it_counts_waitpoints() -> None:
    assert _get_code_and_path(lambda: Count(3, "waitpoints", ["a", "b"])) == ("count_exceeds_waitpoint_set", "")
    assert Count(3, "sources", ["a", "b"]).n == Count(3, "signals", ["a"]).n == 3


def test_a_count_has_at_most_64_waitpoints() -> None:
    keys = [f"k{number}" for number in range(65)]
    assert len(Count(1, "signals", keys[:64]).waitpoints) == 64
    assert _get_code_and_path(lambda: Count(1, "signals", keys)) == ("too_many_waitpoints", "")
    assert _get_code_and_path(lambda: Count(1, "signals", ["a"] * 1001)) == ("too_many_waitpoints", "")


# Members


def test_all_of_and_any_of_need_a_member() -> None:
    assert _get_code_and_path(lambda: AllOf([])) == ("allof_empty_members", "")
    assert _get_code_and_path(lambda: AnyOf(())) == ("anyof_empty_members", "")


@pytest.mark.parametrize("make", [AllOf, AnyOf])
def test_member_that_is_not_a_condition_is_rejected_with_its_path(make: Callable[[Any], Condition]) -> None:
    assert _get_code_and_path(lambda: make([PAID, "payment"])) == ("invalid_type", "members[1]")
    assert _get_code_and_path(lambda: make([PAID, AllOf])) == ("invalid_type", "members[1]")
    for odd in (PAID, "ab", None, {PAID}, iter([PAID])):
        assert _get_code_and_path(lambda odd=odd: make(odd)) == ("invalid_type", "")  # type: ignore[misc]


def test_fifth_level_is_rejected_with_its_path() -> None:
    assert waitpoint_keys(_nest(4)) == ("payment",)
    assert _get_code_and_path(lambda: _nest(5)) == (
        "condition_depth_exceeded",
        "members[0].members[0].members[0].members[0]",
    )


def test_count_is_a_level_and_other_leaves_are_not() -> None:
    count = Count(1, "signals", ["a"])
    assert waitpoint_keys(_nest(3, count)) == ("a",)
    assert _catch_error(lambda: _nest(4, count)).code == "condition_depth_exceeded"
    for leaf in (Single("a"), OperatorOnly(), TimeoutOnly()):
        _nest(4, leaf)


def test_path_leads_to_the_member_that_is_too_deep() -> None:
    deep = AnyOf([PAID, _nest(3)])
    assert _get_code_and_path(lambda: AllOf([PAID, deep])) == (
        "condition_depth_exceeded",
        "members[1].members[1].members[0].members[0]",
    )


def test_a_condition_has_at_most_64_leaves() -> None:
    assert len(AllOf([PAID] * 64).members) == 64
    assert _get_code_and_path(lambda: AllOf([PAID] * 65)) == ("too_many_leaves", "members[64]")
    assert _get_code_and_path(lambda: AllOf([PAID] * 10_000)) == ("too_many_leaves", "members[64]")
    halves = [AnyOf([PAID] * 32), AnyOf([PAID] * 32)]
    assert len(AllOf(halves).members) == 2
    assert _get_code_and_path(lambda: AllOf([*halves, TimeoutOnly()])) == ("too_many_leaves", "members[2]")


def test_a_condition_names_at_most_64_waitpoints() -> None:
    first, second = [f"k{number}" for number in range(40)], [f"k{number}" for number in range(24, 65)]
    assert _get_code_and_path(lambda: AllOf([Count(1, "signals", first), Count(1, "signals", second)])) == (
        "too_many_waitpoints",
        "members[1]",
    )
    assert len(waitpoint_keys(AllOf([Count(1, "signals", first), Count(1, "signals", second[:-1])]))) == 64


def test_sum_of_all_counts_is_at_most_a_thousand() -> None:
    half, more = Count(500, "signals", ["a"]), Count(501, "sources", ["a"])
    assert waitpoint_keys(AllOf([half, AnyOf([half])])) == ("a",)
    assert _get_code_and_path(lambda: AllOf([half, AnyOf([PAID, more])])) == (
        "count_n_too_large",
        "members[1].members[1]",
    )


# Whole conditions


def test_every_key_must_be_bound() -> None:
    condition = AllOf([PAID, AnyOf([Single("review"), Count(1, "signals", ["review", "legal"])])])
    _check(condition, "payment", "review", "legal")
    error = _catch_error(lambda: _check(condition, "payment", "review"))
    assert (error.code, error.fields["path"]) == ("waitpoint_not_bound", "members[1].members[1]")
    assert error.fields["waitpoint"] == "legal"


def test_every_binding_must_be_used() -> None:
    error = _catch_error(lambda: _check(PAID, "payment", "review"))
    assert (error.code, error.fields["waitpoints"]) == ("waitpoint_not_used", ("review",))
    condition = AnyOf([PAID, OperatorOnly()])
    assert _get_code_and_path(lambda: _check(condition, "payment", "review")) == ("waitpoint_not_used", "")


def test_condition_without_waitpoints_may_have_bindings() -> None:
    _check(OperatorOnly())
    _check(OperatorOnly(), "payment")
    _check(TimeoutOnly(), "payment", has_timeout=True)
    assert _get_code_and_path(lambda: _check(OperatorOnly(), *(f"k{number}" for number in range(65)))) == (
        "too_many_waitpoints",
        "",
    )


def test_timeout_only_needs_a_timeout_at_every_level() -> None:
    assert _get_code_and_path(lambda: _check(TimeoutOnly())) == ("timeout_only_without_deadline", "")
    nested = AnyOf([PAID, AllOf([TimeoutOnly()])])
    assert _get_code_and_path(lambda: _check(nested, "payment")) == (
        "timeout_only_without_deadline",
        "members[1].members[0]",
    )
    _check(nested, "payment", has_timeout=True)


def test_count_of_more_sources_than_approvers_is_rejected() -> None:
    two = Count(2, "sources", ["a", "b"])
    _check(two, "a", "b", approvers={"a": "ops", "b": "finance"})
    _check(two, "a", "b", approvers={"a": "ops"})
    condition = AllOf([Single("a"), two])
    assert _get_code_and_path(lambda: _check(condition, "a", "b", approvers={"a": "ops", "b": "ops"})) == (
        "count_exceeds_sources",
        "members[1]",
    )
    _check(Count(2, "signals", ["a"]), "a", approvers={"a": "ops"})


@pytest.mark.parametrize("odd", [None, "payment", {"type": "single"}, [PAID], Single, 7])
def test_value_that_is_not_a_condition_is_rejected(odd: Any) -> None:
    assert _get_code_and_path(lambda: _check(odd, "payment")) == ("invalid_type", "")


def test_condition_that_contains_itself_is_rejected() -> None:
    loop = AllOf([PAID])
    object.__setattr__(loop, "members", (loop,))
    assert _catch_error(lambda: _check(loop, "payment")).code == "condition_depth_exceeded"


# Keys and names of a condition


def test_keys_are_distinct_in_order_of_first_use() -> None:
    condition = AllOf([Single("b"), Count(1, "signals", ["c", "b", "a"]), AnyOf([Single("a"), OperatorOnly()])])
    assert waitpoint_keys(condition) == ("b", "c", "a")
    assert waitpoint_keys(TimeoutOnly()) == ()


def test_required_signal_names_are_distinct_and_in_order() -> None:
    condition = AnyOf([Count(2, "sources", ["a", "b"], "approve"), Single("a", "reject"), Single("a", "approve")])
    assert required_signal_names(condition, "a") == ("approve", "reject")
    assert required_signal_names(condition, "b") == ("approve",)


def test_leaf_for_any_signal_overrides_named_ones() -> None:
    condition = AllOf([Single("a", "approve"), Count(1, "signals", ["a"])])
    assert required_signal_names(condition, "a") is None


def test_unused_waitpoint_requires_no_signal_names() -> None:
    assert required_signal_names(AnyOf([PAID, OperatorOnly()]), "elsewhere") == ()
    assert required_signal_names(OperatorOnly(), "payment") == ()


def test_conditions_are_values() -> None:
    condition = AllOf([PAID, Count(2, "sources", ["a"], "approve")])
    same = AllOf((Single("payment", ByName("paid")), Count(2, Distinct.SOURCES, ("a", "a"), "approve")))
    assert condition == same and hash(condition) == hash(same)
    assert pickle.loads(pickle.dumps(condition)) == condition
