"""Tests that SQL guards and pure decisions agree for every state, fence and time, and write the same rows."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.executions.attempts import decide_complete
from flowfabric.core.executions.leases import decide_claim
from flowfabric.core.executions.records import Execution, WorkerId
from flowfabric.core.executions.requests import Checkpoint, Claim, Completion, LeaseTerms, Progress, explain_fence, owns
from flowfabric.core.executions.transitions import CLAIM, RENEW, apply_transition, transition_event
from flowfabric.core.fast_dataclass import replace
from flowfabric.engine import Engine, Fence, FlowFabricError, Lease, Policy, Step
from flowfabric.ops.leases.checkpoint import record_steps_if_owned
from flowfabric.ops.leases.complete import complete_if_owned
from flowfabric.ops.leases.renew import progress_if_owned, renew_if_owned
from flowfabric.store.transaction import Transaction
from flowfabric.testing import VirtualClock
from tests.scenarios import SITUATIONS

FOREIGN_LEASE = UUID(int=7)
HotStatement = Callable[[Transaction, str, Fence], Coroutine[Any, Any, bool]]


async def renew(tx: Transaction, namespace: str, fence: Fence) -> bool:
    return bool(await renew_if_owned(tx, namespace, [fence]))


async def renew_with_event(tx: Transaction, namespace: str, fence: Fence) -> bool:
    return bool(await renew_if_owned(tx, namespace, [fence], with_events=True))


async def record_progress(tx: Transaction, namespace: str, fence: Fence) -> bool:
    return bool(await progress_if_owned(tx, namespace, [Progress(fence=fence, percent=1, message=None)]))


async def complete(tx: Transaction, namespace: str, fence: Fence) -> bool:
    completion = Completion(fence=fence, result=b"out", encoding="json")
    return bool(await complete_if_owned(tx, namespace, [completion]))


async def record_steps(tx: Transaction, namespace: str, fence: Fence) -> bool:
    checkpoint = Checkpoint(fence=fence, steps=(Step("one", b"1"),))
    return bool(await record_steps_if_owned(tx, namespace, [checkpoint]))


HOT_STATEMENTS: dict[str, HotStatement] = {
    "renew": renew,
    "renew with event": renew_with_event,
    "progress": record_progress,
    "complete": complete,
    "checkpoint": record_steps,
}


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_hot_statement_writes_exactly_where_the_pure_guard_allows_it(
    engine: Engine, clock: VirtualClock, situation: str
) -> None:
    id_ = await SITUATIONS[situation](engine, clock)
    execution = await read_stored(engine, id_)
    steps = [timedelta(0), time_until_expiry(execution) - timedelta(microseconds=1), timedelta(microseconds=1)]
    for step in steps:
        clock.advance(max(step, timedelta(0)))
        for fence in make_fences(execution):
            for name, operation in HOT_STATEMENTS.items():
                is_allowed = owns(execution, fence, clock.now())
                has_written = await try_statement(engine, operation, fence)
                assert has_written == is_allowed, f"{name} of {fence} at {clock.now()} in {situation}"


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_every_fence_is_refused_with_the_code_of_the_pure_explanation(
    engine: Engine, clock: VirtualClock, situation: str
) -> None:
    id_ = await SITUATIONS[situation](engine, clock)
    execution = await read_stored(engine, id_)
    for fence in make_fences(execution):
        if owns(execution, fence, clock.now()):
            continue
        expected = explain_fence(execution, fence)
        for refusal in await collect_refusals(engine, fence):
            assert (refusal.code, dict(refusal.fields)) == (expected.code, dict(expected.fields))
    assert await read_stored(engine, id_) == execution


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_claim_agrees_with_the_transition_table_and_with_its_decision(
    engine: Engine, clock: VirtualClock, situation: str
) -> None:
    id_ = await SITUATIONS[situation](engine, clock)
    before = await read_stored(engine, id_)
    lease_id = UUID(int=11)
    claim = Claim(
        lanes=("default",),
        worker=WorkerId("w", "w-1"),
        capabilities=(),
        limit=1,
        kinds=None,
        lease_ttl=timedelta(seconds=9),
    )
    store = engine._context.store
    claimed = await store.run(lambda tx: tx.claim(engine.namespace, claim, lease_id.bytes))
    assert bool(claimed.leases) == (before.state in CLAIM.sources)
    if claimed.leases:
        terms = LeaseTerms(worker=claim.worker, lease_id=lease_id, ttl=claim.lease_ttl)
        decision = decide_claim(before, terms, clock.now())
        assert decision.after is not None
        assert claimed.leases == (decision.outcome,)
        assert await read_stored(engine, id_) == decision.after
        assert (await engine.executions.history(id_))[-1] == decision.event


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_renewal_with_event_writes_what_the_transition_table_requires(
    engine: Engine, clock: VirtualClock, situation: str
) -> None:
    id_ = await SITUATIONS[situation](engine, clock)
    before = await read_stored(engine, id_)
    if before.lease is None or before.lease.expires_at <= clock.now():
        return
    fence = Fence(id_, before.epoch, before.lease.id)
    await engine._context.store.run(lambda tx: renew_with_event(tx, engine.namespace, fence))
    extended = replace(before.lease, expires_at=max(before.lease.expires_at, clock.now() + before.lease.ttl))
    after = apply_transition(before, RENEW, clock.now(), lease=extended)
    assert await read_stored(engine, id_) == after
    assert (await engine.executions.history(id_))[-1] == transition_event(before, after, RENEW)


async def test_fast_complete_writes_what_the_decision_requires(engine: Engine, clock: VirtualClock) -> None:
    policy = Policy(attempt_timeout="1m", retention="2d", deadline="1h")
    submission = await engine.executions.submit("job", b"in", policy=policy, tags={"a.b": "c"})
    lease = await engine.leases.claim_execution(submission.id, "w")
    await engine.leases.progress(lease.fence, 50, "half")
    clock.advance("3s")
    before = await read_stored(engine, submission.id)
    decision = decide_complete(before, Completion(fence=lease.fence, result=b"out", encoding="json"), clock.now())
    await engine.leases.complete(lease.fence, b"out")
    assert await read_stored(engine, submission.id) == decision.after
    assert (await engine.executions.history(submission.id))[-1] == decision.event
    assert (await engine.executions.describe(submission.id)).attempts == (decision.attempt,)


async def test_linked_row_is_left_to_the_slow_complete(engine: Engine, clock: VirtualClock) -> None:
    id_ = await SITUATIONS["active: kept, lease expired"](engine, clock)
    grant = await engine.operator.grant_reclaim(id_, "w")
    lease = await engine.leases.reclaim(grant, "w")
    assert isinstance(lease, Lease)
    assert not lease.is_standalone
    assert not await try_statement(engine, complete, lease.fence)
    await engine.leases.complete(lease.fence, b"out")
    assert (await read_stored(engine, id_)).state == "completed"


async def read_stored(engine: Engine, id_: UUID) -> Execution:
    """Return the execution with every stored field."""
    executions = await engine._context.store.read(lambda tx: tx.executions.get(None, [id_]))
    return executions[id_]


def time_until_expiry(execution: Execution) -> timedelta:
    lease = execution.lease
    return lease.expires_at - lease.acquired_at if lease else timedelta(seconds=30)


def make_fences(execution: Execution) -> Iterable[Fence]:
    """Return fences that combine the live, the former and a foreign lease id with the epochs around the current one."""
    leases = {lease_id.id for lease_id in (execution.lease, execution.former) if lease_id} | {FOREIGN_LEASE}
    epochs = range(max(0, execution.epoch - 2), execution.epoch + 2)
    return [Fence(execution.id, epoch, lease_id) for lease_id in leases for epoch in epochs]


@dataclass
class RollBack(Exception):
    """Raised to roll a transaction back. It carries the result of the transaction to the caller."""

    has_written: bool


async def try_statement(engine: Engine, operation: HotStatement, fence: Fence) -> bool:
    """Execute the statement, roll it back, and return whether it wrote a row."""

    async def body(tx: Transaction) -> None:
        raise RollBack(await operation(tx, engine.namespace, fence))

    with pytest.raises(RollBack) as rolled_back:
        await engine._context.store.run(body)
    return rolled_back.value.has_written


async def collect_refusals(engine: Engine, fence: Fence) -> list[FlowFabricError]:
    """Call every fenced operation with a fence that it must refuse, and return the errors."""
    leases = engine.leases
    refusals = []
    for write in (
        leases.renew(fence),
        leases.progress(fence, 1),
        leases.checkpoint(fence, [Step("one", b"1")]),
        leases.complete(fence, b"other"),
        leases.fail(fence, "other"),
        leases.delay(fence, after=77),
        leases.cancel(fence, "other"),
    ):
        with pytest.raises(FlowFabricError) as refused:
            await write
        refusals.append(refused.value)
    return refusals
