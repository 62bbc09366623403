"""Tests that the policy decides how often and when a failure is retried, by its class and category."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.policy import backoff_delay, may_retry, span
from flowfabric.engine import Backoff, BackoffKind, FailureClass, Policy

NEVER = {FailureClass.PERMANENT, FailureClass.CANCELLED}
SECOND = timedelta(seconds=1)
WITHOUT_JITTER = Backoff(jitter=False)
BACKOFFS = st.builds(
    Backoff,
    kind=st.sampled_from(BackoffKind),
    initial=st.timedeltas(timedelta(0), timedelta(days=365)),
    multiplier=st.floats(1, 1000),
    max_delay=st.none() | st.timedeltas(timedelta(days=365), timedelta(days=3650)),
    jitter=st.just(False),
)


def test_failure_classes_are_those_of_the_contract() -> None:
    assert set(FailureClass) == {"transient", "permanent", "infra_crash", "timeout", "cancelled"}


@pytest.mark.parametrize("failure_class", FailureClass)
@pytest.mark.parametrize(("taken", "maximum"), [(0, 0), (0, 1), (1, 1), (2, 3), (3, 3), (4, 3), (999_999, 1_000_000)])
def test_retry_is_allowed_below_the_maximum_of_the_policy(
    failure_class: FailureClass, taken: int, maximum: int
) -> None:
    allowed = may_retry(Policy(max_retries=maximum), taken, failure_class, "any")
    assert allowed == (taken < maximum and failure_class not in NEVER)


@pytest.mark.parametrize(
    ("categories", "category", "allowed"),
    [
        ((), "network", True),
        (("network",), "network", True),
        (("network",), "disk", False),
        (("network", "disk"), "disk", True),
        (("Network",), "network", False),
        (("attempt_timeout",), "attempt_timeout", True),
    ],
)
def test_only_retryable_categories_are_retried_and_an_empty_list_means_all(
    categories: tuple[str, ...], category: str, allowed: bool
) -> None:
    policy = Policy(retryable_categories=categories)
    assert may_retry(policy, 0, FailureClass.TRANSIENT, category) == allowed
    assert not may_retry(policy, 0, FailureClass.PERMANENT, category)


def test_default_delays_double_from_one_second_to_a_minute() -> None:
    seconds = [backoff_delay(WITHOUT_JITTER, taken, 0.5).total_seconds() for taken in range(9)]
    assert seconds == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_fixed_delay_is_constant() -> None:
    fixed = Backoff(kind=BackoffKind.FIXED, initial="50ms", jitter=False)
    assert {backoff_delay(fixed, taken, 0.9) for taken in (0, 1, 7, 10**9)} == {timedelta(milliseconds=50)}


def test_fixed_backoff_with_an_initial_delay_of_an_hour_waits_an_hour() -> None:
    fixed = Backoff(kind=BackoffKind.FIXED, initial="1h", jitter=False)
    assert {backoff_delay(fixed, taken, 0.9) for taken in (0, 1, 7)} == {timedelta(hours=1)}


def test_no_delay_is_longer_than_the_cap() -> None:
    assert backoff_delay(Backoff(initial="50s", max_delay="1m", jitter=False), 1, 0.5) == timedelta(minutes=1)


@pytest.mark.parametrize("kind", BackoffKind)
@pytest.mark.parametrize("chance", [0.0, 0.25, 0.5, 0.999])
def test_full_jitter_draws_from_zero_to_the_delay(kind: BackoffKind, chance: float) -> None:
    delay = backoff_delay(Backoff(kind=kind, jitter=False), 3, chance)
    jittered = backoff_delay(Backoff(kind=kind), 3, chance)
    assert jittered == delay * chance
    assert timedelta(0) <= jittered < delay


@given(BACKOFFS, st.integers(0, 40))
def test_delay_is_the_initial_delay_grown_and_capped(backoff: Backoff, taken: int) -> None:
    initial, maximum = Fraction(span(backoff.initial) / SECOND), Fraction(span(backoff.max_delay) / SECOND)
    growth = Fraction(backoff.multiplier) ** taken if backoff.kind is BackoffKind.EXPONENTIAL else 1
    expected = min(initial * growth, maximum)
    delay = Fraction(backoff_delay(backoff, taken, 0.5) / SECOND)
    assert abs(delay - expected) <= Fraction(1, 10**6) + expected * Fraction(1, 10**9)


@given(BACKOFFS, st.lists(st.integers(0, 10**12), min_size=2, max_size=8))
def test_delays_never_overflow_shrink_or_exceed_the_cap(backoff: Backoff, taken: list[int]) -> None:
    delays = [backoff_delay(backoff, number, 0.5) for number in sorted(taken)]
    assert all(one <= two for one, two in pairwise(delays))
    assert max(delays) <= span(backoff.max_delay)


@pytest.mark.parametrize("taken", [0, 10, 1023, 1024, 10**6, 10**9])
def test_zero_initial_delay_stays_zero(taken: int) -> None:
    assert backoff_delay(Backoff(initial=0, jitter=False), taken, 0.5) == timedelta(0)


@pytest.mark.parametrize("taken", [1023, 1024, 1025, 10**6, 2**63])
def test_many_retries_wait_for_the_cap(taken: int) -> None:
    assert backoff_delay(WITHOUT_JITTER, taken, 0.5) == timedelta(seconds=60)
    steep = Backoff(multiplier=1000, max_delay="3650d", jitter=False)
    assert backoff_delay(steep, taken, 0.5) == timedelta(days=3650)
