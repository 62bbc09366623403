"""Tests that each transition writes exactly one event and that versions count events without gaps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from flowfabric.engine import Engine, Event, FailureClass, Fence, Lease, OnAttemptTimeout, Policy, Step
from flowfabric.testing import VirtualClock
from tests.expectations import LIVE, event_names, last_event
from tests.scenarios import KEEPING, ONE_SHOT, SITUATIONS, STEADY, kept_expired, leased, submitted
from tests.stores import TestStore

AUDIT: dict[str, Any] = {"principal": "ada", "reason": "because"}


@dataclass(frozen=True, slots=True)
class ExpectedEvent:
    """The expected event of an operation, and by how much the operation increases the epoch (`epochs`)."""

    name: str
    state: str
    epochs: int
    ends_lease: bool = False
    principal: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Duty:
    """The event that a duty is expected to write for leased work with this policy after this duration."""

    policy: Policy
    after: str
    expected: ExpectedEvent


Work = Callable[[Engine, Fence], Awaitable[object]]
Command = Callable[[Engine, UUID], Awaitable[object]]

WORKER: dict[str, tuple[Policy, Work, ExpectedEvent]] = {
    "complete": (
        Policy(), lambda engine, fence: engine.leases.complete(fence),
        ExpectedEvent("completion.completed", "completed", 0, True),
    ),
    "complete with steps": (
        Policy(), lambda engine, fence: engine.leases.complete(fence, steps=[Step("a")]),
        ExpectedEvent("completion.completed", "completed", 0, True),
    ),
    "complete many": (
        Policy(), lambda engine, fence: engine.leases.complete_many([(fence, b"")]),
        ExpectedEvent("completion.completed", "completed", 0, True),
    ),
    "fail, retried": (
        STEADY, lambda engine, fence: engine.leases.fail(fence, "bad"),
        ExpectedEvent("lease.retry_scheduled", "delayed", 1, True, reason="bad"),
    ),
    "fail, exhausted": (
        ONE_SHOT, lambda engine, fence: engine.leases.fail(fence, "bad"),
        ExpectedEvent("completion.failed", "failed", 0, True, reason="bad"),
    ),
    "fail, permanent": (
        Policy(), lambda engine, fence: engine.leases.fail(fence, "bad", failure_class=FailureClass.PERMANENT),
        ExpectedEvent("completion.failed", "failed", 0, True, reason="bad"),
    ),
    "delay": (
        Policy(), lambda engine, fence: engine.leases.delay(fence, after="1m"),
        ExpectedEvent("lease.delayed", "delayed", 1, True),
    ),
    "release": (
        Policy(), lambda engine, fence: engine.leases.release(fence),
        ExpectedEvent("lease.released", "waiting", 1, True),
    ),
    "cancel": (
        Policy(), lambda engine, fence: engine.leases.cancel(fence, "because"),
        ExpectedEvent("completion.cancelled", "cancelled", 1, True, "worker-1", "because"),
    ),
}  # fmt: skip

OPERATOR: dict[str, tuple[str, Command, ExpectedEvent]] = {
    "claim": (
        "waiting", lambda engine, _: engine.leases.claim(["default"], "worker-1", limit=9),
        ExpectedEvent("lease.acquired", "active", 1),
    ),
    "claim by id": (
        "waiting: requeued", lambda engine, id_: engine.leases.claim_execution(id_, "worker-1"),
        ExpectedEvent("lease.acquired", "active", 1),
    ),
    "cancel": (
        "active", lambda engine, id_: engine.operator.cancel(id_, **AUDIT),
        ExpectedEvent("completion.cancelled", "cancelled", 1, True, "ada", "because"),
    ),
    "cancel waiting work": (
        "delayed", lambda engine, id_: engine.operator.cancel(id_, **AUDIT),
        ExpectedEvent("completion.cancelled", "cancelled", 1, False, "ada", "because"),
    ),
    "revoke": (
        "active", lambda engine, id_: engine.operator.revoke_lease(id_, **AUDIT),
        ExpectedEvent("lease.revoked", "waiting", 1, True, "ada", "because"),
    ),
    "change priority": (
        "waiting", lambda engine, id_: engine.operator.change_priority(id_, 5, **AUDIT),
        ExpectedEvent("operator.priority_changed", "waiting", 0, False, "ada", "because"),
    ),
    "hold": (
        "delayed", lambda engine, id_: engine.operator.hold(id_, **AUDIT),
        ExpectedEvent("operator.held", "blocked", 0, False, "ada", "because"),
    ),
    "unhold": (
        "blocked: held", lambda engine, id_: engine.operator.unhold(id_, **AUDIT),
        ExpectedEvent("operator.unheld", "waiting", 0, False, "ada", "because"),
    ),
    "unhold in bulk": (
        "blocked: held", lambda engine, _: engine.operator.unhold_all(**AUDIT),
        ExpectedEvent("operator.unheld", "waiting", 0, False, "ada", "because"),
    ),
    "replay": (
        "failed", lambda engine, id_: engine.operator.replay(id_, **AUDIT),
        ExpectedEvent("operator.replayed", "waiting", 1, False, "ada", "because"),
    ),
}  # fmt: skip

TIMED = Policy(attempt_timeout="10s")
DUTIES = {
    "lease expiry": Duty(Policy(), "30s", ExpectedEvent("lease.expired", "waiting", 1, True)),
    "lease expiry, kept": Duty(KEEPING, "30s", ExpectedEvent("lease.expired", "active", 1, True)),
    "lease expiry, cap exceeded": Duty(
        Policy(max_reclaims=0), "30s", ExpectedEvent("completion.failed", "failed", 1, True)
    ),
    "attempt timeout": Duty(TIMED, "10s", ExpectedEvent("lease.retry_scheduled", "delayed", 1, True)),
    "attempt timeout, exhausted": Duty(
        replace(TIMED, max_retries=0), "10s", ExpectedEvent("completion.failed", "failed", 1, True)
    ),
    "attempt timeout, expire": Duty(
        replace(TIMED, on_attempt_timeout=OnAttemptTimeout.EXPIRE),
        "10s",
        ExpectedEvent("completion.expired", "expired", 1, True),
    ),
    "deadline": Duty(Policy(deadline="20s"), "20s", ExpectedEvent("completion.expired", "expired", 1, True)),
}


async def test_each_worker_operation_writes_one_event(engine: Engine) -> None:
    for case, (policy, work, expected) in WORKER.items():
        lease = await leased(engine, policy=policy)
        await assert_one_event(engine, lease.execution_id, work(engine, lease.fence), expected, case, lease)


async def test_each_claim_and_operator_command_writes_one_event(engine: Engine, clock: VirtualClock) -> None:
    for case, (situation, command, expected) in OPERATOR.items():
        id_ = await SITUATIONS[situation](engine, clock)
        await assert_one_event(engine, id_, command(engine, id_), expected, case)


async def test_each_duty_writes_one_event(engine: Engine, clock: VirtualClock) -> None:
    for case, duty in DUTIES.items():
        lease = await leased(engine, policy=duty.policy)
        clock.advance(duty.after)
        await assert_one_event(engine, lease.execution_id, engine.reconcilers.tick(), duty.expected, case, lease)
    id_ = await submitted(engine, delay="1m")
    clock.advance("1m")
    await assert_one_event(
        engine, id_, engine.reconcilers.tick(), ExpectedEvent("lifecycle.ready", "waiting", 0), "ready"
    )


async def test_hand_off_and_its_grant_write_one_event_each(engine: Engine, clock: VirtualClock) -> None:
    id_ = await kept_expired(engine, clock)
    grant_call = engine.operator.grant_reclaim(id_, "worker-2", "why", principal="who")
    await assert_one_event(
        engine, id_, grant_call, ExpectedEvent("operator.reclaim_granted", "active", 0, False, "who", "why"), "grant"
    )
    grant = await engine.operator.grant_reclaim(id_, "worker-2")
    reclaim = engine.leases.reclaim(grant, "worker-2")
    await assert_one_event(engine, id_, reclaim, ExpectedEvent("lease.reclaimed", "active", 1), "reclaim")


async def test_operations_without_a_transition_write_no_event(engine: Engine) -> None:
    id_ = await submitted(engine)
    assert await engine.executions.history(id_) == []
    lease = await engine.leases.claim_execution(id_, "worker-1")
    await engine.leases.renew(lease.fence)
    await engine.leases.renew_many([lease.fence])
    await engine.leases.progress(lease.fence, 10, "on it")
    await engine.leases.checkpoint(lease.fence, [Step("a")])
    await engine.executions.set_tags(id_, {"team.owner": "ada"})
    assert await event_names(engine, id_) == ["lease.acquired"]
    assert (await engine.executions.describe(id_)).version == 1


async def test_version_is_the_number_of_events_in_every_situation(engine: Engine, clock: VirtualClock) -> None:
    for situation, arrange in SITUATIONS.items():
        id_ = await arrange(engine, clock)
        execution, history = await engine.executions.describe(id_), await engine.executions.history(id_)
        assert [event.version for event in history] == list(range(1, execution.version + 1)), situation
        assert {event.execution_id for event in history} <= {id_}, situation
        if history:
            assert (history[-1].state, history[-1].epoch) == (execution.state, execution.epoch), situation


async def test_event_names_the_execution_and_its_tags(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, kind="mail", lane="slow", tags={"team.owner": "ada"})
    clock.advance("1s")
    await engine.leases.complete(lease.fence, b"out")
    for event in await engine.executions.history(lease.execution_id):
        assert (event.namespace, event.lane, event.kind) == ("default", "slow", "mail")
        assert (event.tags, event.generation, event.attempt_index) == ({"team.owner": "ada"}, 0, 0)
        assert (event.lease_id, event.worker) == (lease.fence.lease_id, lease.worker)
    assert event.at == clock.now()


async def test_every_terminal_path_writes_one_completion_event(engine: Engine, clock: VirtualClock) -> None:
    terminal_ids = []
    for policy, work, expected in WORKER.values():
        lease = await leased(engine, policy=policy)
        await work(engine, lease.fence)
        terminal_ids += [lease.execution_id] if expected.name.startswith("completion") else []
    for situation in LIVE:
        terminal_ids.append(await SITUATIONS[situation](engine, clock))
        await engine.operator.cancel(terminal_ids[-1])
    for duty in DUTIES.values():
        lease = await leased(engine, policy=duty.policy)
        clock.advance(duty.after)
        await engine.reconcilers.tick()
        terminal_ids += [lease.execution_id] if duty.expected.name.startswith("completion") else []
    clock.advance("1d")
    await engine.reconcilers.tick()
    for id_ in terminal_ids:
        names = await event_names(engine, id_)
        completions = [name for name in names if name.startswith("completion")]
        assert completions[-1] == names[-1], names
        assert len(completions) == 1 + names.count("operator.replayed"), names


async def test_repeated_ending_writes_no_second_event(engine: Engine, store: TestStore) -> None:
    ids = []
    for policy, work, _ in WORKER.values():
        lease = await leased(engine, policy=policy)
        await work(engine, lease.fence)
        await work(engine, lease.fence)
        ids.append(lease.execution_id)
    [count] = await store.query("SELECT COUNT(*) AS number FROM ff.event")
    assert count["number"] == 2 * len(ids)


async def assert_one_event(
    engine: Engine, id_: UUID, call: Awaitable[object], expected: ExpectedEvent, case: str, lease: Lease | None = None
) -> None:
    """Assert that the call adds exactly this event to the history of the execution."""
    before = await engine.executions.describe(id_)
    await call
    after, event = await engine.executions.describe(id_), await last_event(engine, id_)
    assert after.version == before.version + 1, case
    actual = to_expected_event(event, before.epoch)
    assert (actual if expected.reason else replace(actual, reason=None)) == expected, case
    assert (event.version, event.state, event.epoch) == (after.version, after.state, after.epoch), case
    assert event.at == after.changed_at, case
    if lease is not None:
        assert (event.lease_id, event.worker) == (lease.fence.lease_id, lease.worker), case


def to_expected_event(event: Event, epoch: int) -> ExpectedEvent:
    """Convert an event to its comparable form."""
    assert event.epoch is not None
    return ExpectedEvent(
        f"{event.family}.{event.name}",
        str(event.state),
        event.epoch - epoch,
        event.ends_lease,
        event.principal,
        event.reason,
    )
