"""Tests of create_waitpoint, which creates a waitpoint and its token before the execution suspends."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from flowfabric.core.executions.outcomes import Satisfied
from flowfabric.engine import (
    Accepted,
    Conflict,
    Engine,
    Fence,
    InvalidRequest,
    PendingWaitpoint,
    Policy,
    Suspended,
    WaitpointKind,
    WaitpointState,
)
from flowfabric.testing import VirtualClock
from tests.expectations import event_names, nothing_written, refused
from tests.scenarios import SITUATIONS, leased, suspended
from tests.stores import TestStore

OWNED = ("active", "active: lease run out")


async def test_new_waitpoint_is_pending_and_does_not_change_the_execution(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    before = await engine.executions.describe(lease.execution_id)
    waitpoint = await engine.waitpoints.create(lease.fence, "callback", expires="1h")
    assert (waitpoint.key, waitpoint.expires_at) == ("callback", clock.now() + timedelta(hours=1))
    assert waitpoint.token is not None
    assert waitpoint.token.reveal().startswith("ffw1.")
    after = await engine.executions.describe(lease.execution_id)
    assert (after.state, after.epoch, after.version, after.lease) == (
        before.state,
        before.epoch,
        before.version,
        before.lease,
    )
    [pending] = after.waitpoints
    assert (pending.id, pending.key, pending.state, pending.kind) == (
        waitpoint.id,
        "callback",
        WaitpointState.PENDING,
        WaitpointKind.ADDRESSED,
    )
    assert pending.names is None
    assert await event_names(engine, lease.execution_id) == ["lease.acquired"]


async def test_open_key_returns_the_existing_waitpoint_and_token(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    waitpoint = await engine.waitpoints.create(lease.fence, "go", approver="ada")
    await engine.keys.rotate("another")
    async with nothing_written(store):
        assert await engine.waitpoints.create(lease.fence, "go", approver="ada") == waitpoint
        assert await engine.waitpoints.create(lease.fence, "go", expires="1s") == waitpoint
        conflicting = engine.waitpoints.create(lease.fence, "go", approver="bob")
        await refused(conflicting, "waitpoint_already_exists", Conflict)
    await engine.operator.revoke_lease(lease.execution_id)
    later = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    async with nothing_written(store):
        assert await engine.waitpoints.create(later.fence, "go") == waitpoint


async def test_closed_or_expired_key_can_be_used_again(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    first = await engine.waitpoints.create(lease.fence, "go")
    await engine.waitpoints.close(first.id)
    second = await engine.waitpoints.create(lease.fence, "go", expires="1s")
    clock.advance("1s")
    third = await engine.waitpoints.create(lease.fence, "go")
    assert len({first.id, second.id, third.id}) == len({first.token, second.token, third.token}) == 3
    close_reasons = {
        waitpoint.id: waitpoint.close_reason for waitpoint in await engine.waitpoints.list(lease.execution_id)
    }
    assert close_reasons == {first.id: "closed", second.id: "expired", third.id: None}


async def test_only_the_owner_of_an_active_execution_creates_a_waitpoint(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    for situation, make in SITUATIONS.items():
        id_ = await make(engine, clock)
        forged_fence = Fence(id_, (await engine.executions.describe(id_)).epoch, uuid4())
        async with nothing_written(store):
            code = "stale_lease" if situation in OWNED else "execution_not_active"
            await refused(engine.waitpoints.create(forged_fence, "go"), code)
    lease = await leased(engine)
    await engine.operator.revoke_lease(lease.execution_id)
    async with nothing_written(store):
        await refused(engine.waitpoints.create(lease.fence, "go"), "lease_revoked")
    wait = await suspended(engine)
    async with nothing_written(store):
        await refused(engine.waitpoints.create(wait.lease.fence, "go"), "execution_not_active")
    late = await leased(engine)
    clock.advance("30s")
    async with nothing_written(store):
        await refused(engine.waitpoints.create(late.fence, "go"), "lease_expired")


async def test_expires_and_expires_at_exclude_each_other(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    lease = await leased(engine)
    async with nothing_written(store):
        call = engine.waitpoints.create(lease.fence, "go", expires="1s", expires_at=clock.now())
        await refused(call, "invalid_request", InvalidRequest)


async def test_token_created_early_is_the_token_of_the_wait(engine: Engine) -> None:
    lease = await leased(engine)
    early = await engine.waitpoints.create(lease.fence, "go")
    await engine.keys.rotate("another")
    wait = await suspended(engine, [PendingWaitpoint("go")], lease=lease)
    assert (wait.waitpoint(), wait.token()) == (early.id, early.token)
    assert early.token is not None
    assert isinstance(await engine.signals.deliver(early.token, "go"), Accepted)


async def test_pending_waitpoint_survives_the_resume_of_another_wait(engine: Engine) -> None:
    lease = await leased(engine)
    later_step = await engine.waitpoints.create(lease.fence, "later")
    wait = await suspended(engine, ["go"], lease=lease)
    await engine.signals.deliver(wait.token(), "go")
    assert later_step.token is not None
    early = await engine.signals.deliver(later_step.token, "already")
    assert isinstance(early, Accepted)
    assert early.effect.value == "buffered_for_pending_waitpoint"
    assert early.counted is None
    lease = await engine.leases.claim_resumed(wait.id, "worker-2")
    outcome = await engine.leases.suspend(lease.fence, [PendingWaitpoint("later")])
    assert isinstance(outcome, Satisfied)
    assert [signal.name for signal in outcome.signals] == ["already"]


async def test_waitpoint_closes_with_its_execution(engine: Engine) -> None:
    for ending in ("complete", "fail", "cancel"):
        lease = await leased(engine, policy=Policy(max_retries=0))
        waitpoint = await engine.waitpoints.create(lease.fence, "go")
        if ending == "complete":
            await engine.leases.complete(lease.fence)
        elif ending == "fail":
            await engine.leases.fail(lease.fence, "broken")
        else:
            await engine.operator.cancel(lease.execution_id)
        [closed] = await engine.waitpoints.list(lease.execution_id)
        assert (closed.state, closed.close_reason) == (WaitpointState.CLOSED, "ended"), ending
        assert waitpoint.token is not None
        await refused(engine.signals.deliver(waitpoint.token, "late"), "target_not_signalable")


async def test_standing_waitpoint_can_receive_a_token(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine, signals=["mail"])
    secret = await engine.waitpoints.create(lease.fence, "mail", approver="ada")
    assert secret.token is not None
    async with nothing_written(store):
        assert await engine.waitpoints.create(lease.fence, "mail") == secret
    await engine.signals.deliver(secret.token, "mail", source_identity="eve")
    outcome = await engine.leases.suspend(lease.fence, ["other"])
    assert isinstance(outcome, Suspended)
    [waitpoint] = [entry for entry in await engine.waitpoints.list(lease.execution_id) if entry.key == "mail"]
    assert (waitpoint.id, waitpoint.approver, waitpoint.kind) == (secret.id, "ada", WaitpointKind.STANDING)


async def test_suspended_execution_cannot_create_a_waitpoint(engine: Engine, store: TestStore) -> None:
    wait = await suspended(engine)
    async with nothing_written(store):
        await refused(engine.waitpoints.create(wait.lease.fence, "more"), "execution_not_active")
        huge = engine.waitpoints.create(wait.lease.fence, "more", expires=10**12)
        await refused(huge, "out_of_range", InvalidRequest)
