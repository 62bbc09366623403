"""Tests of leases.postpone, by which a worker gives up an execution that its code could not continue."""

from __future__ import annotations

from datetime import timedelta

from flowfabric.engine import Delayed, Engine, Held, InvalidRequest, Lease, State, Step
from flowfabric.testing import VirtualClock
from tests.expectations import every_write_is_refused, last_event, nothing_written, refused
from tests.scenarios import leased, submitted
from tests.stores import TestStore

REPORT = "refund: the code no longer matches the journal\n> sleep     audit"


async def register(engine: Engine, version: str) -> None:
    await engine.workers.register(f"worker-{version}", ["default"], version=version, kinds=["job"], ttl="1h")


async def diverge(engine: Engine, lease: Lease, version: str) -> Delayed | Held:
    return await engine.leases.postpone(lease.fence, "diverged", REPORT, version=version)


async def claim_again(engine: Engine, clock: VirtualClock, lease: Lease) -> Lease:
    clock.advance("10s")
    await engine.reconcilers.tick()
    return await engine.leases.claim_execution(lease.execution_id, "worker-1")


async def test_diverged_work_is_released_for_a_worker_with_another_version(engine: Engine, clock: VirtualClock) -> None:
    await register(engine, "old")
    await register(engine, "new")
    lease = await leased(engine)
    outcome = await diverge(engine, lease, "old")
    assert isinstance(outcome, Delayed)
    released = await engine.executions.describe(lease.execution_id)
    assert (released.state, released.epoch, released.attempts) == (State.DELAYED, lease.epoch + 1, ())
    await every_write_is_refused(engine, lease.fence, "execution_not_active")
    again = await claim_again(engine, clock, lease)
    assert (again.attempt_index, again.origin) == (lease.attempt_index, "resumed")


async def test_pause_grows_with_every_divergence(engine: Engine, clock: VirtualClock) -> None:
    await register(engine, "old")
    await register(engine, "new")
    lease, pauses = await leased(engine), list[timedelta]()
    for _ in range(8):
        outcome = await diverge(engine, lease, "old")
        assert isinstance(outcome, Delayed)
        pauses.append(outcome.until - clock.now())
        lease = await claim_again(engine, clock, lease)
    assert pauses[:3] == [timedelta(seconds=0.25), timedelta(seconds=0.5), timedelta(seconds=1)]
    assert pauses[-2:] == [timedelta(seconds=8)] * 2


async def test_diverged_work_is_held_if_no_live_worker_has_another_version(engine: Engine) -> None:
    await register(engine, "old")
    lease = await leased(engine)
    assert await diverge(engine, lease, "old") == Held("diverged")
    assert (await engine.executions.describe(lease.execution_id)).hold_report == REPORT


async def test_workers_that_cannot_run_the_execution_do_not_count(engine: Engine, clock: VirtualClock) -> None:
    await engine.workers.register("other-kind", ["default"], version="new", kinds=["mail"])
    await engine.workers.register("other-lane", ["bulk"], version="new")
    await engine.workers.register("silent", ["default"], version="new", ttl="1s")
    clock.advance("1s")
    assert await diverge(engine, await leased(engine), "old") == Held("diverged")
    await engine.workers.register("without-gpu", ["default"], version="new", ttl="1h")
    id_ = await submitted(engine, requires=["gpu"])
    lease = await engine.leases.claim_execution(id_, "worker-1", capabilities=["gpu"])
    assert await diverge(engine, lease, "old") == Held("diverged")


async def test_diverged_work_is_held_after_all_live_versions_diverged(engine: Engine, clock: VirtualClock) -> None:
    for version in ("old", "new", "newest"):
        await register(engine, version)
    lease = await leased(engine)
    for version in ("old", "new", "old"):
        assert isinstance(await diverge(engine, lease, version), Delayed)
        lease = await claim_again(engine, clock, lease)
    assert await diverge(engine, lease, "newest") == Held("diverged")


async def test_diverged_work_is_held_after_15_minutes(engine: Engine, clock: VirtualClock) -> None:
    await register(engine, "old")
    await register(engine, "new")
    lease = await leased(engine)
    assert isinstance(await diverge(engine, lease, "old"), Delayed)
    lease = await claim_again(engine, clock, lease)
    clock.advance("889s")
    await engine.reconcilers.tick()
    lease = await engine.leases.claim_execution(lease.execution_id, "worker-1")
    assert isinstance(await diverge(engine, lease, "old"), Delayed)
    lease = await claim_again(engine, clock, lease)
    assert await diverge(engine, lease, "old") == Held("diverged")


async def test_progress_by_matching_code_begins_a_new_series(engine: Engine, clock: VirtualClock) -> None:
    await register(engine, "old")
    await register(engine, "new")
    lease = await leased(engine)
    assert isinstance(await diverge(engine, lease, "old"), Delayed)
    lease = await claim_again(engine, clock, lease)
    await engine.leases.delay(lease.fence, after="1h", steps=[Step("sleep", b"1")])
    clock.advance("1h")
    await register(engine, "old")
    await register(engine, "new")
    lease = await claim_again(engine, clock, lease)
    outcome = await diverge(engine, lease, "old")
    assert isinstance(outcome, Delayed)
    assert outcome.until - clock.now() == timedelta(seconds=0.25)


