"""Tests of a repeated suspend. The same fence gets the first outcome again; a later fence gets how the wait ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

from flowfabric.core.executions.outcomes import Satisfied
from flowfabric.core.waits.records import Trigger
from flowfabric.engine import (
    Conflict,
    Engine,
    Lease,
    NewWaitpoint,
    PendingWaitpoint,
    Single,
    StandingWaitpoint,
    State,
    Step,
    Timer,
)
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written, refused
from tests.scenarios import leased, suspended
from tests.stores import TestStore


async def claim_resumed(engine: Engine, lease: Lease) -> Lease:
    """Claim the resumed execution."""
    return await engine.leases.claim_resumed(lease.execution_id, "worker-2")


async def test_same_fence_gets_the_first_outcome_with_the_same_tokens(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine, signals=["mail"])
    await engine.waitpoints.create(lease.fence, "early", expires="1h", approver="ada")
    request: dict[str, Any] = {
        "waitpoints": [
            NewWaitpoint("one"),
            PendingWaitpoint("early"),
            StandingWaitpoint("mail"),
            Timer("late", lease.expires_at),
        ],
        "timeout": "1d",
        "steps": [Step("s")],
    }
    for key in (None, "step-1"):
        wait = await suspended(engine, lease=lease, key=key, **request)
        async with nothing_written(store):
            for _ in range(2):
                repeated = await engine.leases.suspend(lease.fence, key=key, **request)
                assert repeated == wait.answer
                assert [waitpoint.token for waitpoint in repeated.waitpoints] == [
                    waitpoint.token for waitpoint in wait.answer.waitpoints
                ]
        lease = await leased(engine, signals=["mail"])
        await engine.waitpoints.create(lease.fence, "early")


async def test_same_fence_gets_the_first_outcome_after_the_resume_and_the_end(engine: Engine, store: TestStore) -> None:
    wait = await suspended(engine, key="step-1")
    await engine.signals.deliver(wait.token(), "go")
    async with nothing_written(store):
        assert await engine.leases.suspend(wait.lease.fence, ["go"], key="step-1") == wait.answer
    later = await claim_resumed(engine, wait.lease)
    async with nothing_written(store):
        assert await engine.leases.suspend(wait.lease.fence, ["go"], key="step-1") == wait.answer
    await engine.leases.complete(later.fence)
    async with nothing_written(store):
        assert await engine.leases.suspend(wait.lease.fence, ["go"], key="step-1") == wait.answer


async def test_other_content_under_the_same_key_is_refused(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    wait = await suspended(engine, ["go"], lease=lease, key="step-1", timeout="1h")
    fence = wait.lease.fence
    async with nothing_written(store):
        for call in (
            engine.leases.suspend(fence, ["other"], key="step-1", timeout="1h"),
            engine.leases.suspend(fence, ["go"], Single("go", "x"), key="step-1", timeout="1h"),
            engine.leases.suspend(fence, ["go"], key="step-1", timeout="2h"),
            engine.leases.suspend(fence, ["go"], key="step-1"),
            engine.leases.suspend(fence, ["go"], key="step-1", timeout="1h", on_timeout="cancel"),
            engine.leases.suspend(fence, ["go"], key="step-1", timeout="1h", resume_delay=1),
            engine.leases.suspend(fence, ["go"], key="step-1", timeout="1h", reason="manual_pause"),
            engine.leases.suspend(fence, ["go"], key="step-1", timeout="1h", steps=[Step("s")]),
            engine.leases.suspend(fence, [NewWaitpoint("go", approver="ada")], key="step-1", timeout="1h"),
        ):
            error = await refused(call, "idempotency_mismatch", Conflict)
            assert error.fields["suspension_id"] == wait.suspension
        await refused(engine.leases.suspend(fence, ["other"]), "execution_not_active")


async def test_later_fence_gets_the_signals_that_closed_the_suspension(engine: Engine, store: TestStore) -> None:
    wait = await suspended(engine, key="step-1")
    await engine.signals.deliver(wait.token(), "approved", b'{"by": "ada"}')
    later = await claim_resumed(engine, wait.lease)
    async with nothing_written(store):
        outcome = await engine.leases.suspend(later.fence, ["go"], key="step-1")
        # The wait is over, so the waitpoints that a later attempt names do not matter.
        assert await engine.leases.suspend(later.fence, ["other"], key="step-1") == outcome
    assert isinstance(outcome, Satisfied)
    assert (outcome.suspension_id, outcome.by) == (wait.suspension, Trigger.SIGNALS)
    assert [(signal.name, signal.payload) for signal in outcome.signals] == [("approved", b'{"by": "ada"}')]
    assert (await engine.executions.describe(wait.id)).state is State.ACTIVE
    await engine.leases.complete(later.fence)


async def test_later_fence_gets_a_timeout_or_an_operator_resume(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    timed = await suspended(engine, key="k", timeout="1m", on_timeout="auto_resume")
    clock.advance("1m")
    await engine.reconcilers.tick()
    overridden = await suspended(engine, key="k")
    await engine.operator.resume(overridden.id, "enough")
    for wait, by, names in ((timed, Trigger.TIMEOUT, ["timeout"]), (overridden, Trigger.OPERATOR, [])):
        lease = await claim_resumed(engine, wait.lease)
        async with nothing_written(store):
            outcome = await engine.leases.suspend(lease.fence, ["go"], key="k")
        assert isinstance(outcome, Satisfied)
        assert (outcome.by, [signal.name for signal in outcome.signals]) == (by, names)


async def test_same_key_on_two_executions_is_independent(engine: Engine) -> None:
    first, second = await suspended(engine, key="step-1"), await suspended(engine, key="step-1")
    assert first.suspension != second.suspension
    assert first.waitpoint() != second.waitpoint()
    assert first.token() != second.token()
    await engine.signals.deliver(first.token(), "go")
    assert (await engine.executions.describe(second.id)).state is State.SUSPENDED


async def test_wait_without_a_key_is_always_a_new_one(engine: Engine) -> None:
    first = await suspended(engine)
    await engine.signals.deliver(first.token(), "go")
    second = await suspended(engine, lease=await claim_resumed(engine, first.lease))
    assert second.suspension != first.suspension
    assert second.token() != first.token()


async def test_key_is_valid_for_one_generation(engine: Engine) -> None:
    first = await suspended(engine, key="step-1")
    await engine.operator.cancel(first.id)
    await engine.operator.replay(first.id)
    second = await suspended(engine, key="step-1", lease=await engine.leases.claim_execution(first.id, "w"))
    assert second.suspension != first.suspension


async def test_second_suspend_during_an_open_one_is_refused(engine: Engine, store: TestStore) -> None:
    wait = await suspended(engine)
    async with nothing_written(store):
        await refused(engine.leases.suspend(wait.lease.fence, ["another"]), "execution_not_active")
        await refused(engine.leases.suspend(wait.lease.fence, ["another"], key="k"), "execution_not_active")
        forged = replace(wait.lease.fence, lease_id=uuid4())
        await refused(engine.leases.suspend(forged, ["go"]), "execution_not_active")
        moved = replace(wait.lease.fence, epoch=wait.lease.epoch + 1)
        await refused(engine.leases.suspend(moved, ["go"]), "execution_not_active")


async def test_fence_with_one_wrong_part_is_stale(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    async with nothing_written(store):
        for forged in (
            replace(lease.fence, lease_id=uuid4()),
            replace(lease.fence, epoch=lease.epoch - 1),
            replace(lease.fence, epoch=lease.epoch + 1),
        ):
            await refused(engine.leases.suspend(forged, ["go"]), "stale_lease")
            await refused(engine.waitpoints.create(forged, "go"), "stale_lease")


async def test_expired_lease_cannot_suspend(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    lease = await leased(engine)
    clock.advance("30s")
    async with nothing_written(store):
        await refused(engine.leases.suspend(lease.fence, ["go"]), "lease_expired")


async def test_known_key_reveals_nothing_to_a_fence_that_owns_nothing(engine: Engine, store: TestStore) -> None:
    wait = await suspended(engine, key="step-1")
    forged = replace(wait.lease.fence, lease_id=uuid4())
    later = replace(wait.lease.fence, epoch=wait.lease.epoch + 1)
    async with nothing_written(store):
        for fence in (forged, later):
            await refused(engine.leases.suspend(fence, ["go"], key="step-1"), "execution_not_active")
    await engine.signals.deliver(wait.token(), "go", b"for the owner only")
    owner = await claim_resumed(engine, wait.lease)
    async with nothing_written(store):
        for fence in (forged, replace(owner.fence, lease_id=uuid4()), replace(owner.fence, epoch=owner.epoch - 1)):
            await refused(engine.leases.suspend(fence, ["go"], key="step-1"), "stale_lease")
    await engine.operator.revoke_lease(wait.id)
    async with nothing_written(store):
        await refused(engine.leases.suspend(owner.fence, ["go"], key="step-1"), "lease_revoked")
