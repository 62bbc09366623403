"""The guards in SQL and the pure decisions agree, over every situation, fence and moment; so do the rows they write."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.attempts import decide_complete
from flowfabric.core.fences import explain, owns
from flowfabric.core.frozen import replace
from flowfabric.core.leasing import decide_claim
from flowfabric.core.outcomes import lease_of
from flowfabric.core.records import Execution, WorkerId
from flowfabric.core.requests import Checkpoint, Claim, Completion, LeaseTerms, Progress
from flowfabric.core.transitions import CLAIM, RENEW, event_of, move
from flowfabric.engine import Engine, Fence, FlowFabricError, Lease, Policy, Step
from flowfabric.store.transaction import Transaction
from flowfabric.testing import VirtualClock
from tests.scenarios import SITUATIONS

FOREIGN_LEASE = UUID(int=7)
Hot = Callable[[Transaction, str, Fence], Coroutine[Any, Any, bool]]


async def renews(tx: Transaction, namespace: str, fence: Fence) -> bool:
    return bool(await tx.hot.renew_if_owned(namespace, [fence]))


async def renews_noted(tx: Transaction, namespace: str, fence: Fence) -> bool:
    return bool(await tx.hot.renew_if_owned(namespace, [fence], noted=True))


async def progresses(tx: Transaction, namespace: str, fence: Fence) -> bool:
    return bool(await tx.hot.progress_if_owned(namespace, [Progress(fence=fence, percent=1, message=None)]))


async def completes(tx: Transaction, namespace: str, fence: Fence) -> bool:
    completion = Completion(fence=fence, result=b"out", encoding="json")
    return bool(await tx.hot.complete_if_owned(namespace, [completion]))


async def records(tx: Transaction, namespace: str, fence: Fence) -> bool:
    checkpoint = Checkpoint(fence=fence, steps=(Step("one", b"1"),))
    return bool(await tx.hot.record_steps_if_owned(namespace, [checkpoint]))


HOT: dict[str, Hot] = {
    "renew": renews, "renew noted": renews_noted, "progress": progresses, "complete": completes, "checkpoint": records,
}  # fmt: skip


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_a_hot_statement_writes_exactly_where_the_pure_guard_allows_it(
    engine: Engine, clock: VirtualClock, situation: str
) -> None:
    id_ = await SITUATIONS[situation](engine, clock)
    execution = await stored(engine, id_)
    moments = [timedelta(0), until_expiry(execution) - timedelta(microseconds=1), timedelta(microseconds=1)]
    for step in moments:
        clock.advance(max(step, timedelta(0)))
        for fence in fences_of(execution):
            for name, operation in HOT.items():
                allowed = owns(execution, fence, clock.now())
                written = await tried(engine, operation, fence)
                assert written == allowed, f"{name} of {fence} at {clock.now()} in {situation}"


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_every_fence_is_refused_with_the_code_of_the_pure_explanation(
    engine: Engine, clock: VirtualClock, situation: str
) -> None:
    id_ = await SITUATIONS[situation](engine, clock)
    execution = await stored(engine, id_)
    for fence in fences_of(execution):
        if owns(execution, fence, clock.now()):
            continue
        expected = explain(execution, fence)
        for answer in await attempts_to_write(engine, fence):
            assert (answer.code, dict(answer.fields)) == (expected.code, dict(expected.fields))
    assert await stored(engine, id_) == execution


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_a_claim_takes_exactly_what_the_transition_table_allows_and_writes_what_the_decision_says(
    engine: Engine, clock: VirtualClock, situation: str
) -> None:
    id_ = await SITUATIONS[situation](engine, clock)
    before = await stored(engine, id_)
    lease_id = UUID(int=11)
    claim = Claim(
        lanes=("default",), worker=WorkerId("w", "w-1"), capabilities=(), limit=1, kinds=None,
        lease_ttl=timedelta(seconds=9),
    )  # fmt: skip
    store = engine._context.store
    taken = await store.run(lambda tx: tx.hot.claim(engine.namespace, claim, lease_id.bytes))
    assert bool(taken.leases) == (before.state in CLAIM.sources)
    if taken.leases:
        terms = LeaseTerms(worker=claim.worker, lease_id=lease_id, ttl=claim.lease_ttl)
        decided = decide_claim(before, terms, clock.now())
        assert decided.after is not None
        assert taken.leases == (lease_of(decided.after),)
        assert await stored(engine, id_) == decided.after
        assert (await engine.executions.history(id_))[-1] == decided.event


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_a_noted_renewal_writes_what_the_transition_table_says(
    engine: Engine, clock: VirtualClock, situation: str
) -> None:
    id_ = await SITUATIONS[situation](engine, clock)
    before = await stored(engine, id_)
    if before.lease is None or before.lease.expires_at <= clock.now():
        return
    fence = Fence(id_, before.epoch, before.lease.id)
    await engine._context.store.run(lambda tx: renews_noted(tx, engine.namespace, fence))
    extended = replace(before.lease, expires_at=max(before.lease.expires_at, clock.now() + before.lease.ttl))
    after = move(before, RENEW, clock.now(), lease=extended)
    assert await stored(engine, id_) == after
    assert (await engine.executions.history(id_))[-1] == event_of(before, after, RENEW)


async def test_a_fast_complete_writes_what_the_decision_says(engine: Engine, clock: VirtualClock) -> None:
    policy = Policy(attempt_timeout="1m", retention="2d", deadline="1h")
    answer = await engine.executions.submit("job", b"in", policy=policy, tags={"a.b": "c"})
    lease = await engine.leases.claim_execution(answer.id, "w")
    await engine.leases.progress(lease.fence, 50, "half")
    clock.advance("3s")
    before = await stored(engine, answer.id)
    decided = decide_complete(before, Completion(fence=lease.fence, result=b"out", encoding="json"), clock.now())
    await engine.leases.complete(lease.fence, b"out")
    assert await stored(engine, answer.id) == decided.after
    assert (await engine.executions.history(answer.id))[-1] == decided.event
    assert (await engine.executions.describe(answer.id)).attempts == (decided.attempt,)


async def test_a_row_that_is_not_plain_is_left_to_the_careful_complete(engine: Engine, clock: VirtualClock) -> None:
    id_ = await SITUATIONS["active: kept, lease expired"](engine, clock)
    grant = await engine.operator.grant_reclaim(id_, "w")
    lease = await engine.leases.reclaim(grant, "w")
    assert isinstance(lease, Lease)
    assert not lease.plain
    assert not await tried(engine, completes, lease.fence)
    await engine.leases.complete(lease.fence, b"out")
    assert (await stored(engine, id_)).state == "completed"


async def stored(engine: Engine, id_: UUID) -> Execution:
    """The execution as it is stored, every field of it."""
    found = await engine._context.store.read(lambda tx: tx.executions.get(None, [id_]))
    return found[id_]


def until_expiry(execution: Execution) -> timedelta:
    lease = execution.lease
    return lease.expires_at - lease.acquired_at if lease else timedelta(seconds=30)


def fences_of(execution: Execution) -> Iterable[Fence]:
    """The live fence, the former one, and those with every part bent a little."""
    leases = {item.id for item in (execution.lease, execution.former) if item} | {FOREIGN_LEASE}
    epochs = range(max(0, execution.epoch - 2), execution.epoch + 2)
    return [Fence(execution.id, epoch, lease) for lease in leases for epoch in epochs]


@dataclass
class Undone(Exception):
    """Carries an answer out of a transaction that must leave nothing behind."""

    answer: bool


async def tried(engine: Engine, operation: Hot, fence: Fence) -> bool:
    """Whether the statement wrote; what it wrote is rolled back."""

    async def body(tx: Transaction) -> None:
        raise Undone(await operation(tx, engine.namespace, fence))

    with pytest.raises(Undone) as undone:
        await engine._context.store.run(body)
    return undone.value.answer


async def attempts_to_write(engine: Engine, fence: Fence) -> list[FlowFabricError]:
    """The refusals of every fenced operation."""
    leases = engine.leases
    refusals = []
    for write in (
        leases.renew(fence), leases.progress(fence, 1), leases.checkpoint(fence, [Step("one", b"1")]),
        leases.complete(fence, b"other"), leases.fail(fence, "other"), leases.delay(fence, after=77),
        leases.cancel(fence, "other"),
    ):  # fmt: skip
        with pytest.raises(FlowFabricError) as refused:
            await write
        refusals.append(refused.value)
    return refusals
