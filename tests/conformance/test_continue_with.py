"""Tests of continue_with, which starts the next generation with new input and an empty journal."""

from __future__ import annotations

import asyncio

from flowfabric.engine import (
    ChildSubmission,
    Conflict,
    Continued,
    Created,
    Duplicate,
    Engine,
    Policy,
    Satisfied,
    StandingWaitpoint,
    State,
    Step,
    Submission,
    WaitpointState,
)
from flowfabric.testing import VirtualClock
from tests.expectations import event_names, every_write_is_refused, last_event, nothing_written, refused
from tests.scenarios import STEADY, leased, submitted
from tests.stores import TestStore


async def test_next_generation_has_the_new_input_and_only_the_given_steps(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.checkpoint(lease.fence, [Step("old", b"1"), Step("counter", b"1")])
    outcome = await engine.leases.continue_with(lease.fence, b"\x00next", encoding="raw", steps=[Step("counter", b"2")])
    assert outcome == Continued()
    await every_write_is_refused(engine, lease.fence, "execution_not_active")
    [next_lease] = await engine.leases.claim(["default"], "worker-2")
    assert (next_lease.execution_id, next_lease.payload, next_lease.encoding) == (
        lease.execution_id,
        b"\x00next",
        "raw",
    )
    assert (next_lease.generation, next_lease.attempt_index) == (lease.generation + 1, lease.attempt_index)
    steps = await engine.executions.steps(lease.execution_id)
    assert [(step.seq, step.name, step.payload, step.generation) for step in steps] == [(1, "counter", b"2", 1)]
    await engine.leases.checkpoint(next_lease.fence, [Step("old", b"another")])
    assert [step.seq for step in await engine.executions.steps(lease.execution_id)] == [1, 2]


async def test_continue_uses_no_attempt_and_resets_the_counters(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=STEADY)
    await engine.leases.fail(lease.fence, "not yet")
    clock.advance("10s")
    await engine.reconcilers.tick()
    second = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    await engine.leases.progress(second.fence, 50, "half")
    before = await engine.executions.describe(lease.execution_id)
    await engine.leases.continue_with(second.fence, b"next")
    after = await engine.executions.describe(lease.execution_id)
    assert (after.state, after.attempt_index, after.attempts) == (State.WAITING, 1, before.attempts)
    assert (after.retry_count, after.last_failure, after.progress_percent, after.progress_message) == (
        0,
        None,
        None,
        None,
    )
    assert (after.epoch, after.version) == (before.epoch + 1, before.version + 1)
    event = await last_event(engine, lease.execution_id)
    assert (event.family, event.name, event.ends_lease, event.generation) == ("lease", "continued", True, 1)
    assert event.details == {"generation": 1}


async def test_continue_restarts_the_attempt_timeout_but_not_the_deadline(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=Policy(attempt_timeout="10s", deadline="1h"))
    clock.advance("4s")
    await engine.leases.continue_with(lease.fence, b"next")
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    assert next_lease.attempt_timeout_at is not None
    assert (next_lease.attempt_timeout_at - clock.now()).total_seconds() == 10
    assert next_lease.deadline_at == lease.deadline_at


async def test_standing_waitpoints_and_their_signals_stay_and_others_close(engine: Engine) -> None:
    lease = await leased(engine, signals=["go"])
    early = await engine.waitpoints.create(lease.fence, "early")
    assert early.token is not None
    await engine.signals.deliver(early.token, "x")
    await engine.signals.send(lease.execution_id, "go", b"kept")
    await engine.leases.continue_with(lease.fence, b"next")
    await refused(engine.signals.deliver(early.token, "x"), "waitpoint_closed")
    states = {
        waitpoint.key: (waitpoint.state, waitpoint.close_reason)
        for waitpoint in await engine.waitpoints.list(lease.execution_id)
    }
    assert states == {"early": (WaitpointState.CLOSED, "continued"), "go": (WaitpointState.PENDING, None)}
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    waits = await engine.leases.read_waits(next_lease.fence, {"early": 0, "go": 0})
    assert [(signal.waitpoint, signal.payload) for signal in waits.signals] == [("go", b"kept")]
    fresh = await engine.waitpoints.create(next_lease.fence, "early")
    assert fresh.id != early.id
    outcome = await engine.leases.suspend(next_lease.fence, [StandingWaitpoint("go")], key="wait")
    assert isinstance(outcome, Satisfied)
    assert [signal.payload for signal in outcome.signals] == [b"kept"]


async def test_keys_of_suspensions_and_children_can_be_used_again(engine: Engine) -> None:
    lease = await leased(engine, signals=["go"])
    child = ChildSubmission("child", Submission(kind="child"))
    [first] = await engine.leases.submit_children(lease.fence, [child])
    await engine.signals.send(lease.execution_id, "go")
    assert isinstance(await engine.leases.suspend(lease.fence, [StandingWaitpoint("go")], key="wait"), Satisfied)
    await engine.leases.continue_with(lease.fence, b"next")
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    [second] = await engine.leases.submit_children(next_lease.fence, [child])
    assert isinstance(second, Created)
    assert second.id != first.id
    await engine.signals.send(lease.execution_id, "go", b"2")
    outcome = await engine.leases.suspend(next_lease.fence, [StandingWaitpoint("go")], key="wait")
    assert isinstance(outcome, Satisfied)
    assert [signal.payload for signal in outcome.signals] == [b"2"]


async def test_waiting_caller_receives_the_result_of_the_next_generation(engine: Engine) -> None:
    lease = await leased(engine)
    waiting = asyncio.create_task(engine.executions.wait(lease.execution_id, timeout=10))
    await engine.leases.continue_with(lease.fence, b"next")
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    await engine.leases.complete(next_lease.fence, b"out")
    outcome = await waiting
    assert outcome is not None
    assert outcome.result == b"out"


async def test_repeated_continue_returns_the_first_outcome_and_other_content_is_refused(
    engine: Engine, store: TestStore
) -> None:
    lease = await leased(engine)
    await engine.leases.continue_with(lease.fence, b"next", steps=[Step("a", b"1")])
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    async with nothing_written(store):
        assert await engine.leases.continue_with(lease.fence, b"next", steps=[Step("a", b"1")]) == Continued()
        for arguments in ({"payload": b"other"}, {"payload": b"next", "encoding": "raw"}, {"payload": b"next"}):
            await refused(engine.leases.continue_with(lease.fence, **arguments), "execution_not_active")
    await engine.leases.release(next_lease.fence)
    await refused(engine.leases.continue_with(lease.fence, b"next", steps=[Step("a", b"1")]), "stale_lease")
    assert await event_names(engine, lease.execution_id) == [
        "lease.acquired",
        "lease.continued",
        "lease.acquired",
        "lease.released",
    ]


async def test_repeated_submission_is_compared_with_the_first_input(engine: Engine) -> None:
    id_ = await submitted(engine, payload=b"first", key="once")
    lease = await engine.leases.claim_execution(id_, "worker-1")
    await engine.leases.continue_with(lease.fence, b"next")
    assert await engine.executions.submit("job", b"first", key="once") == Duplicate(id_)
    assert await engine.executions.submit("job", b"first", id=id_) == Duplicate(id_)
    await refused(engine.executions.submit("job", b"next", id=id_), "idempotency_mismatch", Conflict)


async def test_replay_uses_the_last_input(engine: Engine) -> None:
    lease = await leased(engine, payload=b"first")
    await engine.leases.continue_with(lease.fence, b"next")
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    await engine.leases.complete(next_lease.fence)
    await engine.operator.replay(lease.execution_id)
    third = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    assert (third.payload, third.generation) == (b"next", 2)


async def test_journal_is_empty_after_many_generations(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    for generation in range(5):
        await engine.leases.checkpoint(lease.fence, [Step("a", b"%d" % generation), Step("b")])
        await engine.leases.continue_with(lease.fence, b"%d" % generation)
        lease = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    assert await store.query("SELECT seq FROM ff.step") == []
    assert lease.generation == 5
