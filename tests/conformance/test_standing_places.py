"""A standing waitpoint may be bound behind a place: what came up to there is used already, by the worker's account."""

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
    Standing,
    State,
    Suspended,
)  # fmt: skip
from tests.facts import nothing_written, refused
from tests.scenarios import leased
from tests.stores import TestStore


async def sent(engine: Engine, number: int) -> Lease:
    """A lease on an execution to which that many signals have come."""
    lease = await leased(engine, signals=["go", "stop"])
    for _ in range(number):
        await engine.signals.send(lease.execution_id, "go")
    return lease


async def test_signals_up_to_the_place_do_not_count_and_later_ones_do(engine: Engine) -> None:
    lease = await sent(engine, 2)
    assert isinstance(await engine.leases.suspend(lease.fence, [Standing("go", after=2)]), Suspended)
    answer = await engine.signals.send(lease.execution_id, "go")
    assert isinstance(answer, Accepted)
    assert answer.counted is Counted.YES
    assert (await engine.executions.describe(lease.execution_id)).state is State.WAITING


async def test_signals_behind_the_place_satisfy_at_once(engine: Engine) -> None:
    lease = await sent(engine, 3)
    answer = await engine.leases.suspend(lease.fence, [Standing("go", after=1)], Count(2, "signals", ["go"]))
    assert isinstance(answer, Satisfied)
    assert [signal.seq for signal in answer.signals] == [2, 3]


async def test_each_binding_has_its_own_place(engine: Engine) -> None:
    lease = await sent(engine, 1)
    await engine.signals.send(lease.execution_id, "stop")
    both = AllOf([Single("go"), Single("stop")])
    assert isinstance(
        await engine.leases.suspend(lease.fence, [Standing("go"), Standing("stop", after=2)], both), Suspended
    )
    await engine.signals.send(lease.execution_id, "stop")
    found = await engine.signals.observe(lease.execution_id)
    assert [(signal.waitpoint, signal.seq) for signal in found] == [("go", 1), ("stop", 3)]


async def test_what_was_passed_over_counts_for_whoever_asks_for_it_later(engine: Engine) -> None:
    lease = await sent(engine, 1)
    await engine.leases.suspend(lease.fence, [Standing("go", after=1)])
    await engine.operator.resume(lease.execution_id)
    again = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    answer = await engine.leases.suspend(again.fence, [Standing("go")])
    assert isinstance(answer, Satisfied)
    assert [signal.seq for signal in answer.signals] == [1]


async def test_a_place_behind_the_last_signal_is_refused(engine: Engine, store: TestStore) -> None:
    lease = await sent(engine, 1)
    async with nothing_written(store):
        await refused(engine.leases.suspend(lease.fence, [Standing("go", after=2)]), "out_of_range", InvalidRequest)


async def test_another_place_under_the_same_key_is_another_request(engine: Engine) -> None:
    lease = await sent(engine, 1)
    first = await engine.leases.suspend(lease.fence, [Standing("go", after=1)])
    assert await engine.leases.suspend(lease.fence, [Standing("go", after=1)]) == first
    await refused(engine.leases.suspend(lease.fence, [Standing("go")]), "execution_not_active")


@pytest.mark.parametrize("after", [-1, 2**63, 1.5, "1", None, True])
def test_a_place_is_a_whole_number_from_zero(after: object) -> None:
    with pytest.raises(InvalidRequest):
        Standing("go", after=after)  # type: ignore[arg-type]
