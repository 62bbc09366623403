"""Tests for the crashes of the kit, its virtual clock and its matching of approvers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from flowfabric.engine import InvalidRequest
from flowfabric.testing import VirtualClock
from flowfabric.testing.decisions import is_for
from flowfabric.testing.hooks import Crash


def test_a_crash_happens_at_its_path_and_moment() -> None:
    crash = Crash("after", "pay")
    assert crash.matches("after", "pay", 3)
    assert not crash.matches("before", "pay", 3)
    assert not crash.matches("after", "pay#2", 3)


def test_a_crash_happens_at_its_number() -> None:
    crash = Crash("before", number=3)
    assert crash.matches("before", "pay", 3)
    assert not crash.matches("before", "pay", 2)


def test_the_clock_never_goes_back() -> None:
    clock = VirtualClock(datetime(2030, 1, 2, tzinfo=UTC))
    clock.advance_to(datetime(2030, 1, 1, tzinfo=UTC))
    assert clock.now() == datetime(2030, 1, 2, tzinfo=UTC)
    assert clock.advance_to(clock.now() + timedelta(hours=1)) == datetime(2030, 1, 2, 1, tzinfo=UTC)


def test_clock_rejects_naive_timestamps() -> None:
    with pytest.raises(InvalidRequest):
        VirtualClock().advance_to(datetime(2030, 1, 1))  # noqa: DTZ001 - the mistake under test


@pytest.mark.parametrize(
    "key", ["approval:plan[ann]", "approval:plan#2[ann]", "gather[0]/approval:plan[ann]", "approval:plan"]
)
def test_key_matches_its_approver_in_any_scope(key: str) -> None:
    assert is_for(key, "plan", "ann")


@pytest.mark.parametrize("key", ["approval:plan[bob]", "approval:plans[ann]", "approval:other", "approval:plan[anna]"])
def test_key_does_not_match_another_approver_or_approval(key: str) -> None:
    assert not is_for(key, "plan", "ann")
