"""Test that a worker that loses its lease during a call cannot write, on real connections of both backends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.executions.leases import decide_lease_check
from flowfabric.core.executions.records import Execution, WorkerId
from flowfabric.core.executions.requests import AuditInfo, Checkpoint, Completion, LeaseFilter, LeaseTerms, ReplayFrom
from flowfabric.engine import AlreadySatisfied, Engine, Fence, Refused, Revoked, Step, Unavailable
from flowfabric.ops.flows.descendants import CancelCommand
from flowfabric.ops.leases.checkpoint import record_steps_if_owned
from flowfabric.ops.leases.claim import ClaimById, claim_execution
from flowfabric.ops.leases.complete import complete_if_owned
from flowfabric.ops.leases.reclaim import RevokeRequest, revoke_lease
from flowfabric.ops.operator.cancel import CancelTarget, cancel
from flowfabric.ops.operator.replay import ReplayRequest, replay
from flowfabric.ops.reconcile import reconcile
from flowfabric.store.transaction import Transaction
from flowfabric.testing import VirtualClock
from tests.concurrency.gates import OpenTransaction, wait_until_blocked
from tests.concurrency.soundness import assert_sound
from tests.expectations import refused
from tests.scenarios import leased
from tests.stores import TestStore, opened

NAMESPACE = "default"
OPERATOR = AuditInfo(principal="operator", reason="test")

Interloper = Callable[[Transaction, UUID], Awaitable[Any]]


async def revoked(tx: Transaction, id_: UUID) -> None:
    await revoke_lease.run(tx, NAMESPACE, RevokeRequest(id_, LeaseFilter(), OPERATOR))


async def cancelled(tx: Transaction, id_: UUID) -> None:
    command = CancelCommand(audit=OPERATOR, source="operator_override")
    await cancel.run(tx, NAMESPACE, CancelTarget(id_, command))


async def expired(tx: Transaction, id_: UUID) -> None:
    assert len(await reconcile(tx, [id_], decide_lease_check)) == 1


async def taken_over(tx: Transaction, id_: UUID) -> None:
    await revoked(tx, id_)
    await claimed_by_another(tx, id_, 1)


async def taken_over_twice(tx: Transaction, id_: UUID) -> None:
    await taken_over(tx, id_)
    await revoked(tx, id_)
    await claimed_by_another(tx, id_, 2)


async def replayed_and_claimed(tx: Transaction, id_: UUID) -> None:
    await cancelled(tx, id_)
    await replay.run(tx, NAMESPACE, ReplayRequest(id_, ReplayFrom(), OPERATOR))
    await claimed_by_another(tx, id_, 1)


async def claimed_by_another(tx: Transaction, id_: UUID, number: int) -> None:
    terms = LeaseTerms(worker=WorkerId("another", "another"), lease_id=UUID(int=number), ttl=None)
    await claim_execution.run(tx, NAMESPACE, ClaimById(id_, terms, ()))


# How the lease is lost, and the error code that its former holder then gets.
INTERLOPERS: dict[str, tuple[Interloper, str]] = {
    "revoked": (revoked, "lease_revoked"),
    "cancelled": (cancelled, "execution_not_active"),
    "expired": (expired, "lease_expired"),
    "taken over": (taken_over, "lease_revoked"),
    "taken over twice": (taken_over_twice, "stale_lease"),
    "replayed and claimed by another worker": (replayed_and_claimed, "execution_not_active"),
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
async def test_zombie_writes_nothing_when_its_lease_is_lost_while_its_call_waits(
    store: TestStore, engine: Engine, clock: VirtualClock, interloper: str
) -> None:
    lose, code = INTERLOPERS[interloper]
    lease = await leased(engine)

    async def lost(tx: Transaction) -> Execution:
        await lose(tx, lease.execution_id)
        return await stored(tx, lease.execution_id)

    later = VirtualClock(clock.now())
    later.advance("31s" if interloper == "expired" else "1s")
    # On PostgreSQL every waiting write needs its own connection.
    pool = {"pool_size": len(ZOMBIE_WRITES)} if store.name == "postgres" else {}
    async with opened(store, later) as other, opened(store, clock, **pool) as zombie:
        loss = OpenTransaction(store, other)
        await loss.begin(lost)
        writes = [asyncio.ensure_future(write(zombie, lease.fence)) for write in ZOMBIE_WRITES.values()]
        if store.name == "postgres":
            # A renewal never waits for a row lock. The worker repeats it.
            await refused(writes[0], "lease_busy", Unavailable)
        await wait_until_blocked(store, zombie, len(writes) - (store.name == "postgres"))
        expected = await loss.commit()
        if store.name == "postgres":
            writes[0] = asyncio.ensure_future(zombie.leases.renew(lease.fence))
        results = await asyncio.gather(*writes, return_exceptions=True)
    for name, result in zip(ZOMBIE_WRITES, results, strict=True):
        assert isinstance(result, Refused), (name, result)
        assert (result.code, result.fields["epoch"]) == (code, expected.epoch), (name, result)
    assert await engine._context.store.read(lambda tx: stored(tx, lease.execution_id)) == expected
    assert await engine.executions.steps(lease.execution_id) == []
    assert await engine.waitpoints.list(lease.execution_id) == []
    await assert_sound(store)


@pytest.mark.parametrize("write", ["checkpoint", "complete"])
async def test_revoke_that_waited_for_a_write_sees_its_result(store: TestStore, engine: Engine, write: str) -> None:
    lease = await leased(engine)
    checkpoint = Checkpoint(fence=lease.fence, steps=(Step("kept", b"1"),))
    completion = Completion(fence=lease.fence, result=b"kept", encoding="json")
    async with opened(store, VirtualClock()) as other:
        first = OpenTransaction(store, engine)
        if write == "complete":
            await first.begin(lambda tx: complete_if_owned(tx, NAMESPACE, [completion]))
        else:
            await first.begin(lambda tx: record_steps_if_owned(tx, NAMESPACE, [checkpoint]))
        revoke = asyncio.ensure_future(other.operator.revoke_lease(lease.execution_id))
        await wait_until_blocked(store, other, 1)
        await first.commit()
        answer = await revoke
    execution = await engine.executions.describe(lease.execution_id)
    if write == "complete":
        assert (answer, execution.state) == (AlreadySatisfied("no_active_lease"), "completed")
    else:
        assert (answer, execution.state) == (Revoked(lease.fence.lease_id, lease.epoch + 1), "waiting")
        assert [step.name for step in await engine.executions.steps(lease.execution_id)] == ["kept"]
    await assert_sound(store)


async def stored(tx: Transaction, id_: UUID) -> Execution:
    return (await tx.executions.get(NAMESPACE, [id_]))[id_]
