"""Tests for the JSON of conditions and for errors with the path of the invalid member."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.waits.condition_json import from_json, to_json
from flowfabric.core.waits.conditions import AllOf, AnyOf, Condition, Count, OperatorOnly, Single, TimeoutOnly
from flowfabric.engine import InvalidRequest
from tests.unit.core.waits.condition_strategies import conditions

SINGLE = {"type": "single", "waitpoint": "a"}
COUNT = {"type": "count", "n": 1, "distinct": "signals", "waitpoints": ["a"]}


def _catch_error(value: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        from_json(value)
    assert len(str(refused.value)) < 400
    assert refused.value.__context__ is None or refused.value.__suppress_context__
    return refused.value


def _get_code_and_path(value: object) -> tuple[str, object]:
    error = _catch_error(value)
    return error.code, error.fields["path"]


def _all_of(*members: object) -> dict[str, Any]:
    return {"type": "all_of", "members": list(members)}


def test_condition_is_stored_as_readable_json() -> None:
    condition = AnyOf(
        [AllOf([Single("payment", "paid"), Single("review")]), Count(2, "sources", ["ops", "cfo"], "approve"),
         OperatorOnly(), TimeoutOnly()]
    )  # fmt: skip
    assert to_json(condition) == {
        "type": "any_of",
        "members": [
            {
                "type": "all_of",
                "members": [
                    {"type": "single", "waitpoint": "payment", "name": "paid"},
                    {"type": "single", "waitpoint": "review"},
                ],
            },
            {"type": "count", "n": 2, "distinct": "sources", "waitpoints": ["ops", "cfo"], "name": "approve"},
            {"type": "operator_only"},
            {"type": "timeout_only"},
        ],
    }


@given(conditions)
def test_condition_survives_json(condition: Condition) -> None:
    assert from_json(json.loads(json.dumps(to_json(condition)))) == condition


def test_a_null_name_means_any_signal() -> None:
    assert from_json({**SINGLE, "name": None}) == Single("a")


@pytest.mark.parametrize("odd", [None, "single", 7, [SINGLE], True])
def test_value_that_is_not_an_object_is_rejected_with_its_path(odd: Any) -> None:
    assert _get_code_and_path(odd) == ("invalid_type", "")
    assert _get_code_and_path(_all_of(SINGLE, _all_of(odd))) == ("invalid_type", "members[1].members[0]")


@pytest.mark.parametrize("kind", ["Single", "", "any", None, 7, ["single"], {"single": 1}])
def test_unknown_type_is_rejected_with_its_path(kind: Any) -> None:
    assert _get_code_and_path({"type": kind, "waitpoint": "a"}) == ("invalid_choice", "")
    assert _get_code_and_path(_all_of(SINGLE, {"type": kind})) == ("invalid_choice", "members[1]")


def test_missing_type_is_rejected() -> None:
    assert _get_code_and_path({"waitpoint": "a"}) == ("invalid_choice", "")
    assert "absent" in _catch_error({}).message


@pytest.mark.parametrize("value", [SINGLE, COUNT, _all_of(SINGLE), {"type": "operator_only"}, {"type": "timeout_only"}])
def test_unknown_fields_are_rejected(value: dict[str, Any]) -> None:
    assert _get_code_and_path({**value, "extra": 1}) == ("unknown_field", "")
    assert _get_code_and_path(_all_of({**value, "x" * 1000: 1})) == ("unknown_field", "members[0]")
    odd: dict[Any, Any] = {**value, 7: 1}
    assert _get_code_and_path(odd) == ("unknown_field", "")


def test_unknown_field_error_suggests_the_nearest_name() -> None:
    assert "did you mean waitpoint?" in _catch_error({**SINGLE, "waitpont": "a"}).message


@pytest.mark.parametrize(
    ("value", "field"),
    [(SINGLE, "waitpoint"), (COUNT, "n"), (COUNT, "distinct"), (COUNT, "waitpoints"), (_all_of(SINGLE), "members")],
)
def test_missing_field_error_names_the_field(value: dict[str, Any], field: str) -> None:
    incomplete = {key: item for key, item in value.items() if key != field}
    error = _catch_error(_all_of(incomplete))
    assert (error.code, error.fields["path"], error.fields["field"]) == ("missing_field", "members[0]", field)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ({**SINGLE, "waitpoint": ""}, "invalid_name"),
        ({**SINGLE, "waitpoint": 7}, "invalid_type"),
        ({**SINGLE, "name": ""}, "invalid_name"),
        ({**SINGLE, "name": ["paid"]}, "invalid_type"),
        ({**COUNT, "n": 0}, "count_n_zero"),
        ({**COUNT, "n": 1001}, "count_n_too_large"),
        ({**COUNT, "n": True}, "invalid_type"),
        ({**COUNT, "distinct": "people"}, "invalid_choice"),
        ({**COUNT, "waitpoints": []}, "count_waitpoints_empty"),
        ({**COUNT, "waitpoints": "abc"}, "invalid_type"),
        ({**COUNT, "n": 2, "distinct": "waitpoints"}, "count_exceeds_waitpoint_set"),
        ({"type": "all_of", "members": []}, "allof_empty_members"),
        ({"type": "any_of", "members": []}, "anyof_empty_members"),
        ({"type": "any_of", "members": SINGLE}, "invalid_type"),
        ({"type": "all_of", "members": "ab"}, "invalid_type"),
    ],
)
def test_invalid_member_is_rejected_with_its_path(value: dict[str, Any], code: str) -> None:
    assert _get_code_and_path(value) == (code, "")
    error = _catch_error(_all_of(SINGLE, _all_of(SINGLE, value)))
    assert (error.code, error.fields["path"]) == (code, "members[1].members[1]")
    assert error.message.startswith("members[1].members[1]")


def test_too_many_leaves_error_has_the_path_of_the_first_extra_leaf() -> None:
    assert _get_code_and_path(_all_of(SINGLE, _all_of(*[SINGLE] * 65))) == ("too_many_leaves", "members[1].members[64]")


def test_deep_nesting_is_rejected_at_the_fifth_level() -> None:
    value: Any = SINGLE
    for _ in range(50_000):
        value = {"type": "any_of", "members": [value]}
    assert _get_code_and_path(value) == ("condition_depth_exceeded", "members[0].members[0].members[0].members[0]")
    # Unlink the values one by one, because freeing them together would recurse too deeply.
    while isinstance(value, dict) and "members" in value:
        value = value["members"].pop()


def test_a_count_on_the_fifth_level_is_too_deep_and_a_single_is_not() -> None:
    assert from_json(_all_of(_all_of(_all_of(_all_of(SINGLE))))) == AllOf([AllOf([AllOf([AllOf([Single("a")])])])])
    path = "members[0].members[0].members[0].members[0]"
    assert _get_code_and_path(_all_of(_all_of(_all_of(_all_of(COUNT))))) == ("condition_depth_exceeded", path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "members", "waitpoint", "waitpoints", "n", "distinct", "name"]), inner, max_size=5
        )
    ),
)


@given(JSON)
def test_any_json_is_a_condition_or_rejected_with_a_path(value: Any) -> None:
    condition, error = _parse(value)
    assert condition is None or from_json(to_json(condition)) == condition
    assert error is None or isinstance(error.fields["path"], str)


def _parse(value: object) -> tuple[Condition | None, InvalidRequest | None]:
    try:
        return from_json(value), None
    except InvalidRequest as error:
        return None, error
