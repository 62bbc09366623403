"""Tests for the number of executions that a worker claims, given the duration of its recent runs."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric.worker.active_runs import Slots


def make_used_slots(number: int, seconds: float, lease_ttl_s: float = 30.0) -> Slots:
    """Return `number` free slots. Each of their recent runs took `seconds`."""
    slots = Slots(number, lease_ttl_s)
    for _ in range(100):
        slots.start_run()
        slots.end_run(seconds)
    return slots


def test_worker_claims_nothing_ahead_before_a_run_has_ended() -> None:
    assert Slots(16, 30).claimable == 16


@pytest.mark.parametrize(
    ("seconds", "ahead"), [(0.001, 256), (0.01, 160), (0.1, 16), (0.2, 8), (1.6, 1), (2.0, 0), (3600, 0)]
)
def test_worker_claims_ahead_what_starts_soon(seconds: float, ahead: int) -> None:
    assert make_used_slots(16, seconds).claimable == 16 + ahead


def test_short_lease_reduces_claims_ahead() -> None:
    assert make_used_slots(16, 0.5, lease_ttl_s=1).prefetch == make_used_slots(16, 0.5, lease_ttl_s=30).prefetch == 3
    assert make_used_slots(16, 0.5, lease_ttl_s=0.5).prefetch == 1


def test_running_and_waiting_executions_take_room() -> None:
    slots = make_used_slots(4, 0.1)
    slots.start_run()
    slots.pending = 2
    assert slots.claimable == 4 + 4 - 1 - 2


def test_claim_is_not_larger_than_a_batch() -> None:
    assert make_used_slots(5000, 0.001).claimable == 1000


def test_slow_down_stops_claims_ahead_until_slots_become_free() -> None:
    slots = make_used_slots(16, 0.001)
    slots.slow_down()
    assert slots.prefetch == 0
    for _ in range(60):
        slots.start_run()
        slots.end_run(0.001)
    assert slots.prefetch >= 16


async def test_full_worker_waits_until_a_slot_is_free() -> None:
    slots = Slots(1, 30)
    slots.start_run()
    waiting = asyncio.create_task(slots.wait_until_claimable())
    await asyncio.sleep(0)
    assert not waiting.done()
    slots.end_run(3600)
    slots.notify_claimer()
    async with asyncio.timeout(5):
        assert await waiting == 1


async def test_single_free_slot_is_enough_if_no_other_becomes_free_soon() -> None:
    slots = make_used_slots(16, 3600)
    for _ in range(15):
        slots.start_run()
    waiting = slots.wait_until_claimable()
    with pytest.raises(StopIteration) as stopped:
        waiting.send(None)  # `wait_until_claimable` returns without waiting.
    assert stopped.value.value == 1


async def test_room_that_disappears_during_the_wait_is_not_claimed() -> None:
    slots = make_used_slots(64, 0.001)
    slots.busy, slots.pending = 64, slots.prefetch - 1
    waiting = asyncio.create_task(slots.wait_until_claimable())
    await asyncio.sleep(0)
    slots.slow_down()
    await asyncio.wait([waiting], timeout=0.1)
    assert not waiting.done()
    slots.pending = 0
    slots.end_run(3600)
    slots.notify_claimer()
    async with asyncio.timeout(5):
        assert await waiting == 1
