"""Events: each transition writes exactly one row that says what happened; versions count them without a gap."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from flowfabric.engine import Engine, Event, FailureClass, Fence, Lease, OnAttemptTimeout, Policy, Step
from flowfabric.testing import VirtualClock
from tests.facts import LIVE, event_names, last_event
from tests.scenarios import KEEPING, ONE_SHOT, SITUATIONS, STEADY, kept_expired, leased, submitted
from tests.stores import TestStore

WHO: dict[str, Any] = {"principal": "ada", "reason": "because"}


@dataclass(frozen=True, slots=True)
class Row:
    """What the one event of an operation must say: epochs since before it, and why unless anything may be said."""

    name: str
    state: str
    epochs: int
    ends_lease: bool = False
    who: str | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Duty:
    """What a reconciler does to leased work with this policy after this long."""

    policy: Policy
    after: str
    row: Row


Work = Callable[[Engine, Fence], Awaitable[object]]
Order = Callable[[Engine, UUID], Awaitable[object]]

WORKER: dict[str, tuple[Policy, Work, Row]] = {
    "complete": (
        Policy(), lambda engine, fence: engine.leases.complete(fence),
        Row("completion.completed", "completed", 0, True),
    ),
    "complete with steps": (
        Policy(), lambda engine, fence: engine.leases.complete(fence, steps=[Step("a")]),
        Row("completion.completed", "completed", 0, True),
    ),
    "complete many": (
        Policy(), lambda engine, fence: engine.leases.complete_many([(fence, b"")]),
        Row("completion.completed", "completed", 0, True),
    ),
    "fail, retried": (
        STEADY, lambda engine, fence: engine.leases.fail(fence, "bad"),
        Row("lease.retry_scheduled", "delayed", 1, True, why="bad"),
    ),
    "fail, exhausted": (
        ONE_SHOT, lambda engine, fence: engine.leases.fail(fence, "bad"),
        Row("completion.failed", "failed", 0, True, why="bad"),
    ),
    "fail, permanent": (
        Policy(), lambda engine, fence: engine.leases.fail(fence, "bad", failure_class=FailureClass.PERMANENT),
        Row("completion.failed", "failed", 0, True, why="bad"),
    ),
    "delay": (
        Policy(), lambda engine, fence: engine.leases.delay(fence, after="1m"),
        Row("lease.delayed", "delayed", 1, True),
    ),
    "release": (
        Policy(), lambda engine, fence: engine.leases.release(fence), Row("lease.released", "waiting", 1, True),
    ),
    "cancel": (
        Policy(), lambda engine, fence: engine.leases.cancel(fence, "because"),
        Row("completion.cancelled", "cancelled", 1, True, "worker-1", "because"),
    ),
}  # fmt: skip

OPERATOR: dict[str, tuple[str, Order, Row]] = {
    "claim": (
        "waiting", lambda engine, _: engine.leases.claim(["default"], "worker-1", limit=9),
        Row("lease.acquired", "active", 1),
    ),
    "claim by id": (
        "waiting: requeued", lambda engine, id_: engine.leases.claim_execution(id_, "worker-1"),
        Row("lease.acquired", "active", 1),
    ),
    "cancel": (
        "active", lambda engine, id_: engine.operator.cancel(id_, **WHO),
        Row("completion.cancelled", "cancelled", 1, True, "ada", "because"),
    ),
    "cancel what waits": (
        "delayed", lambda engine, id_: engine.operator.cancel(id_, **WHO),
        Row("completion.cancelled", "cancelled", 1, False, "ada", "because"),
    ),
    "revoke": (
        "active", lambda engine, id_: engine.operator.revoke_lease(id_, **WHO),
        Row("lease.revoked", "waiting", 1, True, "ada", "because"),
    ),
    "change priority": (
        "waiting", lambda engine, id_: engine.operator.change_priority(id_, 5, **WHO),
        Row("operator.priority_changed", "waiting", 0, False, "ada", "because"),
    ),
    "hold": (
        "delayed", lambda engine, id_: engine.operator.hold(id_, **WHO),
        Row("operator.held", "blocked", 0, False, "ada", "because"),
    ),
    "unhold": (
        "blocked: held", lambda engine, id_: engine.operator.unhold(id_, **WHO),
        Row("operator.unheld", "waiting", 0, False, "ada", "because"),
    ),
    "unhold in bulk": (
        "blocked: held", lambda engine, _: engine.operator.unhold_all(**WHO),
        Row("operator.unheld", "waiting", 0, False, "ada", "because"),
    ),
    "replay": (
        "failed", lambda engine, id_: engine.operator.replay(id_, **WHO),
        Row("operator.replayed", "waiting", 1, False, "ada", "because"),
    ),
}  # fmt: skip

TIMED = Policy(attempt_timeout="10s")
DUTIES = {
    "lease expiry": Duty(Policy(), "30s", Row("lease.expired", "waiting", 1, True)),
    "lease expiry, kept": Duty(KEEPING, "30s", Row("lease.expired", "active", 1, True)),
    "lease expiry, too often": Duty(Policy(max_reclaims=0), "30s", Row("completion.failed", "failed", 1, True)),
    "attempt timeout": Duty(TIMED, "10s", Row("lease.retry_scheduled", "delayed", 1, True)),
    "attempt timeout, exhausted": Duty(
        replace(TIMED, max_retries=0), "10s", Row("completion.failed", "failed", 1, True)
    ),
    "attempt timeout, expire": Duty(
        replace(TIMED, on_attempt_timeout=OnAttemptTimeout.EXPIRE), "10s", Row("completion.expired", "expired", 1, True)
    ),
    "deadline": Duty(Policy(deadline="20s"), "20s", Row("completion.expired", "expired", 1, True)),
}


async def test_each_operation_of_a_worker_writes_one_event(engine: Engine) -> None:
    for case, (policy, work, row) in WORKER.items():
        lease = await leased(engine, policy=policy)
        await one_event(engine, lease.execution_id, work(engine, lease.fence), row, case, lease)


async def test_each_claim_and_order_of_an_operator_writes_one_event(engine: Engine, clock: VirtualClock) -> None:
    for case, (situation, order, row) in OPERATOR.items():
        id_ = await SITUATIONS[situation](engine, clock)
        await one_event(engine, id_, order(engine, id_), row, case)


async def test_each_duty_writes_one_event(engine: Engine, clock: VirtualClock) -> None:
    for case, duty in DUTIES.items():
        lease = await leased(engine, policy=duty.policy)
        clock.advance(duty.after)
        await one_event(engine, lease.execution_id, engine.reconcilers.tick(), duty.row, case, lease)
    id_ = await submitted(engine, delay="1m")
    clock.advance("1m")
    await one_event(engine, id_, engine.reconcilers.tick(), Row("lifecycle.ready", "waiting", 0), "ready")


async def test_a_hand_off_writes_one_event_and_its_grant_another(engine: Engine, clock: VirtualClock) -> None:
    id_ = await kept_expired(engine, clock)
    grants = engine.operator.grant_reclaim(id_, "worker-2", "why", principal="who")
    await one_event(engine, id_, grants, Row("operator.reclaim_granted", "active", 0, False, "who", "why"), "grant")
    grant = await engine.operator.grant_reclaim(id_, "worker-2")
    reclaim = engine.leases.reclaim(grant, "worker-2")
    await one_event(engine, id_, reclaim, Row("lease.reclaimed", "active", 1), "reclaim")


async def test_what_is_not_a_transition_writes_no_event(engine: Engine) -> None:
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


async def test_the_version_is_the_number_of_events_in_every_situation(engine: Engine, clock: VirtualClock) -> None:
    for situation, arrange in SITUATIONS.items():
        id_ = await arrange(engine, clock)
        found, history = await engine.executions.describe(id_), await engine.executions.history(id_)
        assert [event.version for event in history] == list(range(1, found.version + 1)), situation
        assert {event.execution_id for event in history} <= {id_}, situation
        if history:
            assert (history[-1].state, history[-1].epoch) == (found.state, found.epoch), situation


async def test_an_event_names_the_execution_and_its_tags(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, kind="mail", lane="slow", tags={"team.owner": "ada"})
    clock.advance("1s")
    await engine.leases.complete(lease.fence, b"out")
    for event in await engine.executions.history(lease.execution_id):
        assert (event.namespace, event.lane, event.kind) == ("default", "slow", "mail")
        assert (event.tags, event.generation, event.attempt_index) == ({"team.owner": "ada"}, 0, 0)
        assert (event.lease_id, event.worker) == (lease.fence.lease_id, lease.worker)
    assert event.at == clock.now()


async def test_every_terminal_path_writes_one_completion_event(engine: Engine, clock: VirtualClock) -> None:
    ended = []
    for policy, work, row in WORKER.values():
        lease = await leased(engine, policy=policy)
        await work(engine, lease.fence)
        ended += [lease.execution_id] if row.name.startswith("completion") else []
    for situation in LIVE:
        ended.append(await SITUATIONS[situation](engine, clock))
        await engine.operator.cancel(ended[-1])
    for duty in DUTIES.values():
        lease = await leased(engine, policy=duty.policy)
        clock.advance(duty.after)
        await engine.reconcilers.tick()
        ended += [lease.execution_id] if duty.row.name.startswith("completion") else []
    clock.advance("1d")
    await engine.reconcilers.tick()
    for id_ in ended:
        names = await event_names(engine, id_)
        completions = [name for name in names if name.startswith("completion")]
        assert completions[-1] == names[-1], names
        assert len(completions) == 1 + names.count("operator.replayed"), names


async def test_a_repeated_ending_writes_no_second_event(engine: Engine, store: TestStore) -> None:
    ids = []
    for policy, work, _ in WORKER.values():
        lease = await leased(engine, policy=policy)
        await work(engine, lease.fence)
        await work(engine, lease.fence)
        ids.append(lease.execution_id)
    [counted] = await store.query("SELECT COUNT(*) AS number FROM ff.event")
    assert counted["number"] == 2 * len(ids)


async def one_event(
    engine: Engine, id_: UUID, act: Awaitable[object], row: Row, case: str, lease: Lease | None = None
) -> None:
    """The act adds exactly this event to the history of the execution."""
    before = await engine.executions.describe(id_)
    await act
    after, event = await engine.executions.describe(id_), await last_event(engine, id_)
    assert after.version == before.version + 1, case
    found = said(event, before.epoch)
    assert (found if row.why else replace(found, why=None)) == row, case
    assert (event.version, event.state, event.epoch) == (after.version, after.state, after.epoch), case
    assert event.at == after.changed_at, case
    if lease is not None:
        assert (event.lease_id, event.worker) == (lease.fence.lease_id, lease.worker), case


def said(event: Event, epoch: int) -> Row:
    """An event as the row it should be."""
    assert event.epoch is not None
    return Row(
        f"{event.family}.{event.name}", str(event.state), event.epoch - epoch, event.ends_lease, event.principal,
        event.reason,
    )  # fmt: skip
