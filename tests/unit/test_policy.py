"""A policy has the documented defaults, refuses what is out of bounds, and is the same after a trip through JSON."""

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
ODD: list[Any] = [None, True, 1.5, "3", b"3", [], {}, object()]


def _kept(record: Any, name: str, value: Any) -> Any:
    return getattr(record(**{name: value}), name)


def _code(record: Any, name: str, value: Any) -> str:
    with pytest.raises(InvalidRequest) as refused:
        record(**{name: value})
    assert len(str(refused.value)) < 300
    return refused.value.code


def test_the_defaults_are_the_documented_ones() -> None:
    assert {item.name: getattr(Policy(), item.name) for item in fields(Policy)} == {
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
    assert {item.name: getattr(Backoff(), item.name) for item in fields(Backoff)} == {
        "kind": BackoffKind.EXPONENTIAL,
        "initial": timedelta(seconds=1),
        "multiplier": 2.0,
        "most": timedelta(seconds=60),
        "jitter": True,
    }


def test_a_policy_cannot_be_changed() -> None:
    policy = Policy()
    with pytest.raises(FrozenInstanceError):
        policy.max_retries = 4  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(policy)) == policy


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_whole_numbers_from_zero_to_a_million(name: str) -> None:
    for good in (0, 1, 999_999, 1_000_000):
        assert _kept(Policy, name, good) == good
    for bad in (-1, 1_000_001, 2**31, 2**63, 2**64, -(2**64), 10**400):
        assert _code(Policy, name, bad) == "out_of_range"
    for odd in (*ODD, math.nan, math.inf, 3.0):
        assert _code(Policy, name, odd) == "invalid_type"


def test_an_out_of_range_count_names_both_bounds() -> None:
    with pytest.raises(InvalidRequest) as refused:
        Policy(max_retries=-1)
    assert refused.value.fields == {"field": "max_retries", "least": 0, "most": 1_000_000}
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
        assert _kept(Policy, name, good) == good
    for bad in (least - tick, most + tick, timedelta.min, timedelta.max, -1, -0.5):
        assert _code(Policy, name, bad) == "out_of_range"


@pytest.mark.parametrize("name", DURATIONS)
def test_durations_are_normalised_and_odd_ones_refused(name: str) -> None:
    for same in (90, 90.0, "90s", "1.5m", timedelta(seconds=90)):
        assert _kept(Policy, name, same) == timedelta(seconds=90)
    for bad in (math.nan, math.inf, -math.inf, "", "soon", "1y", "-1s", "1e3s"):
        assert _code(Policy, name, bad) == "invalid_duration"
    for odd in (True, b"1s", [], {}, object()):
        assert _code(Policy, name, odd) == "invalid_type"


@pytest.mark.parametrize("name", ["lease_ttl", "dedup_window", "retention"])
def test_only_timeout_and_deadline_may_be_absent(name: str) -> None:
    assert Policy(attempt_timeout=None, deadline=None) == Policy()
    assert _code(Policy, name, None) == "invalid_type"


@pytest.mark.parametrize(("name", "kind"), [("on_attempt_timeout", OnAttemptTimeout), ("on_lease_loss", OnLeaseLoss)])
def test_a_choice_is_a_member_or_its_word(name: str, kind: type[OnLeaseLoss]) -> None:
    for member in kind:
        assert _kept(Policy, name, member.value) is member
    for bad in (*ODD, "", "REQUEUE", "no such word", "x" * 10**6):
        assert _code(Policy, name, bad) == "invalid_policy"


def test_categories_are_distinct_names_in_order() -> None:
    assert Policy(retryable_categories=["b", "a", "b"]).retryable_categories == ("a", "b")
    assert Policy(retryable_categories={"a"}).retryable_categories == ("a",)
    for bad in (["", "a"], ["a\x00"], ["\ud800"], [" a"], ["x" * 257]):
        assert _code(Policy, "retryable_categories", bad) == "invalid_name"
    for odd in (None, "network", b"network", 3, True, object(), [None], [3], [[]]):
        assert _code(Policy, "retryable_categories", odd) == "invalid_type"


@pytest.mark.parametrize("odd", [None, True, 1.5, "fixed", [], {}, {"kind": "fixed"}, object()])
def test_a_backoff_is_a_backoff(odd: Any) -> None:
    assert _code(Policy, "backoff", odd) == "invalid_policy"


