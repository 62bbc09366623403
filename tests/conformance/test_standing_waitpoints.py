"""Tests of `StandingWaitpoint(after=...)`, which skips signals that the worker has already used."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric.engine import (
    Accepted,
    AllOf,
    AnyOf,
    Count,
    Counted,
    Engine,
    InvalidRequest,
    Lease,
    Satisfied,
    Single,
    StandingWaitpoint,
    State,
    Suspended,
)
from tests.expectations import nothing_written, refused
from tests.scenarios import leased
from tests.stores import TestStore


async def lease_with_signals(engine: Engine, number: int) -> Lease:
    """Return a lease on an execution that has received this many signals."""
    lease = await leased(engine, signals=["go", "stop"])
    for _ in range(number):
        await engine.signals.send(lease.execution_id, "go")
    return lease


async def test_signals_up_to_the_position_do_not_count_and_later_ones_do(engine: Engine) -> None:
    lease = await lease_with_signals(engine, 2)
    assert isinstance(await engine.leases.suspend(lease.fence, [StandingWaitpoint("go", after=2)]), Suspended)
    outcome = await engine.signals.send(lease.execution_id, "go")
    assert isinstance(outcome, Accepted)
    assert outcome.counted is Counted.YES
    assert (await engine.executions.describe(lease.execution_id)).state is State.WAITING


async def test_signals_after_the_position_satisfy_immediately(engine: Engine) -> None:
    lease = await lease_with_signals(engine, 3)
    outcome = await engine.leases.suspend(lease.fence, [StandingWaitpoint("go", after=1)], Count(2, "signals", ["go"]))
    assert isinstance(outcome, Satisfied)
    assert [signal.seq for signal in outcome.signals] == [2, 3]


async def test_each_binding_has_its_own_position(engine: Engine) -> None:
    lease = await lease_with_signals(engine, 1)
    await engine.signals.send(lease.execution_id, "stop")
    condition = AllOf([Single("go"), Single("stop")])
    assert isinstance(
        await engine.leases.suspend(
            lease.fence, [StandingWaitpoint("go"), StandingWaitpoint("stop", after=2)], condition
        ),
        Suspended,
    )
    await engine.signals.send(lease.execution_id, "stop")
    signals = await engine.signals.list(lease.execution_id)
    assert [(signal.waitpoint, signal.seq) for signal in signals] == [("go", 1), ("stop", 3)]


async def test_skipped_signals_still_count_for_a_later_wait(engine: Engine) -> None:
    lease = await lease_with_signals(engine, 1)
    await engine.leases.suspend(lease.fence, [StandingWaitpoint("go", after=1)])
    await engine.operator.resume(lease.execution_id)
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    outcome = await engine.leases.suspend(next_lease.fence, [StandingWaitpoint("go")])
    assert isinstance(outcome, Satisfied)
    assert [signal.seq for signal in outcome.signals] == [1]


async def test_position_after_the_last_signal_is_refused(engine: Engine, store: TestStore) -> None:
    lease = await lease_with_signals(engine, 1)
    async with nothing_written(store):
        await refused(
            engine.leases.suspend(lease.fence, [StandingWaitpoint("go", after=2)]), "out_of_range", InvalidRequest
        )


async def test_other_position_under_the_same_key_is_another_request(engine: Engine) -> None:
    lease = await lease_with_signals(engine, 1)
    first = await engine.leases.suspend(lease.fence, [StandingWaitpoint("go", after=1)])
    assert await engine.leases.suspend(lease.fence, [StandingWaitpoint("go", after=1)]) == first
    await refused(engine.leases.suspend(lease.fence, [StandingWaitpoint("go")]), "execution_not_active")


# Signals that a suspension observed, and that the worker did not use.


EITHER = AnyOf([Single("go"), Single("stop")])


def both(go: int, stop: int) -> list[StandingWaitpoint]:
    return [StandingWaitpoint("go", go), StandingWaitpoint("stop", stop)]


def numbers(outcome: Satisfied | Suspended) -> list[int]:
    assert isinstance(outcome, Satisfied)
    return [signal.seq for signal in outcome.signals]


async def test_signal_that_a_satisfied_suspend_observed_stays_available(engine: Engine) -> None:
    lease = await lease_with_signals(engine, 1)
    await engine.signals.send(lease.execution_id, "stop")
    assert numbers(await engine.leases.suspend(lease.fence, both(0, 0), EITHER)) == [1, 2]
    # The worker has used only the first signal, and waits for the other one.
    assert numbers(await engine.leases.suspend(lease.fence, [StandingWaitpoint("stop", after=0)])) == [2]
    assert numbers(await engine.leases.suspend(lease.fence, both(1, 0), EITHER)) == [2]
    assert isinstance(await engine.leases.suspend(lease.fence, both(1, 2), EITHER), Suspended)


async def test_observed_signal_stays_available_after_suspensions_that_do_not_count_it(engine: Engine) -> None:
    lease = await lease_with_signals(engine, 1)
    await engine.signals.send(lease.execution_id, "go", source_identity="other")
    two = Count(2, "signals", ["go"])
    assert numbers(await engine.leases.suspend(lease.fence, [StandingWaitpoint("go", after=0)], two)) == [1, 2]
    # This suspension counts the first signal only, so it returns the second one to the queue.
    assert numbers(await engine.leases.suspend(lease.fence, [StandingWaitpoint("go", after=0)])) == [1]
    assert numbers(await engine.leases.suspend(lease.fence, [StandingWaitpoint("go", after=1)])) == [2]


async def test_observed_signal_counts_towards_an_open_suspension(engine: Engine) -> None:
    lease = await lease_with_signals(engine, 1)
    await engine.leases.suspend(lease.fence, [StandingWaitpoint("go", after=0)])
    condition = AllOf([Single("go"), Single("stop")])
    assert isinstance(await engine.leases.suspend(lease.fence, both(0, 0), condition), Suspended)
    outcome = await engine.signals.send(lease.execution_id, "stop")
    assert isinstance(outcome, Accepted)
    assert (await engine.executions.describe(lease.execution_id)).state is State.WAITING
    assert [signal.seq for signal in await engine.signals.list(lease.execution_id)] == [1, 2]


async def test_signal_that_ended_a_suspension_stays_available_until_it_is_used(engine: Engine) -> None:
    lease = await lease_with_signals(engine, 0)
    await engine.leases.suspend(lease.fence, both(0, 0), EITHER)
    await engine.signals.send(lease.execution_id, "go")
    later = await engine.leases.claim_resumed(lease.execution_id, "worker-2")
    assert numbers(await engine.leases.suspend(later.fence, [StandingWaitpoint("go", after=0)])) == [1]
    assert isinstance(await engine.leases.suspend(later.fence, [StandingWaitpoint("go", after=1)]), Suspended)


async def test_skipped_signal_counts_although_it_is_before_the_position(engine: Engine) -> None:
    lease = await lease_with_signals(engine, 3)
    skipping = StandingWaitpoint("go", after=3, skipped=(2,))
    assert numbers(await engine.leases.suspend(lease.fence, [skipping])) == [2]
    # An observed signal can be skipped too.
    assert numbers(await engine.leases.suspend(lease.fence, [skipping])) == [2]
    assert isinstance(await engine.leases.suspend(lease.fence, [StandingWaitpoint("go", after=3)]), Suspended)


async def test_without_a_position_a_satisfied_suspension_consumes_its_signals(engine: Engine) -> None:
    lease = await lease_with_signals(engine, 2)
    assert numbers(await engine.leases.suspend(lease.fence, [StandingWaitpoint("go")])) == [1]
    assert numbers(await engine.leases.suspend(lease.fence, [StandingWaitpoint("go")])) == [2]
    assert isinstance(await engine.leases.suspend(lease.fence, [StandingWaitpoint("go")]), Suspended)


@pytest.mark.parametrize("skipped", [(0,), (4,), ("1",), 1])
def test_skipped_signals_are_sequence_numbers_up_to_the_position(skipped: Any) -> None:
    with pytest.raises(InvalidRequest):
        StandingWaitpoint("go", after=3, skipped=skipped)


@pytest.mark.parametrize("after", [-1, 2**63, 1.5, "1", True])
def test_position_is_a_non_negative_integer(after: object) -> None:
    with pytest.raises(InvalidRequest):
        StandingWaitpoint("go", after=after)  # type: ignore[arg-type]
