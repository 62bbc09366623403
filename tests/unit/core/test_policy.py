"""Tests for the defaults, bounds and JSON of a policy."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import FrozenInstanceError, fields
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.policy import optional_span, span
from flowfabric.engine import Backoff, BackoffKind, InvalidRequest, OnAttemptTimeout, OnLeaseLoss, Policy

MS = timedelta(milliseconds=1)
TEN_YEARS = timedelta(days=3650)
COUNTS = ("max_retries", "max_reclaims", "max_replays", "max_signals")
DURATIONS = ("attempt_timeout", "deadline", "lease_ttl", "dedup_window", "retention")
OTHER_TYPES: list[Any] = [None, True, 1.5, "3", b"3", [], {}, object()]


def _normalize(record: Any, name: str, value: Any) -> Any:
    return getattr(record(**{name: value}), name)


def _get_error_code(record: Any, name: str, value: Any) -> str:
    with pytest.raises(InvalidRequest) as refused:
        record(**{name: value})
    assert len(str(refused.value)) < 300
    return refused.value.code


def test_policy_has_the_documented_defaults() -> None:
    assert {field.name: getattr(Policy(), field.name) for field in fields(Policy)} == {
        "max_retries": 3,
        "backoff": Backoff(),
        "retryable_categories": (),
        "attempt_timeout": None,
        "on_attempt_timeout": OnAttemptTimeout.RETRY,
        "deadline": None,
        "lease_ttl": timedelta(seconds=30),
        "on_lease_loss": OnLeaseLoss.REQUEUE,
        "max_reclaims": 100,
        "max_replays": 10,
        "max_signals": 10_000,
        "dedup_window": timedelta(hours=24),
        "retention": timedelta(days=30),
    }
    assert {field.name: getattr(Backoff(), field.name) for field in fields(Backoff)} == {
        "kind": BackoffKind.EXPONENTIAL,
        "initial": timedelta(seconds=1),
        "multiplier": 2.0,
        "max_delay": timedelta(seconds=60),
        "jitter": True,
    }


def test_policy_is_frozen() -> None:
    policy = Policy()
    with pytest.raises(FrozenInstanceError):
        policy.max_retries = 4  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(policy)) == policy


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_integers_from_zero_to_a_million(name: str) -> None:
    for good in (0, 1, 999_999, 1_000_000):
        assert _normalize(Policy, name, good) == good
    for bad in (-1, 1_000_001, 2**31, 2**63, 2**64, -(2**64), 10**400):
        assert _get_error_code(Policy, name, bad) == "out_of_range"
    for odd in (*OTHER_TYPES, math.nan, math.inf, 3.0):
        assert _get_error_code(Policy, name, odd) == "invalid_type"


def test_count_out_of_range_error_has_both_bounds() -> None:
    with pytest.raises(InvalidRequest) as refused:
        Policy(max_retries=-1)
    assert refused.value.fields == {"field": "max_retries", "minimum": 0, "maximum": 1_000_000}
    assert "0 and 1000000" in refused.value.message


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("attempt_timeout", MS, TEN_YEARS),
        ("deadline", MS, TEN_YEARS),
        ("lease_ttl", timedelta(seconds=1), timedelta(days=7)),
        ("dedup_window", timedelta(0), TEN_YEARS),
        ("retention", timedelta(0), TEN_YEARS),
    ],
)
def test_durations_have_bounds(name: str, least: timedelta, most: timedelta) -> None:
    tick = timedelta(microseconds=1)
    for good in (least, least + tick, most - tick, most):
        assert _normalize(Policy, name, good) == good
    for bad in (least - tick, most + tick, timedelta.min, timedelta.max, -1, -0.5):
        assert _get_error_code(Policy, name, bad) == "out_of_range"


@pytest.mark.parametrize("name", DURATIONS)
def test_durations_are_normalized_and_invalid_ones_rejected(name: str) -> None:
    for same in (90, 90.0, "90s", "1.5m", timedelta(seconds=90)):
        assert _normalize(Policy, name, same) == timedelta(seconds=90)
    for bad in (math.nan, math.inf, -math.inf, "", "soon", "1y", "-1s", "1e3s"):
        assert _get_error_code(Policy, name, bad) == "invalid_duration"
    for odd in (True, b"1s", [], {}, object()):
        assert _get_error_code(Policy, name, odd) == "invalid_type"


@pytest.mark.parametrize("name", ["lease_ttl", "dedup_window", "retention"])
def test_only_timeout_and_deadline_may_be_absent(name: str) -> None:
    assert Policy(attempt_timeout=None, deadline=None) == Policy()
    assert _get_error_code(Policy, name, None) == "invalid_type"


@pytest.mark.parametrize(("name", "kind"), [("on_attempt_timeout", OnAttemptTimeout), ("on_lease_loss", OnLeaseLoss)])
def test_choice_is_an_enum_member_or_its_value(name: str, kind: type[OnLeaseLoss]) -> None:
    for member in kind:
        assert _normalize(Policy, name, member.value) is member
    for bad in (*OTHER_TYPES, "", "REQUEUE", "no such word", "x" * 10**6):
        assert _get_error_code(Policy, name, bad) == "invalid_policy"


def test_categories_are_distinct_sorted_names() -> None:
    assert Policy(retryable_categories=["b", "a", "b"]).retryable_categories == ("a", "b")
    assert Policy(retryable_categories={"a"}).retryable_categories == ("a",)
    for bad in (["", "a"], ["a\x00"], ["\ud800"], [" a"], ["x" * 257]):
        assert _get_error_code(Policy, "retryable_categories", bad) == "invalid_name"
    for odd in (None, "network", b"network", 3, True, object(), [None], [3], [[]]):
        assert _get_error_code(Policy, "retryable_categories", odd) == "invalid_type"


@pytest.mark.parametrize("odd", [None, True, 1.5, "fixed", [], {}, {"kind": "fixed"}, object()])
def test_backoff_must_be_a_backoff_object(odd: Any) -> None:
    assert _get_error_code(Policy, "backoff", odd) == "invalid_policy"


def test_backoff_fields_have_bounds() -> None:
    for good in (1, 1.0, 1.5, 999.9, 1000):
        assert Backoff(multiplier=good).multiplier == good
    multipliers: list[Any] = [
        0,
        0.5,
        0.999,
        -2,
        1000.1,
        1e308,
        math.nan,
        math.inf,
        -math.inf,
        2**64,
        *OTHER_TYPES[:2],
        "2",
        [],
    ]
    for bad in multipliers:
        assert _get_error_code(Backoff, "multiplier", bad) == "out_of_range"
    for jitter in (2, 0, 1, None, "yes", 0.5, object()):
        assert _get_error_code(Backoff, "jitter", jitter) == "invalid_type"
    for kind in (None, "", "linear", 1, [], object()):
        assert _get_error_code(Backoff, "kind", kind) == "invalid_policy"
    assert _get_error_code(Backoff, "initial", None) == "invalid_type"
    for name in ("initial", "max_delay"):
        assert _normalize(Backoff, name, "10m") == timedelta(minutes=10)
        for too_long in (TEN_YEARS + MS, -MS, "3651d", -1):
            assert _get_error_code(Backoff, name, too_long) == "out_of_range"
        for other_type in (True, object()):
            assert _get_error_code(Backoff, name, other_type) == "invalid_type"
        for not_finite in (math.nan, math.inf):
            assert _get_error_code(Backoff, name, not_finite) == "invalid_duration"


@pytest.mark.parametrize(
    "number", [1e300, -1e300, 2**64, 10**400, -(10**400)], ids=["1e300", "-1e300", "2^64", "+", "-"]
)
def test_huge_numbers_are_rejected_in_every_field(number: float) -> None:
    for name in DURATIONS:
        assert _get_error_code(Policy, name, number) in ("invalid_duration", "out_of_range")
    for name in ("initial", "max_delay"):
        assert _get_error_code(Backoff, name, number) in ("invalid_duration", "out_of_range")
    assert _get_error_code(Backoff, "multiplier", number) == "out_of_range"


_spans = st.timedeltas(timedelta(0), TEN_YEARS)
_names = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=20)
_counts = st.integers(0, 1_000_000)
BACKOFFS = st.builds(
    Backoff,
    kind=st.sampled_from(BackoffKind),
    initial=_spans,
    multiplier=st.floats(1, 1000),
    max_delay=st.none() | st.just(TEN_YEARS),
    jitter=st.booleans(),
)
POLICIES = st.builds(
    Policy,
    max_retries=_counts,
    backoff=BACKOFFS,
    retryable_categories=st.lists(_names.filter(str.isprintable), max_size=5),
    attempt_timeout=st.none() | st.timedeltas(MS, TEN_YEARS),
    on_attempt_timeout=st.sampled_from(OnAttemptTimeout),
    deadline=st.none() | st.timedeltas(MS, TEN_YEARS),
    lease_ttl=st.timedeltas(timedelta(seconds=1), timedelta(days=7)),
    on_lease_loss=st.sampled_from(OnLeaseLoss),
    max_reclaims=_counts,
    max_replays=_counts,
    max_signals=_counts,
    dedup_window=_spans,
    retention=_spans,
)


@given(POLICIES)
def test_policy_survives_json(policy: Policy) -> None:
    text = json.dumps(policy.to_json(), allow_nan=False)
    assert Policy.from_json(json.loads(text)) == policy


@given(POLICIES, POLICIES)
def test_policies_have_equal_json_if_and_only_if_they_are_equal(one: Policy, two: Policy) -> None:
    assert (one.to_json() == two.to_json()) == (one == two)
    assert Policy.from_json(one.to_json()).to_json() == one.to_json()


def test_backoff_whose_initial_delay_is_above_its_max_delay_is_refused() -> None:
    for kind in BackoffKind:
        with pytest.raises(InvalidRequest, match=r"max_delay is 60 s, shorter than backoff.initial, which is 3600 s"):
            Backoff(kind=kind, initial="1h", max_delay="60s")
        assert Backoff(kind=kind, initial="1h").max_delay == timedelta(hours=1)


def test_stored_backoff_keeps_the_delay_that_it_was_stored_with() -> None:
    contradiction = Policy.from_json({"backoff": {"kind": "fixed", "initial": 3600.0, "max_delay": 30.0}})
    by_default = Policy.from_json({"backoff": {"kind": "fixed", "initial": 3600.0}})
    assert contradiction.backoff == Backoff(kind=BackoffKind.FIXED, initial="30s", max_delay="30s")
    assert by_default.backoff == Backoff(kind=BackoffKind.FIXED, initial="60s")


def test_policy_json_omits_defaults() -> None:
    assert Policy().to_json() == {}
    policy = Policy(max_retries=0, lease_ttl="1m", backoff=Backoff(kind=BackoffKind.FIXED), retryable_categories=["a"])
    expected = {"max_retries": 0, "backoff": {"kind": "fixed"}, "retryable_categories": ["a"], "lease_ttl": 60.0}
    assert policy.to_json() == expected


@pytest.mark.parametrize(
    ("document", "hint"),
    [
        ({"max_retrys": 1}, "max_retries"),
        ({"lease_tl": 5}, "lease_ttl"),
        ({"backoff": {"jiter": True}}, "jitter"),
        ({"backoff": {"multiplyer": 2}}, "multiplier"),
        ({"zzz": 1}, "max_retries"),
        ({"": 1}, "max_retries"),
    ],
)
def test_unknown_field_error_suggests_the_nearest_name(document: dict[str, Any], hint: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Policy.from_json(document)
    assert refused.value.code == "unknown_field"
    assert hint in refused.value.message


@pytest.mark.parametrize(
    "document", [None, [], "{}", 3, True, {"backoff": None}, {"backoff": []}, {"backoff": "fixed"}]
)
def test_from_json_rejects_other_types(document: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Policy.from_json(document)
    assert refused.value.code == "invalid_policy"


@pytest.mark.parametrize("key", [1, None, "x" * 10**6, "a\x00b", "\ud800"])
def test_invalid_field_name_is_shown_short_and_escaped(key: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Policy.from_json({key: 1})
    assert refused.value.code == "unknown_field"
    assert len(refused.value.message) < 500
    assert refused.value.message.isprintable()


def test_from_json_validates_like_the_constructor() -> None:
    with pytest.raises(InvalidRequest) as refused:
        Policy.from_json({"max_retries": -1})
    assert refused.value.code == "out_of_range"


def test_span_returns_the_timedelta_of_a_duration() -> None:
    assert span(Policy(lease_ttl="1m").lease_ttl) == timedelta(minutes=1)
    assert optional_span(Policy().deadline) is None
    assert optional_span(Policy(deadline=5).deadline) == timedelta(seconds=5)