async def test_unheld_work_begins_a_new_series(engine: Engine, clock: VirtualClock) -> None:
    await register(engine, "old")
    lease = await leased(engine)
    assert await diverge(engine, lease, "old") == Held("diverged")
    await engine.operator.unhold(lease.execution_id)
    await register(engine, "new")
    lease = await engine.leases.claim_execution(lease.execution_id, "worker-1")
    assert isinstance(await diverge(engine, lease, "old"), Delayed)


async def test_released_work_explains_which_versions_it_waits_for(engine: Engine, clock: VirtualClock) -> None:
    await register(engine, "old")
    await register(engine, "new")
    lease = await leased(engine)
    since = clock.now()
    await diverge(engine, lease, "old")
    for _ in range(2):  # While it is delayed, and while it waits for a worker.
        explanation = await engine.operator.explain(lease.execution_id)
        assert explanation.sentence == (
            f'Waiting for a worker with other code since {since:%H:%M} UTC: version "old" does not match its journal, '
            f'and "new" has not run it. It is held at {since + timedelta(minutes=15):%H:%M} UTC.'
        )
        assert explanation.facts["code_versions"] == ("new",)
        clock.advance("10s")
        await engine.reconcilers.tick()
    event = next(e for e in await engine.executions.history(lease.execution_id) if e.reason == "diverged")
    assert (event.family, event.name, event.ends_lease) == ("lease", "delayed", True)
    assert event.details is not None
    assert event.details["code_version"] == "old"
    assert event.details["report"] == REPORT


async def test_failed_run_is_postponed_five_times_and_then_held_with_its_report(
    engine: Engine, clock: VirtualClock
) -> None:
    lease = await leased(engine)
    for number in range(1, 6):
        outcome = await engine.leases.postpone(lease.fence, "run_failed", "Traceback …", version="v")
        assert outcome == Delayed(clock.now() + timedelta(seconds=5))
        sentence = (await engine.operator.explain(lease.execution_id)).sentence
        assert sentence.startswith(f"Its run failed inside the engine, {number} of 5 times. Next run at ")
        lease = await claim_again(engine, clock, lease)
    assert await engine.leases.postpone(lease.fence, "run_failed", "Traceback …", version="v") == Held("run_failed")
    held = await engine.executions.describe(lease.execution_id)
    assert (held.state, held.hold_report, held.retry_count) == (State.BLOCKED, "Traceback …", 0)


async def test_failed_runs_are_counted_for_each_attempt(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    for _ in range(5):
        await engine.leases.postpone(lease.fence, "run_failed", "Traceback …", version="v")
        lease = await claim_again(engine, clock, lease)
    await engine.leases.fail(lease.fence, "not yet")
    clock.advance("2m")
    lease = await claim_again(engine, clock, lease)
    assert isinstance(await engine.leases.postpone(lease.fence, "run_failed", "again", version="v"), Delayed)


async def test_failed_runs_of_an_unheld_execution_are_counted_again(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    for _ in range(5):
        await engine.leases.postpone(lease.fence, "run_failed", "Traceback …", version="v")
        lease = await claim_again(engine, clock, lease)
    assert await engine.leases.postpone(lease.fence, "run_failed", "Traceback …", version="v") == Held("run_failed")
    await engine.operator.unhold(lease.execution_id)
    lease = await engine.leases.claim_execution(lease.execution_id, "worker-1")
    assert isinstance(await engine.leases.postpone(lease.fence, "run_failed", "again", version="v"), Delayed)


async def test_repeated_postpone_returns_the_first_outcome(engine: Engine, store: TestStore) -> None:
    await register(engine, "old")
    await register(engine, "new")
    released, held = await leased(engine), await leased(engine)
    first = await diverge(engine, released, "old")
    assert isinstance(await engine.leases.postpone(held.fence, "diverged", REPORT, version="old"), Delayed)
    await engine.workers.mark_dead("worker-new")
    stuck = await leased(engine)
    assert await diverge(engine, stuck, "old") == Held("diverged")
    async with nothing_written(store):
        assert await diverge(engine, released, "old") == first
        assert await diverge(engine, stuck, "old") == Held("diverged")
        await refused(
            engine.leases.postpone(released.fence, "diverged", "another", version="old"), "execution_not_active"
        )


async def test_steps_are_recorded_with_the_postponement(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.postpone(lease.fence, "run_failed", "no", version="v", steps=[Step("seen", b"1")])
    assert [step.name for step in await engine.executions.steps(lease.execution_id)] == ["seen"]


async def test_invalid_postponements_are_refused(engine: Engine) -> None:
    lease = await leased(engine)
    await refused(engine.leases.postpone(lease.fence, "tired", "x", version="v"), "invalid_choice", InvalidRequest)
    await refused(
        engine.leases.postpone(lease.fence, "diverged", "x" * (64 * 1024 + 1), version="v"),
        "payload_too_large",
        InvalidRequest,
    )
    assert (await last_event(engine, lease.execution_id)).name == "acquired"
