"""create_waitpoint: a slot and its token before anybody waits, so that the token can be handed out early."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from flowfabric.core.outcomes import Satisfied
from flowfabric.engine import (
    Accepted,
    Conflict,
    Engine,
    Fence,
    InvalidRequest,
    Pending,
    Policy,
    Suspended,
    WaitpointKind,
    WaitpointState,
)  # fmt: skip
from flowfabric.testing import VirtualClock
from tests.facts import event_names, nothing_written, refused
from tests.scenarios import SITUATIONS, leased, suspended
from tests.stores import TestStore

OWNED = ("active", "active: lease run out")


async def test_a_waitpoint_is_pending_until_somebody_waits_on_it(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    before = await engine.executions.describe(lease.execution_id)
    made = await engine.waitpoints.create(lease.fence, "callback", expires="1h")
    assert (made.key, made.expires_at) == ("callback", clock.now() + timedelta(hours=1))
    assert made.token is not None
    assert made.token.reveal().startswith("ffw1.")
    after = await engine.executions.describe(lease.execution_id)
    assert (after.state, after.epoch, after.version, after.lease) == (
        before.state,
        before.epoch,
        before.version,
        before.lease,
    )
    [shown] = after.waitpoints
    assert (shown.id, shown.key, shown.state, shown.kind) == (
        made.id,
        "callback",
        WaitpointState.PENDING,
        WaitpointKind.ADDRESSED,
    )
    assert shown.names is None
    assert await event_names(engine, lease.execution_id) == ["lease.acquired"]


async def test_an_open_key_answers_that_waitpoint_and_the_same_token(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    made = await engine.waitpoints.create(lease.fence, "go", approver="ada")
    await engine.keys.rotate("another")
    async with nothing_written(store):
        assert await engine.waitpoints.create(lease.fence, "go", approver="ada") == made
        assert await engine.waitpoints.create(lease.fence, "go", expires="1s") == made
        other = engine.waitpoints.create(lease.fence, "go", approver="bob")
        await refused(other, "waitpoint_already_exists", Conflict)
    await engine.operator.revoke_lease(lease.execution_id)
    later = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    async with nothing_written(store):
        assert await engine.waitpoints.create(later.fence, "go") == made


async def test_a_key_that_is_closed_or_expired_is_free_again(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    first = await engine.waitpoints.create(lease.fence, "go")
    await engine.waitpoints.close(first.id)
    second = await engine.waitpoints.create(lease.fence, "go", expires="1s")
    clock.advance("1s")
    third = await engine.waitpoints.create(lease.fence, "go")
    assert len({first.id, second.id, third.id}) == len({first.token, second.token, third.token}) == 3
    listed = {item.id: item.close_reason for item in await engine.waitpoints.list(lease.execution_id)}
    assert listed == {first.id: "closed", second.id: "expired", third.id: None}


async def test_only_the_owner_of_an_active_execution_makes_one(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    for situation, make in SITUATIONS.items():
        id_ = await make(engine, clock)
        nobodys = Fence(id_, (await engine.executions.describe(id_)).epoch, uuid4())
        async with nothing_written(store):
            code = "stale_lease" if situation in OWNED else "execution_not_active"
            await refused(engine.waitpoints.create(nobodys, "go"), code)
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


async def test_it_expires_once_and_not_at_two_times(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    lease = await leased(engine)
    async with nothing_written(store):
        both = engine.waitpoints.create(lease.fence, "go", expires="1s", expires_at=clock.now())
        await refused(both, "invalid_request", InvalidRequest)


async def test_a_token_that_was_handed_out_early_is_the_one_of_the_wait(engine: Engine) -> None:
    lease = await leased(engine)
    early = await engine.waitpoints.create(lease.fence, "go")
    await engine.keys.rotate("another")
    wait = await suspended(engine, [Pending("go")], lease=lease)
    assert (wait.waitpoint(), wait.token()) == (early.id, early.token)
    assert early.token is not None
    assert isinstance(await engine.signals.deliver(early.token, "go"), Accepted)


async def test_the_waitpoint_of_a_later_step_survives_the_resume_of_an_earlier_one(engine: Engine) -> None:
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
    answer = await engine.leases.suspend(lease.fence, [Pending("later")])
    assert isinstance(answer, Satisfied)
    assert [signal.name for signal in answer.signals] == ["already"]


async def test_it_closes_with_its_execution(engine: Engine) -> None:
    for ending in ("complete", "fail", "cancel"):
        lease = await leased(engine, policy=Policy(max_retries=0))
        made = await engine.waitpoints.create(lease.fence, "go")
        if ending == "complete":
            await engine.leases.complete(lease.fence)
        elif ending == "fail":
            await engine.leases.fail(lease.fence, "broken")
        else:
            await engine.operator.cancel(lease.execution_id)
        [closed] = await engine.waitpoints.list(lease.execution_id)
        assert (closed.state, closed.close_reason) == (WaitpointState.CLOSED, "ended"), ending
        assert made.token is not None
        await refused(engine.signals.deliver(made.token, "late"), "target_not_signalable")


async def test_a_standing_waitpoint_can_be_given_a_token(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine, signals=["mail"])
    made = await engine.waitpoints.create(lease.fence, "mail", approver="ada")
    assert made.token is not None
    async with nothing_written(store):
        assert await engine.waitpoints.create(lease.fence, "mail") == made
    await engine.signals.deliver(made.token, "mail", source_identity="eve")
    answer = await engine.leases.suspend(lease.fence, ["other"])
    assert isinstance(answer, Suspended)
    [listed] = [item for item in await engine.waitpoints.list(lease.execution_id) if item.key == "mail"]
    assert (listed.id, listed.approver, listed.kind) == (made.id, "ada", WaitpointKind.STANDING)
