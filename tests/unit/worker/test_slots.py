"""How many executions a worker claims, by what its performances took lately."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric.worker.slots import Slots


def used(number: int, seconds: float, lease_ttl_s: float = 30.0) -> Slots:
    """Slots in which many performances have taken so long, all free now."""
    slots = Slots(number, lease_ttl_s)
    for _ in range(100):
        slots.begin()
        slots.end(seconds)
    return slots


def test_nothing_is_claimed_ahead_before_anything_has_ended() -> None:
    assert Slots(16, 30).room == 16


@pytest.mark.parametrize(
    ("seconds", "ahead"), [(0.001, 256), (0.01, 160), (0.1, 16), (0.2, 8), (1.6, 1), (2.0, 0), (3600, 0)]
)
def test_as_much_is_claimed_ahead_as_starts_within_a_moment(seconds: float, ahead: int) -> None:
    assert used(16, seconds).room == 16 + ahead


def test_a_short_lease_leaves_less_time_to_wait_for_a_slot() -> None:
    assert used(16, 0.5, lease_ttl_s=1).ahead == used(16, 0.5, lease_ttl_s=30).ahead == 3
    assert used(16, 0.5, lease_ttl_s=0.5).ahead == 1


def test_what_runs_and_what_waits_takes_room() -> None:
    slots = used(4, 0.1)
    slots.begin()
    slots.waiting = 2
    assert slots.room == 4 + 4 - 1 - 2


def test_one_claim_is_not_larger_than_a_batch() -> None:
    assert used(5000, 0.001).room == 1000


def test_nothing_is_claimed_ahead_when_that_was_in_vain_until_slots_get_free_again() -> None:
    slots = used(16, 0.001)
    slots.slow_down()
    assert slots.ahead == 0
    for _ in range(60):
        slots.begin()
        slots.end(0.001)
    assert slots.ahead >= 16


async def test_a_full_worker_waits_until_a_slot_is_free() -> None:
    slots = Slots(1, 30)
    slots.begin()
    waiting = asyncio.create_task(slots.wait_for_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    slots.end(3600)
    slots.note_room()
    async with asyncio.timeout(5):
        assert await waiting == 1


async def test_a_single_free_slot_is_enough_when_no_other_gets_free_soon() -> None:
    slots = used(16, 3600)
    for _ in range(15):
        slots.begin()
    waiting = slots.wait_for_room()
    with pytest.raises(StopIteration) as answered:
        waiting.send(None)  # It answers without waiting at all.
    assert answered.value.value == 1


async def test_room_that_is_gone_when_a_good_part_was_waited_for_is_not_claimed() -> None:
    slots = used(64, 0.001)
    slots.busy, slots.waiting = 64, slots.ahead - 1
    waiting = asyncio.create_task(slots.wait_for_room())
    await asyncio.sleep(0)
    slots.slow_down()
    await asyncio.wait([waiting], timeout=0.1)
    assert not waiting.done()
    slots.waiting = 0
    slots.end(3600)
    slots.note_room()
    async with asyncio.timeout(5):
        assert await waiting == 1