def test_the_parts_of_a_backoff_have_bounds() -> None:
    for good in (1, 1.0, 1.5, 999.9, 1000):
        assert Backoff(multiplier=good).multiplier == good
    multipliers: list[Any] = [0, 0.5, 0.999, -2, 1000.1, 1e308, math.nan, math.inf, -math.inf, 2**64, *ODD[:2], "2", []]
    for bad in multipliers:
        assert _code(Backoff, "multiplier", bad) == "out_of_range"
    for jitter in (2, 0, 1, None, "yes", 0.5, object()):
        assert _code(Backoff, "jitter", jitter) == "invalid_type"
    for kind in (None, "", "linear", 1, [], object()):
        assert _code(Backoff, "kind", kind) == "invalid_policy"
    for name in ("initial", "most"):
        assert _kept(Backoff, name, "10m") == timedelta(minutes=10)
        for long in (TEN_YEARS + MS, -MS, "3651d", -1):
            assert _code(Backoff, name, long) == "out_of_range"
        for wrong in (None, True, object()):
            assert _code(Backoff, name, wrong) == "invalid_type"
        for absurd in (math.nan, math.inf):
            assert _code(Backoff, name, absurd) == "invalid_duration"


@pytest.mark.parametrize(
    "number", [1e300, -1e300, 2**64, 10**400, -(10**400)], ids=["1e300", "-1e300", "2^64", "+", "-"]
)
def test_numbers_beyond_reach_are_refused_wherever_they_stand(number: float) -> None:
    for name in DURATIONS:
        assert _code(Policy, name, number) in ("invalid_duration", "out_of_range")
    for name in ("initial", "most"):
        assert _code(Backoff, name, number) in ("invalid_duration", "out_of_range")
    assert _code(Backoff, "multiplier", number) == "out_of_range"


_spans = st.timedeltas(timedelta(0), TEN_YEARS)
_names = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=20)
_counts = st.integers(0, 1_000_000)
BACKOFFS = st.builds(
    Backoff,
    kind=st.sampled_from(BackoffKind),
    initial=_spans,
    multiplier=st.floats(1, 1000),
    most=_spans,
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
def test_a_policy_is_the_same_after_a_trip_through_json(policy: Policy) -> None:
    text = json.dumps(policy.to_json(), allow_nan=False)
    assert Policy.from_json(json.loads(text)) == policy


@given(POLICIES, POLICIES)
def test_two_policies_have_the_same_json_exactly_when_they_are_equal(one: Policy, two: Policy) -> None:
    assert (one.to_json() == two.to_json()) == (one == two)
    assert Policy.from_json(one.to_json()).to_json() == one.to_json()


def test_the_json_is_readable_and_leaves_out_the_defaults() -> None:
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
def test_an_unknown_field_is_refused_with_the_nearest_name(document: dict[str, Any], hint: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Policy.from_json(document)
    assert refused.value.code == "unknown_field"
    assert hint in refused.value.message


@pytest.mark.parametrize(
    "document", [None, [], "{}", 3, True, {"backoff": None}, {"backoff": []}, {"backoff": "fixed"}]
)
def test_what_is_not_an_object_is_no_policy(document: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Policy.from_json(document)
    assert refused.value.code == "invalid_policy"


@pytest.mark.parametrize("key", [1, None, "x" * 10**6, "a\x00b", "\ud800"])
def test_an_absurd_field_name_is_shown_short_and_escaped(key: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Policy.from_json({key: 1})
    assert refused.value.code == "unknown_field"
    assert len(refused.value.message) < 500
    assert refused.value.message.isprintable()


def test_stored_documents_are_checked_like_arguments() -> None:
    with pytest.raises(InvalidRequest) as refused:
        Policy.from_json({"max_retries": -1})
    assert refused.value.code == "out_of_range"


def test_a_span_is_the_timedelta_behind_a_checked_duration() -> None:
    assert span(Policy(lease_ttl="1m").lease_ttl) == timedelta(minutes=1)
    assert optional_span(Policy().deadline) is None
    assert optional_span(Policy(deadline=5).deadline) == timedelta(seconds=5)
