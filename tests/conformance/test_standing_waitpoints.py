"""Tests of `StandingWaitpoint(after=...)`, which skips signals that the worker has already used."""

from __future__ import annotations

import pytest

from flowfabric.engine import (
    Accepted,
    AllOf,
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


@pytest.mark.parametrize("after", [-1, 2**63, 1.5, "1", None, True])
def test_position_is_a_non_negative_integer(after: object) -> None:
    with pytest.raises(InvalidRequest):
        StandingWaitpoint("go", after=after)  # type: ignore[arg-type]
