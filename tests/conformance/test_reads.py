"""Tests of describe, result, wait, history, steps, counts and set_tags in every state."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from flowfabric.engine import Engine, Failure, NotFound, Policy, State, StateVector, Step, WorkerId
from flowfabric.testing import VirtualClock
from tests.expectations import error_of
from tests.scenarios import ONE_SHOT, SITUATIONS, STEADY, leased, retrying, submitted
from tests.stores import TestStore

UNKNOWN = UUID(int=1)
READS_AND_COMMANDS: dict[str, Callable[[Engine], Awaitable[Any]]] = {
    "describe": lambda engine: engine.executions.describe(UNKNOWN),
    "result": lambda engine: engine.executions.result(UNKNOWN),
    "history": lambda engine: engine.executions.history(UNKNOWN),
    "steps": lambda engine: engine.executions.steps(UNKNOWN),
    "set_tags": lambda engine: engine.executions.set_tags(UNKNOWN, {}),
    "claim_execution": lambda engine: engine.leases.claim_execution(UNKNOWN, "w"),
    "cancel": lambda engine: engine.operator.cancel(UNKNOWN),
    "revoke_lease": lambda engine: engine.operator.revoke_lease(UNKNOWN),
    "grant_reclaim": lambda engine: engine.operator.grant_reclaim(UNKNOWN, "w"),
    "change_priority": lambda engine: engine.operator.change_priority(UNKNOWN, 1),
    "hold": lambda engine: engine.operator.hold(UNKNOWN),
    "unhold": lambda engine: engine.operator.unhold(UNKNOWN),
    "replay": lambda engine: engine.operator.replay(UNKNOWN),
}

RUNNABLE, ACTIVE, TERMINAL, NOTHING = "runnable", "active", "terminal", "not_applicable"
UNTIL = "not_eligible_until_time"
PENDING, RUNNING, INTERRUPTED, OVER = (
    "pending_first_attempt", "running_attempt", "attempt_interrupted", "attempt_terminal",
)  # fmt: skip
RECLAIM = "pending_reclaim_attempt"

# By situation: phase, ownership, eligibility, blocking reason, outcome, attempt state, public state.
VECTORS = {
    "waiting": (RUNNABLE, "unowned", "eligible_now", "waiting_for_worker", "none", PENDING, "waiting"),
    "waiting: resumable": (RUNNABLE, "unowned", "eligible_now", "waiting_for_worker", "none", INTERRUPTED, "resumable"),
    "waiting: resumed": (RUNNABLE, "unowned", "eligible_now", "waiting_for_worker", "none", INTERRUPTED, "resumable"),
    "waiting: requeued": (RUNNABLE, "unowned", "eligible_now", "waiting_for_worker", "none", RECLAIM, "waiting"),
    "waiting: replayed": (
        RUNNABLE, "unowned", "eligible_now", "waiting_for_worker", "none", "pending_replay_attempt", "waiting",
    ),
    "delayed": (RUNNABLE, "unowned", UNTIL, "waiting_for_delay", "none", PENDING, "delayed"),
    "delayed: resting": (RUNNABLE, "unowned", UNTIL, "waiting_for_delay", "none", INTERRUPTED, "delayed"),
    "delayed: retrying": (
        RUNNABLE, "unowned", UNTIL, "waiting_for_retry_backoff", "none", "pending_retry_attempt", "delayed",
    ),
    "blocked: held": (RUNNABLE, "unowned", "blocked_by_operator", "paused_by_operator", "none", PENDING, "waiting"),
    "active": (ACTIVE, "leased", NOTHING, "none", "none", RUNNING, "active"),
    "active: lease run out": (ACTIVE, "leased", NOTHING, "none", "none", RUNNING, "active"),
    "active: kept, lease expired": (
        ACTIVE, "lease_expired_reclaimable", NOTHING, "waiting_for_worker", "none", RECLAIM, "active",
    ),
    "active: kept, lease revoked": (ACTIVE, "lease_revoked", NOTHING, "waiting_for_worker", "none", RECLAIM, "active"),
    "suspended": ("suspended", "unowned", NOTHING, "waiting_for_signal", "none", INTERRUPTED, "suspended"),
    "completed": (TERMINAL, "unowned", NOTHING, "none", "success", OVER, "completed"),
    "failed": (TERMINAL, "unowned", NOTHING, "none", "failed", OVER, "failed"),
    "cancelled": (TERMINAL, "unowned", NOTHING, "none", "cancelled", PENDING, "cancelled"),
    "expired": (TERMINAL, "unowned", NOTHING, "none", "expired", PENDING, "expired"),
}  # fmt: skip


async def test_describe_shows_the_full_vector_in_every_situation(engine: Engine, clock: VirtualClock) -> None:
    assert set(VECTORS) == set(SITUATIONS)
    for situation, expected in VECTORS.items():
        id_ = await SITUATIONS[situation](engine, clock)
        execution = await engine.executions.describe(id_)
        vector = tuple(str(getattr(execution.vector, name)) for name in StateVector.__slots__)
        assert vector == expected, situation
        assert (execution.ended_at is not None) == (execution.vector.lifecycle_phase == TERMINAL), situation
        assert (await engine.executions.result(id_) is None) == (execution.ended_at is None), situation


async def test_describe_shows_what_was_submitted(engine: Engine, clock: VirtualClock) -> None:
    deadline = clock.now() + timedelta(days=1)
    id_ = await submitted(
        engine,
        kind="mail",
        payload=b"\x00\xff",
        encoding="raw",
        lane="slow",
        priority=7,
        requires=["gpu"],
        policy=STEADY,
        tags={"team.owner": "ada"},
        delay="1h",
        deadline=deadline,
    )
    execution = await engine.executions.describe(str(id_))
    assert (execution.id, execution.namespace, execution.kind, execution.lane, execution.priority) == (
        id_,
        "default",
        "mail",
        "slow",
        7,
    )
    assert (execution.payload, execution.encoding, execution.requires) == (b"\x00\xff", "raw", ("gpu",))
    assert (execution.policy, execution.tags) == (STEADY, {"team.owner": "ada"})
    assert (execution.ready_at, execution.deadline_at) == (clock.now() + timedelta(hours=1), deadline)
    assert (execution.created_at, execution.changed_at, execution.started_at, execution.ended_at) == (
        clock.now(),
        clock.now(),
        None,
        None,
    )
    assert (execution.epoch, execution.version, execution.generation, execution.attempt_index) == (0, 0, 0, 0)
    assert (execution.lease, execution.attempts, execution.last_failure, execution.cancelled_by) == (
        None,
        (),
        None,
        None,
    )


async def test_describe_shows_the_lease_and_the_progress(engine: Engine, clock: VirtualClock) -> None:
    worker = WorkerId("mailer", "mailer-3")
    id_ = await submitted(engine)
    lease = await engine.leases.claim_execution(id_, worker)
    renewed_at = clock.advance("10s")
    await engine.leases.renew(lease.fence)
    await engine.leases.progress(lease.fence, 40, "nearly half")
    execution = await engine.executions.describe(id_)
    assert execution.lease is not None
    assert (execution.lease.worker, execution.lease.acquired_at) == (worker, lease.acquired_at)
    assert (execution.lease.renewed_at, execution.lease.expires_at) == (renewed_at, renewed_at + timedelta(seconds=30))
    assert (execution.progress_percent, execution.progress_message) == (40, "nearly half")
    assert lease.fence.lease_id.hex not in repr(execution).replace("-", "")


async def test_describe_shows_every_attempt_that_ended(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=STEADY, worker="worker-1")
    failed_at = clock.advance("5s")
    await engine.leases.fail(lease.fence, "no answer", category="network", detail=b"trace")
    clock.advance("10s")
    await engine.reconcilers.tick()
    second = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    await engine.leases.complete(second.fence, b"out")
    execution = await engine.executions.describe(lease.execution_id)
    first, last = execution.attempts
    assert (first.attempt_index, first.origin, first.outcome) == (0, "fresh", "ended_failure")
    assert (first.failure_message, first.failure_category, first.failure_detail) == ("no answer", "network", b"trace")
    assert (first.started_at, first.ended_at, first.worker) == (lease.acquired_at, failed_at, lease.worker)
    assert (last.attempt_index, last.origin, last.outcome, last.result) == (1, "retry", "ended_success", b"out")
    assert (execution.started_at, execution.retry_count) == (lease.acquired_at, 1)


async def test_result_shows_the_outcome(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    await engine.leases.complete(lease.fence, b"\x00out", encoding="raw")
    outcome = await engine.executions.result(lease.execution_id)
    assert outcome is not None
    assert (outcome.state, outcome.result, outcome.encoding) == (State.COMPLETED, b"\x00out", "raw")
    assert (outcome.failure, outcome.ended_at) == (None, clock.now())
    lease = await leased(engine, policy=ONE_SHOT)
    await engine.leases.fail(lease.fence, "broken", category="bug")
    late = await submitted(engine, policy=Policy(deadline="1s"))
    clock.advance("1s")
    await engine.reconcilers.tick()
    failed, expired = await engine.executions.result(lease.execution_id), await engine.executions.result(late)
    assert failed is not None
    assert (failed.state, failed.failure, failed.result) == (State.FAILED, Failure("broken", "bug"), None)
    assert expired is not None
    assert expired.failure is not None
    assert (expired.state, expired.failure.category) == (State.EXPIRED, "deadline")


async def test_work_completed_after_a_retry_has_no_failure(engine: Engine, clock: VirtualClock) -> None:
    id_ = await retrying(engine, clock)
    clock.advance("10s")
    await engine.reconcilers.tick()
    lease = await engine.leases.claim_execution(id_, "worker-2")
    await engine.leases.complete(lease.fence, b"out")
    outcome = await engine.executions.result(id_)
    assert outcome is not None
    assert (outcome.state, outcome.result, outcome.failure) == (State.COMPLETED, b"out", None)


async def test_wait_returns_when_the_execution_ends_or_the_timeout_passes(engine: Engine) -> None:
    lease = await leased(engine)
    assert await engine.executions.wait(lease.execution_id, timeout="20ms") is None
    waiting = asyncio.create_task(engine.executions.wait(lease.execution_id, timeout="10s"))
    await engine.leases.progress(lease.fence, 50)
    assert await engine.executions.result(lease.execution_id) is None
    assert not waiting.done()
    await engine.leases.complete(lease.fence, b"out")
    outcome = await waiting
    assert outcome is not None
    assert (outcome.state, outcome.result) == (State.COMPLETED, b"out")


async def test_wait_without_timeout_returns_an_existing_outcome(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.complete(lease.fence, b"out")
    assert await engine.executions.wait(lease.execution_id) is not None
    assert await engine.executions.wait(lease.execution_id, timeout=0) is not None


async def test_unknown_id_is_not_found(engine: Engine) -> None:
    reads = engine.executions
    for read in (reads.describe, reads.result, reads.wait, reads.history, reads.steps):
        error = await error_of(read(uuid4()))
        assert isinstance(error, NotFound)
        assert error.code == "execution_not_found"


async def test_history_is_read_in_pages(engine: Engine) -> None:
    lease = await leased(engine)
    for _ in range(3):
        await engine.leases.release(lease.fence)
        lease = await engine.leases.claim_execution(lease.execution_id, "worker-1")
    pages = [await engine.executions.history(lease.execution_id, after=after, limit=3) for after in (0, 3, 6, 7)]
    assert [[event.version for event in page] for page in pages] == [[1, 2, 3], [4, 5, 6], [7], []]
    assert [event.name for event in pages[0]] == ["acquired", "released", "acquired"]


async def test_steps_are_read_in_the_order_of_recording(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.checkpoint(lease.fence, [Step("b", b"1"), Step("a", b"2")])
    await engine.leases.complete(lease.fence, steps=[Step("c", b"3")])
    steps = await engine.executions.steps(lease.execution_id)
    assert [(step.name, step.payload, step.status) for step in steps] == [
        ("b", b"1", "ok"),
        ("a", b"2", "ok"),
        ("c", b"3", "ok"),
    ]
    first = await engine.executions.steps(lease.execution_id, limit=1)
    rest = await engine.executions.steps(lease.execution_id, after=first[0].seq)
    assert [step.name for step in first + rest] == ["b", "a", "c"]


async def test_counts_include_every_state(engine: Engine, clock: VirtualClock) -> None:
    for situation in ("active: kept, lease revoked", "completed", "delayed", "delayed: resting", "blocked: held"):
        await SITUATIONS[situation](engine, clock)
    await submitted(engine.for_namespace("other"))
    counts = await engine.executions.count()
    assert set(counts) == set(State)
    numbers = {state.value: count.value for state, count in counts.items() if count.value}
    assert numbers == {"active": 1, "completed": 1, "delayed": 2, "blocked": 1}
    assert all(count.is_exact for count in counts.values())


async def test_count_is_exact_up_to_ten_thousand_and_an_estimate_above(engine: Engine, store: TestStore) -> None:
    await submitted(engine)
    await copy_execution(store, 9_999)
    exact = (await engine.executions.count())[State.WAITING]
    assert (exact.value, exact.is_exact) == (10_000, True)
    await submitted(engine)
    counts = await engine.executions.count()
    assert not counts[State.WAITING].is_exact
    assert counts[State.WAITING].value > 10_000
    assert (counts[State.ACTIVE].value, counts[State.ACTIVE].is_exact) == (0, True)


async def test_tags_can_be_set_and_removed_in_every_state(engine: Engine, clock: VirtualClock) -> None:
    for situation, arrange in SITUATIONS.items():
        id_ = await arrange(engine, clock)
        before = await engine.executions.describe(id_)
        tags = await engine.executions.set_tags(id_, {"team.owner": "ada", "team.cost": "7"})
        assert tags == {"team.owner": "ada", "team.cost": "7"}, situation
        tags = await engine.executions.set_tags(id_, {"team.owner": "bob", "team.cost": None, "team.none": None})
        after = await engine.executions.describe(id_)
        assert tags == after.tags == {"team.owner": "bob"}, situation
        assert (after.state, after.epoch, after.version) == (before.state, before.epoch, before.version), situation
        clock.advance("1s")
        await engine.executions.set_tags(id_, {"team.owner": "cyd"})
        assert (await engine.executions.describe(id_)).changed_at == clock.now() > after.changed_at, situation
    lease = await leased(engine, tags={"team.owner": "ada"})
    await engine.executions.set_tags(lease.execution_id, {"team.cost": "7"})
    await engine.leases.complete(lease.fence, b"out")
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.state, execution.tags) == (State.COMPLETED, {"team.owner": "ada", "team.cost": "7"})


async def copy_execution(store: TestStore, number: int) -> None:
    """Insert copies of the only execution, which is faster than submitting them."""
    [row] = await store.query("SELECT * FROM ff.execution")
    new_id = {"sqlite": "lower(hex(randomblob(16)))", "postgres": "gen_random_uuid()"}[store.name]
    columns = list(row)
    values = [new_id if column == "id" else f"e.{column}" for column in columns]
    await store.query(
        "WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < ?)"
        f" INSERT INTO ff.execution ({', '.join(columns)})"
        f" SELECT {', '.join(values)} FROM number CROSS JOIN ff.execution AS e",
        number,
    )


async def test_execution_can_be_described_while_active_and_after_its_end(engine: Engine) -> None:
    lease = await leased(engine)
    active = await engine.executions.describe(lease.execution_id)
    assert active.lease is not None
    assert (active.lease.worker, active.lease.expires_at) == (lease.worker, lease.expires_at)
    assert active.started_at == lease.acquired_at
    await engine.operator.revoke_lease(lease.execution_id)
    next_lease = await engine.leases.claim_execution(lease.execution_id, "w")
    await engine.leases.complete(next_lease.fence, b"out")
    completed = await engine.executions.describe(lease.execution_id)
    assert (completed.lease, len(completed.attempts), completed.started_at) == (None, 2, active.started_at)


async def test_unknown_execution_is_not_found_by_any_read_or_command(engine: Engine) -> None:
    for name, call in READS_AND_COMMANDS.items():
        with pytest.raises(NotFound) as unknown:
            await call(engine)
        assert unknown.value.code == "execution_not_found", name
