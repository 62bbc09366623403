"""A worker that lost its lease while its call was in flight cannot write, on real connections and both backends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.leasing import decide_lease_check
from flowfabric.core.records import Execution, WorkerId
from flowfabric.core.requests import Checkpoint, Command, Completion, LeaseTerms, ReplayFrom, WhichLease
from flowfabric.engine import AlreadySatisfied, Engine, Fence, Refused, Revoked, Step
from flowfabric.ops.cancel import cancel
from flowfabric.ops.claim_execution import claim_execution
from flowfabric.ops.families import CancelOrder
from flowfabric.ops.replay import replay
from flowfabric.ops.revoke_lease import revoke_lease
from flowfabric.ops.settle import settle
from flowfabric.store.transaction import Transaction
from flowfabric.testing import VirtualClock
from tests.concurrency.gates import OpenTransaction, all_wait_for_a_lock
from tests.concurrency.soundness import assert_sound
from tests.scenarios import leased
from tests.stores import TestStore, opened

NAMESPACE = "default"
OPERATOR = Command(principal="operator", reason="test")

Interloper = Callable[[Transaction, UUID], Awaitable[Any]]


async def revoked(tx: Transaction, id_: UUID) -> None:
    await revoke_lease(tx, NAMESPACE, id_, WhichLease(), OPERATOR)


async def cancelled(tx: Transaction, id_: UUID) -> None:
    await cancel(tx, NAMESPACE, id_, CancelOrder(command=OPERATOR, source="operator_override"))


async def expired(tx: Transaction, id_: UUID) -> None:
    assert await settle(tx, [id_], decide_lease_check) == 1


async def taken_over(tx: Transaction, id_: UUID) -> None:
    await revoked(tx, id_)
    await claimed_by_another(tx, id_, 1)


async def taken_over_twice(tx: Transaction, id_: UUID) -> None:
    await taken_over(tx, id_)
    await revoked(tx, id_)
    await claimed_by_another(tx, id_, 2)


async def replayed_and_claimed(tx: Transaction, id_: UUID) -> None:
    await cancelled(tx, id_)
    await replay(tx, NAMESPACE, id_, ReplayFrom(), OPERATOR)
    await claimed_by_another(tx, id_, 1)


async def claimed_by_another(tx: Transaction, id_: UUID, number: int) -> None:
    terms = LeaseTerms(worker=WorkerId("another", "another"), lease_id=UUID(int=number), ttl=None)
    await claim_execution(tx, NAMESPACE, id_, terms, ())


# What happens to the lease, and what its former holder is told afterwards.
INTERLOPERS: dict[str, tuple[Interloper, str]] = {
    "revoked": (revoked, "lease_revoked"),
    "cancelled": (cancelled, "execution_not_active"),
    "expired": (expired, "lease_expired"),
    "taken over": (taken_over, "lease_revoked"),
    "taken over twice": (taken_over_twice, "stale_lease"),
    "replayed and claimed by another": (replayed_and_claimed, "execution_not_active"),
}

ZOMBIE_WRITES: dict[str, Callable[[Engine, Fence], Awaitable[Any]]] = {
    "renew": lambda engine, fence: engine.leases.renew(fence),
    "progress": lambda engine, fence: engine.leases.progress(fence, 50, "half"),
    "checkpoint": lambda engine, fence: engine.leases.checkpoint(fence, [Step("late", b"1")]),
    "complete": lambda engine, fence: engine.leases.complete(fence, b"late"),
    "complete with steps": lambda engine, fence: engine.leases.complete(fence, b"late", steps=[Step("late", b"1")]),
    "fail": lambda engine, fence: engine.leases.fail(fence, "late"),
    "delay": lambda engine, fence: engine.leases.delay(fence, after="1m", steps=[Step("late", b"1")]),
    "release": lambda engine, fence: engine.leases.release(fence),
    "cancel": lambda engine, fence: engine.leases.cancel(fence, "late"),
    "suspend": lambda engine, fence: engine.leases.suspend(fence, ["late"], key="late", steps=[Step("late", b"1")]),
    "create_waitpoint": lambda engine, fence: engine.waitpoints.create(fence, "late"),
}


@pytest.mark.parametrize("interloper", INTERLOPERS)
async def test_a_zombie_writes_nothing_when_its_lease_is_lost_while_its_call_waits(
    store: TestStore, engine: Engine, clock: VirtualClock, interloper: str
) -> None:
    lose, code = INTERLOPERS[interloper]
    lease = await leased(engine)

    async def lost(tx: Transaction) -> Execution:
        await lose(tx, lease.execution_id)
        return await stored(tx, lease.execution_id)

    later = VirtualClock(clock.now())
    later.advance("31s" if interloper == "expired" else "1s")
    # On PostgreSQL every write that waits has a connection of its own.
    pool = {"pool_size": len(ZOMBIE_WRITES)} if store.name == "postgres" else {}
    async with opened(store, later) as other, opened(store, clock, **pool) as zombie:
        loss = OpenTransaction(store, other)
        await loss.begin(lost)
        writes = [asyncio.ensure_future(write(zombie, lease.fence)) for write in ZOMBIE_WRITES.values()]
        await all_wait_for_a_lock(store, zombie, len(writes))
        expected = await loss.commit()
        answers = await asyncio.gather(*writes, return_exceptions=True)
    for name, answer in zip(ZOMBIE_WRITES, answers, strict=True):
        assert isinstance(answer, Refused), (name, answer)
        assert (answer.code, answer.fields["epoch"]) == (code, expected.epoch), (name, answer)
    assert await engine._context.store.read(lambda tx: stored(tx, lease.execution_id)) == expected
    assert await engine.executions.steps(lease.execution_id) == []
    assert await engine.waitpoints.list(lease.execution_id) == []
    await assert_sound(store)


@pytest.mark.parametrize("write", ["checkpoint", "complete"])
async def test_a_revoke_that_waited_for_a_write_keeps_it_and_answers_for_what_it_left(
    store: TestStore, engine: Engine, write: str
) -> None:
    lease = await leased(engine)
    checkpoint = Checkpoint(fence=lease.fence, steps=(Step("kept", b"1"),))
    completion = Completion(fence=lease.fence, result=b"kept", encoding="json")
    async with opened(store, VirtualClock()) as other:
        first = OpenTransaction(store, engine)
        if write == "complete":
            await first.begin(lambda tx: tx.hot.complete_if_owned(NAMESPACE, [completion]))
        else:
            await first.begin(lambda tx: tx.hot.record_steps_if_owned(NAMESPACE, [checkpoint]))
        revoke = asyncio.ensure_future(other.operator.revoke_lease(lease.execution_id))
        await all_wait_for_a_lock(store, other, 1)
        await first.commit()
        answer = await revoke
    found = await engine.executions.describe(lease.execution_id)
    if write == "complete":
        assert (answer, found.state) == (AlreadySatisfied("no_active_lease"), "completed")
    else:
        assert (answer, found.state) == (Revoked(lease.fence.lease_id, lease.epoch + 1), "waiting")
        assert [step.name for step in await engine.executions.steps(lease.execution_id)] == ["kept"]
    await assert_sound(store)


async def stored(tx: Transaction, id_: UUID) -> Execution:
    return (await tx.executions.get(NAMESPACE, [id_]))[id_]
