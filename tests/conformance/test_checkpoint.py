"""Tests of checkpoint, which records steps. Open steps may change; final steps may only be repeated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from flowfabric.engine import Conflict, Engine, Fence, InvalidRequest, NotFound, RecordedStep, State, Step, StepStatus
from flowfabric.testing import VirtualClock
from tests.expectations import event_names, nothing_written, refused
from tests.scenarios import leased, submitted
from tests.stores import TestStore

FINAL = [status for status in StepStatus if status is not StepStatus.OPEN]


async def read_journal(engine: Engine, id_: UUID) -> list[tuple[str, str, bytes]]:
    """Return name, status and payload of every recorded step, in order."""
    return [(step.name, step.status, step.payload) for step in await engine.executions.steps(id_)]


async def test_steps_are_read_as_recorded(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    first, second = Step("fetch", b"\x00page", "raw"), Step("mail", b"no address", status=StepStatus.FAILED)
    assert await engine.leases.checkpoint(lease.fence, [first, second]) == 2
    later = clock.advance("1s")
    assert await engine.leases.checkpoint(lease.fence, [Step("sleep", status=StepStatus.OPEN)]) == 1
    steps = await engine.executions.steps(lease.execution_id)
    attempt = {"attempt_index": 0, "generation": 0}
    earlier = later - timedelta(seconds=1)
    assert steps == [
        RecordedStep(
            seq=1, name="fetch", status="ok", payload=b"\x00page", encoding="raw", recorded_at=earlier, **attempt
        ),
        RecordedStep(
            seq=2, name="mail", status="failed", payload=b"no address", encoding="json", recorded_at=earlier, **attempt
        ),
        RecordedStep(seq=3, name="sleep", status="open", payload=b"", encoding="json", recorded_at=later, **attempt),
    ]


async def test_steps_are_read_in_pages(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.checkpoint(lease.fence, [Step(f"step {number}") for number in range(5)])
    names, after = [], 0
    while page := await engine.executions.steps(lease.execution_id, after=after, limit=2):
        names.append([step.name for step in page])
        after = page[-1].seq
    assert names == [["step 0", "step 1"], ["step 2", "step 3"], ["step 4"]]


async def test_checkpoint_creates_no_event_and_no_version(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.checkpoint(lease.fence, [Step("one")])
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.version, execution.epoch, execution.state) == (1, 1, State.ACTIVE)
    assert await event_names(engine, lease.execution_id) == ["lease.acquired"]


async def test_open_step_may_change_and_keeps_its_position(engine: Engine) -> None:
    lease = await leased(engine)
    record = engine.leases.checkpoint
    await record(lease.fence, [Step("call", b"1", status=StepStatus.OPEN), Step("next", b"done")])
    await record(lease.fence, [Step("call", b"2", status=StepStatus.OPEN)])
    assert await read_journal(engine, lease.execution_id) == [("call", "open", b"2"), ("next", "ok", b"done")]
    await record(lease.fence, [Step("call", b"3", status=StepStatus.OK)])
    assert await read_journal(engine, lease.execution_id) == [("call", "ok", b"3"), ("next", "ok", b"done")]


async def test_final_step_may_be_repeated_but_not_changed(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    final = [Step(f"call {status}", b"1", "raw", status) for status in FINAL]
    for _ in range(2):
        assert await engine.leases.checkpoint(lease.fence, final) == len(final)
    assert await read_journal(engine, lease.execution_id) == [(step.name, step.status, b"1") for step in final]
    async with nothing_written(store):
        for step in final:
            contradictions = [replace(step, payload=b"2"), replace(step, encoding="json")]
            contradictions += [replace(step, status=status) for status in StepStatus if status is not step.status]
            for contradiction in contradictions:
                write = engine.leases.checkpoint(lease.fence, [contradiction])
                assert (await refused(write, "step_already_recorded", Conflict)).fields["step"] == step.name


async def test_conflicting_step_rejects_the_whole_checkpoint(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    await engine.leases.checkpoint(lease.fence, [Step("one", b"1"), Step("two", status=StepStatus.OPEN)])
    steps = [Step("zero", b"0"), Step("two", b"2"), Step("one", b"other"), Step("three", b"3")]
    async with nothing_written(store):
        await refused(engine.leases.checkpoint(lease.fence, steps), "step_already_recorded", Conflict)


async def test_later_attempt_continues_the_journal(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.checkpoint(lease.fence, [Step("one", b"1")])
    await engine.operator.revoke_lease(lease.execution_id)
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker")
    await engine.leases.checkpoint(next_lease.fence, [Step("two", b"2")])
    await refused(
        engine.leases.checkpoint(next_lease.fence, [Step("one", b"other")]), "step_already_recorded", Conflict
    )
    steps = await engine.executions.steps(lease.execution_id)
    assert [(step.seq, step.name, step.attempt_index) for step in steps] == [(1, "one", 0), (2, "two", 1)]


async def test_step_names_are_unique_within_an_execution_only(engine: Engine) -> None:
    first, second = await leased(engine), await leased(engine)
    await engine.leases.checkpoint(first.fence, [Step("one", b"1")])
    await engine.leases.checkpoint(second.fence, [Step("one", b"other")])
    assert await read_journal(engine, second.execution_id) == [("one", "ok", b"other")]


async def test_execution_has_at_most_ten_thousand_steps(engine: Engine) -> None:
    lease = await leased(engine)
    for number in range(10):
        steps = [Step(f"{number}.{index}") for index in range(1000 - (number == 9))]
        await engine.leases.checkpoint(lease.fence, steps)
    over = [Step("the last one"), Step("one too many")]
    for write in (engine.leases.checkpoint(lease.fence, over), engine.leases.complete(lease.fence, steps=over)):
        error = await refused(write, "too_many_steps", InvalidRequest)
        assert error.fields["limit"] == 10_000
        assert "10000" in str(error)
    assert (await engine.executions.describe(lease.execution_id)).state is State.ACTIVE
    assert len(await engine.executions.steps(lease.execution_id, after=9_990)) == 9
    assert await engine.leases.checkpoint(lease.fence, over[:1]) == 1
    # Repeating recorded steps does not count against the limit.
    assert await engine.leases.checkpoint(lease.fence, [Step("0.0"), Step("5.5"), *over[:1]]) == 3
    await refused(engine.leases.checkpoint(lease.fence, over[1:]), "too_many_steps", InvalidRequest)


EndLease = Callable[[Engine, Fence, list[Step]], Awaitable[object]]
LEASE_ENDS: dict[str, EndLease] = {
    "complete": lambda engine, fence, steps: engine.leases.complete(fence, b"out", steps=steps),
    "fail": lambda engine, fence, steps: engine.leases.fail(fence, "broken", steps=steps),
    "delay": lambda engine, fence, steps: engine.leases.delay(fence, after="1h", steps=steps),
    "cancel": lambda engine, fence, steps: engine.leases.cancel(fence, "enough", steps=steps),
}


@pytest.mark.parametrize("operation", LEASE_ENDS)
async def test_steps_are_recorded_atomically_with_the_operation_that_ends_the_lease(
    engine: Engine, store: TestStore, operation: str
) -> None:
    end_lease = LEASE_ENDS[operation]
    lease = await leased(engine)
    await engine.leases.checkpoint(lease.fence, [Step("one", b"1")])
    async with nothing_written(store):
        steps = [Step("zero", b"0"), Step("one", b"other")]
        await refused(end_lease(engine, lease.fence, steps), "step_already_recorded", Conflict)
    await end_lease(engine, lease.fence, [Step("one", b"1"), Step("two", b"2")])
    assert (await engine.executions.describe(lease.execution_id)).state is not State.ACTIVE
    assert await read_journal(engine, lease.execution_id) == [("one", "ok", b"1"), ("two", "ok", b"2")]


async def test_refused_operation_records_no_step(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    await engine.leases.checkpoint(lease.fence, [Step("one", b"1")])
    await engine.operator.revoke_lease(lease.execution_id)
    async with nothing_written(store):
        for end_lease in LEASE_ENDS.values():
            # The fence is checked before the steps, so the error does not reveal the journal.
            for step in (Step("two", b"2"), Step("one", b"other")):
                await refused(end_lease(engine, lease.fence, [step]), "lease_revoked")


async def test_repeated_operation_with_other_steps_is_refused(engine: Engine, store: TestStore) -> None:
    for end_lease in LEASE_ENDS.values():
        lease = await leased(engine)
        first = await end_lease(engine, lease.fence, [Step("one", b"1")])
        async with nothing_written(store):
            assert await end_lease(engine, lease.fence, [Step("one", b"1")]) == first
            for steps in ([], [Step("two", b"2")], [Step("one", b"other")]):
                await refused(end_lease(engine, lease.fence, steps), "execution_not_active")


async def test_steps_of_another_namespace_are_not_found(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    id_ = await submitted(engine)
    other_namespace = engine.for_namespace("other")
    async with nothing_written(store):
        for request in (
            other_namespace.leases.checkpoint(lease.fence, [Step("one")]),
            other_namespace.executions.steps(id_),
        ):
            await refused(request, "execution_not_found", NotFound)


async def test_later_attempt_cannot_overwrite_a_final_step(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    await engine.leases.checkpoint(lease.fence, [Step("paid", b"1")])
    await engine.operator.revoke_lease(lease.execution_id)
    successor = await engine.leases.claim_execution(lease.execution_id, "w")
    with pytest.raises(Conflict, match="step_already_recorded"):
        await engine.leases.checkpoint(successor.fence, [Step("paid", b"2")])
    assert [step.payload for step in await engine.executions.steps(lease.execution_id)] == [b"1"]
