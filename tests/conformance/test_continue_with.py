"""continue_with: the same execution begins anew, as its next generation with other input and an empty journal."""

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
    Standing,
    State,
    Step,
    Submission,
    WaitpointState,
)  # fmt: skip
from flowfabric.testing import VirtualClock
from tests.facts import event_names, every_write_is_refused, last_event, nothing_written, refused
from tests.scenarios import STEADY, leased, submitted
from tests.stores import TestStore


async def test_the_next_generation_has_the_new_input_and_nothing_but_the_given_steps(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.checkpoint(lease.fence, [Step("old", b"1"), Step("counter", b"1")])
    answer = await engine.leases.continue_with(lease.fence, b"\x00next", encoding="raw", steps=[Step("counter", b"2")])
    assert answer == Continued()
    await every_write_is_refused(engine, lease.fence, "execution_not_active")
    [again] = await engine.leases.claim(["default"], "worker-2")
    assert (again.execution_id, again.payload, again.encoding) == (lease.execution_id, b"\x00next", "raw")
    assert (again.generation, again.attempt_index) == (lease.generation + 1, lease.attempt_index)
    steps = await engine.executions.steps(lease.execution_id)
    assert [(step.seq, step.name, step.payload, step.generation) for step in steps] == [(1, "counter", b"2", 1)]
    await engine.leases.checkpoint(again.fence, [Step("old", b"another")])
    assert [step.seq for step in await engine.executions.steps(lease.execution_id)] == [1, 2]


async def test_no_attempt_is_used_and_what_was_counted_starts_again(engine: Engine, clock: VirtualClock) -> None:
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


async def test_the_attempts_time_starts_again_and_the_deadline_does_not(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=Policy(attempt_timeout="10s", deadline="1h"))
    clock.advance("4s")
    await engine.leases.continue_with(lease.fence, b"next")
    again = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    assert again.attempt_timeout_at is not None
    assert (again.attempt_timeout_at - clock.now()).total_seconds() == 10
    assert again.deadline_at == lease.deadline_at


async def test_standing_waitpoints_and_their_signals_stay_and_others_close(engine: Engine) -> None:
    lease = await leased(engine, signals=["go"])
    early = await engine.waitpoints.create(lease.fence, "early")
    assert early.token is not None
    await engine.signals.deliver(early.token, "x")
    await engine.signals.send(lease.execution_id, "go", b"kept")
    await engine.leases.continue_with(lease.fence, b"next")
    await refused(engine.signals.deliver(early.token, "x"), "waitpoint_closed")
    shown = {item.key: (item.state, item.close_reason) for item in await engine.waitpoints.list(lease.execution_id)}
    assert shown == {"early": (WaitpointState.CLOSED, "continued"), "go": (WaitpointState.PENDING, None)}
    again = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    look = await engine.leases.look(again.fence, {"early": 0, "go": 0})
    assert [(signal.waitpoint, signal.payload) for signal in look.signals] == [("go", b"kept")]
    fresh = await engine.waitpoints.create(again.fence, "early")
    assert fresh.id != early.id
    answer = await engine.leases.suspend(again.fence, [Standing("go")], key="wait")
    assert isinstance(answer, Satisfied)
    assert [signal.payload for signal in answer.signals] == [b"kept"]


async def test_keys_of_suspensions_and_children_are_free_again(engine: Engine) -> None:
    lease = await leased(engine, signals=["go"])
    child = ChildSubmission("child", Submission(kind="child"))
    [first] = await engine.leases.submit_children(lease.fence, [child])
    await engine.signals.send(lease.execution_id, "go")
    assert isinstance(await engine.leases.suspend(lease.fence, [Standing("go")], key="wait"), Satisfied)
    await engine.leases.continue_with(lease.fence, b"next")
    again = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    [second] = await engine.leases.submit_children(again.fence, [child])
    assert isinstance(second, Created)
    assert second.id != first.id
    await engine.signals.send(lease.execution_id, "go", b"2")
    answer = await engine.leases.suspend(again.fence, [Standing("go")], key="wait")
    assert isinstance(answer, Satisfied)
    assert [signal.payload for signal in answer.signals] == [b"2"]


async def test_whoever_waits_for_it_waits_on(engine: Engine) -> None:
    lease = await leased(engine)
    waiting = asyncio.create_task(engine.executions.wait(lease.execution_id, timeout=10))
    await engine.leases.continue_with(lease.fence, b"next")
    again = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    await engine.leases.complete(again.fence, b"out")
    outcome = await waiting
    assert outcome is not None
    assert outcome.result == b"out"


async def test_a_lost_reply_is_answered_again_and_other_content_is_refused(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    await engine.leases.continue_with(lease.fence, b"next", steps=[Step("a", b"1")])
    again = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    async with nothing_written(store):
        assert await engine.leases.continue_with(lease.fence, b"next", steps=[Step("a", b"1")]) == Continued()
        for other in ({"payload": b"other"}, {"payload": b"next", "encoding": "raw"}, {"payload": b"next"}):
            await refused(engine.leases.continue_with(lease.fence, **other), "execution_not_active")
    await engine.leases.release(again.fence)
    await refused(engine.leases.continue_with(lease.fence, b"next", steps=[Step("a", b"1")]), "stale_lease")
    assert await event_names(engine, lease.execution_id) == [
        "lease.acquired", "lease.continued", "lease.acquired", "lease.released",
    ]  # fmt: skip


async def test_a_repeated_submission_is_still_known_by_its_first_input(engine: Engine) -> None:
    id_ = await submitted(engine, payload=b"first", key="once")
    lease = await engine.leases.claim_execution(id_, "worker-1")
    await engine.leases.continue_with(lease.fence, b"next")
    assert await engine.executions.submit("job", b"first", key="once") == Duplicate(id_)
    assert await engine.executions.submit("job", b"first", id=id_) == Duplicate(id_)
    await refused(engine.executions.submit("job", b"next", id=id_), "idempotency_mismatch", Conflict)


async def test_a_replay_runs_the_last_input_again(engine: Engine) -> None:
    lease = await leased(engine, payload=b"first")
    await engine.leases.continue_with(lease.fence, b"next")
    again = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    await engine.leases.complete(again.fence)
    await engine.operator.replay(lease.execution_id)
    third = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    assert (third.payload, third.generation) == (b"next", 2)


async def test_nothing_of_a_long_life_is_left_in_the_journal(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    for turn in range(5):
        await engine.leases.checkpoint(lease.fence, [Step("a", b"%d" % turn), Step("b")])
        await engine.leases.continue_with(lease.fence, b"%d" % turn)
        lease = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    assert await store.query("SELECT seq FROM ff.step") == []
    assert lease.generation == 5
