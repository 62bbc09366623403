"""Tests of long queues: a wait reads only as many queued signals as its condition can count."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flowfabric.core.waits import evaluate
from flowfabric.core.waits.conditions import waitpoint_keys
from flowfabric.engine import (
    AllOf,
    AnyOf,
    Condition,
    Count,
    Engine,
    Lease,
    Satisfied,
    Single,
    StandingWaitpoint,
    Suspended,
)
from flowfabric.store.waits import WaitStore
from tests.scenarios import leased

SHORT, LONG = 20, 400


class Cost:
    """The numbers of rows that suspends read, and of signals that they evaluate."""

    rows = evaluations = 0


@contextmanager
def counted() -> Iterator[Cost]:
    """Count the cost of waits in the block."""
    cost, read, add = Cost(), WaitStore.available_signals, evaluate._Tally.add

    async def read_counted(self: WaitStore, *arguments: object) -> object:
        signals = await read(self, *arguments)  # type: ignore[arg-type]
        cost.rows += sum(len(group) for part in signals for group in part.values())
        return signals

    def add_counted(self: evaluate._Tally, signal: evaluate.SignalFacts) -> evaluate.Counted:
        cost.evaluations += 1
        return add(self, signal)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WaitStore, "available_signals", read_counted)
        patch.setattr(evaluate._Tally, "add", add_counted)
        yield cost


async def lease_with_backlog(engine: Engine, number: int, name: str = "go") -> Lease:
    """Return a lease on an execution whose queue `go` has this many signals."""
    lease = await leased(engine, signals=["go", "stop"])
    waitpoint = await engine.waitpoints.create(lease.fence, "go")
    assert waitpoint.token is not None
    await asyncio.gather(*(engine.signals.deliver(waitpoint.token, name) for _ in range(number)))
    return lease


async def take(engine: Engine, lease: Lease, condition: Condition, times: int) -> Cost:
    """Suspend with this condition again and again, and return the cost. Every suspend takes signals of the queue."""
    position = 0
    with counted() as cost:
        for _ in range(times):
            waitpoints = [StandingWaitpoint(key, position) for key in waitpoint_keys(condition)]
            outcome = await engine.leases.suspend(lease.fence, waitpoints, condition)
            assert isinstance(outcome, Satisfied)
            position = outcome.signals[-1].seq
            snapshot = await engine.leases.read_waits(lease.fence, {"go": position}, limits={"go": 1})
            assert len(snapshot.signals) <= 1
    return cost


@pytest.mark.parametrize(
    ("condition", "each"),
    [
        (Single("go"), 1),
        (Count(3, "signals", ["go"]), 3),
        (AnyOf([Single("stop"), Single("go")]), 1),
    ],
    ids=["single", "count", "race"],
)
async def test_cost_of_a_queued_signal_does_not_depend_on_the_length_of_the_queue(
    engine: Engine, condition: Condition, each: int
) -> None:
    for number in (SHORT, LONG):
        cost = await take(engine, await lease_with_backlog(engine, number), condition, times=5)
        # A suspend may also read the signals that the suspend before it has observed.
        assert cost.rows <= 2 * 5 * each
        assert cost.evaluations <= 2 * 5 * each


async def test_unmet_condition_does_not_read_the_queue_of_a_met_member(engine: Engine) -> None:
    lease = await lease_with_backlog(engine, LONG)
    waitpoints = [StandingWaitpoint("go", 0), StandingWaitpoint("stop", 0)]
    with counted() as cost:
        condition = AllOf([Single("go"), Single("stop")])
        assert isinstance(await engine.leases.suspend(lease.fence, waitpoints, condition), Suspended)
    assert (cost.rows, cost.evaluations) == (1, 1)


async def test_condition_finds_a_signal_behind_many_that_do_not_match(engine: Engine) -> None:
    lease = await lease_with_backlog(engine, 150, name="normal")
    await engine.signals.send(lease.execution_id, "go")
    outcome = await engine.leases.suspend(lease.fence, [StandingWaitpoint("go", 0)], Single("go", "go"))
    assert isinstance(outcome, Satisfied)
    assert [signal.seq for signal in outcome.signals] == [151]
    snapshot = await engine.leases.read_waits(lease.fence, {"go": 0}, limits={"go": 2})
    assert [signal.seq for signal in snapshot.signals] == [1, 2, 151]
