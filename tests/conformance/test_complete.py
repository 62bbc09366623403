"""Tests of complete, which ends an execution once and stores the result on its attempt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from flowfabric.engine import (
    AttemptOutcome,
    AttemptState,
    Ended,
    Engine,
    Fence,
    FlowFabricError,
    Lease,
    Policy,
    Refused,
    State,
    Step,
    TerminalOutcome,
)
from flowfabric.testing import VirtualClock
from tests.expectations import event_names, nothing_written, refused, stored_row
from tests.scenarios import KEEPING, STEADY, leased
from tests.stores import TestStore

DONE = Ended(State.COMPLETED)


async def test_completed_execution_is_terminal_and_has_its_result(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=Policy(attempt_timeout="1h", deadline="2h"))
    assert await engine.executions.result(lease.execution_id) is None
    ended_at = clock.advance("5s")
    assert await engine.leases.complete(lease.fence, b"\x00out", encoding="raw") == DONE
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.state, execution.ended_at, execution.lease) == (State.COMPLETED, ended_at, None)
    assert execution.vector.terminal_outcome is TerminalOutcome.SUCCESS
    assert execution.vector.attempt_state is AttemptState.TERMINAL
    outcome = await engine.executions.result(lease.execution_id)
    assert outcome is not None
    assert (outcome.state, outcome.result, outcome.encoding) == (State.COMPLETED, b"\x00out", "raw")
    assert (outcome.ended_at, outcome.failure, outcome.cancelled_by) == (ended_at, None, None)
    [attempt] = execution.attempts
    assert (attempt.outcome, attempt.result, attempt.worker) == (AttemptOutcome.SUCCESS, b"\x00out", lease.worker)
    assert (attempt.started_at, attempt.ended_at) == (lease.acquired_at, ended_at)


async def test_completion_event_ends_the_lease_and_keeps_the_epoch(engine: Engine) -> None:
    lease = await leased(engine, tags={"a.b": "c"})
    await engine.leases.complete(lease.fence, b"out")
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.epoch, execution.version) == (lease.epoch, 2)
    event = (await engine.executions.history(lease.execution_id))[-1]
    assert (event.family, event.name, event.version) == ("completion", "completed", 2)
    assert (event.ends_lease, event.lease_id, event.epoch) == (True, lease.fence.lease_id, lease.epoch)
    assert (event.worker, event.state, event.tags) == (lease.worker, State.COMPLETED, {"a.b": "c"})


async def test_empty_result_is_a_result(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.complete(lease.fence)
    outcome = await engine.executions.result(lease.execution_id)
    assert outcome is not None
    assert outcome.result == b""


async def test_nothing_is_due_after_a_completion(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    lease = await leased(engine, policy=Policy(attempt_timeout="1m", deadline="2m"))
    await engine.leases.complete(lease.fence, b"out")
    clock.advance("1h")
    async with nothing_written(store):
        await engine.reconcilers.tick()


async def test_repeated_completion_returns_the_first_outcome_and_writes_nothing(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    lease = await leased(engine)
    steps = [Step("one", b"1")]
    with_steps = await leased(engine)
    await engine.leases.complete(lease.fence, b"out")
    await engine.leases.complete(with_steps.fence, b"out", steps=steps)
    async with nothing_written(store):
        assert await engine.leases.complete(lease.fence, b"out") == DONE
        clock.advance("1h")
        assert await engine.leases.complete(lease.fence, b"out") == DONE
        assert await engine.leases.complete(with_steps.fence, b"out", steps=steps) == DONE


async def test_completion_with_other_content_is_refused_with_the_stored_outcome(
    engine: Engine, store: TestStore
) -> None:
    lease = await leased(engine)
    await engine.leases.complete(lease.fence, b"out")
    async with nothing_written(store):
        for write in (
            engine.leases.complete(lease.fence, b"other"),
            engine.leases.complete(lease.fence, b"out", encoding="raw"),
            engine.leases.complete(lease.fence),
        ):
            error = await refused(write, "execution_not_active")
            assert (error.fields["state"], error.fields["epoch"]) == (State.COMPLETED, lease.epoch)
            assert error.fields["outcome"] == TerminalOutcome.SUCCESS


async def test_completion_can_be_repeated_until_a_later_owner_ends_its_lease(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    await engine.leases.complete(lease.fence, b"out")
    await engine.operator.replay(lease.execution_id)
    async with nothing_written(store):
        assert await engine.leases.complete(lease.fence, b"out") == DONE
    later = await engine.leases.claim_execution(lease.execution_id, "worker")
    async with nothing_written(store):
        assert await engine.leases.complete(lease.fence, b"out") == DONE
    await engine.leases.complete(later.fence, b"again")
    async with nothing_written(store):
        await refused(engine.leases.complete(lease.fence, b"out"), "stale_lease")


async def test_result_stays_on_its_attempt(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.complete(lease.fence, b"first")
    await engine.operator.replay(lease.execution_id)
    assert await engine.executions.result(lease.execution_id) is None
    later = await engine.leases.claim_execution(lease.execution_id, "worker")
    await engine.leases.complete(later.fence, b"second", encoding="raw")
    execution = await engine.executions.describe(lease.execution_id)
    results = [
        (attempt.attempt_index, attempt.generation, attempt.result, attempt.encoding) for attempt in execution.attempts
    ]
    assert results == [(0, 0, b"first", "json"), (1, 1, b"second", "raw")]
    outcome = await engine.executions.result(lease.execution_id)
    assert outcome is not None
    assert (outcome.result, outcome.encoding) == (b"second", "raw")


async def read_rows(store: TestStore, id_: UUID) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of one execution without ids and digests."""
    unique_columns = {
        "id",
        "execution_id",
        "lease_id",
        "former_lease_id",
        "former_digest",
        "transaction_id",
        "event_xid",
    }
    queries = {
        "execution": "SELECT * FROM ff.execution WHERE id = ?",
        "attempt": "SELECT * FROM ff.attempt WHERE execution_id = ? ORDER BY attempt_index",
        "step": "SELECT * FROM ff.step WHERE execution_id = ? ORDER BY seq",
        "event": "SELECT * FROM ff.event WHERE execution_id = ? ORDER BY version",
    }
    rows_by_table = {table: await store.query(query, id_) for table, query in queries.items()}
    return {
        table: [{name: value for name, value in row.items() if name not in unique_columns} for row in rows]
        for table, rows in rows_by_table.items()
    }


async def test_completion_with_steps_writes_the_same_rows_as_checkpoint_and_completion(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    policy = Policy(attempt_timeout="1h", retention="2d")
    separate, combined = [await leased(engine, policy=policy, tags={"a.b": "c"}) for _ in range(2)]
    for lease in (separate, combined):
        await engine.leases.progress(lease.fence, 50, "half")
    clock.advance("1s")
    await engine.leases.checkpoint(separate.fence, [Step("one", b"1")])
    await engine.leases.complete(separate.fence, b"out", encoding="raw")
    await engine.leases.complete(combined.fence, b"out", encoding="raw", steps=[Step("one", b"1")])
    assert await read_rows(store, separate.execution_id) == await read_rows(store, combined.execution_id)


async def reclaim_with_grant(engine: Engine, clock: VirtualClock) -> Lease:
    """Return a lease obtained by a grant. The grant makes the execution linked instead of standalone."""
    lost_lease = await leased(engine, policy=KEEPING)
    clock.advance("31s")
    await engine.reconcilers.tick()
    grant = await engine.operator.grant_reclaim(lost_lease.execution_id, "worker-2")
    lease = await engine.leases.reclaim(grant, "worker-2")
    assert isinstance(lease, Lease)
    return lease


async def test_linked_execution_completes_with_the_same_rows(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    granted = await reclaim_with_grant(engine, clock)
    standalone = await leased(engine, policy=KEEPING, worker="worker-2")
    assert (standalone.is_standalone, granted.is_standalone) == (True, False)
    clock.advance("1s")
    writes = []
    for lease in (standalone, granted):
        before = await stored_row(store, lease.execution_id)
        assert await engine.leases.complete(lease.fence, b"out") == DONE
        assert await engine.leases.complete(lease.fence, b"out") == DONE
        after = await stored_row(store, lease.execution_id)
        assert after["epoch"] == after["former_epoch"] == lease.epoch
        changes = {name: value for name, value in after.items() if value != before[name]}
        rows = await read_rows(store, lease.execution_id)
        writes.append((changes, rows["attempt"][-1], rows["event"][-1]))
    expected = {"version", "epoch", "former_epoch", "former_lease_id", "attempt_index", "origin", "started_at"}
    expected |= {"event_xid"}
    for standalone_row, granted_row in zip(*writes, strict=True):
        different = {name for name in standalone_row | granted_row if standalone_row.get(name) != granted_row.get(name)}
        assert different <= expected
    assert (await event_names(engine, granted.execution_id))[-2:] == ["lease.reclaimed", "completion.completed"]


async def test_batch_of_completions_returns_one_outcome_each_in_order(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    lost_lease = await leased(engine, lease_ttl=1)
    granted = await reclaim_with_grant(engine, clock)
    first, second, revoked = [await leased(engine) for _ in range(3)]
    await engine.operator.revoke_lease(revoked.execution_id)
    unknown = Fence(uuid4(), 1, UUID(int=1))
    results = [
        (revoked.fence, b"0"), (first.fence, b"1"), (unknown, b"2"), (granted.fence, b"3"), (lost_lease.fence, b"4"),
        (second.fence, b"5"), (first.fence, b"1"), (first.fence, b"other"),
    ]  # fmt: skip
    outcomes = await engine.leases.complete_many(results, encoding="raw")
    expected: list[object] = [
        "lease_revoked", DONE, "execution_not_found", DONE, "lease_expired", DONE, DONE, "execution_not_active",
    ]  # fmt: skip
    assert [response.code if isinstance(response, FlowFabricError) else response for response in outcomes] == expected
    for lease, result in ((first, b"1"), (granted, b"3"), (second, b"5")):
        outcome = await engine.executions.result(lease.execution_id)
        assert outcome is not None
        assert (outcome.result, outcome.encoding) == (result, "raw")
    async with nothing_written(store):
        assert await engine.leases.complete_many([]) == []
        assert await engine.leases.complete_many(results[1:2], encoding="raw") == [DONE]


async def test_second_complete_does_not_overwrite_the_result(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.complete(lease.fence, b"first")
    with pytest.raises(FlowFabricError):
        await engine.leases.complete(lease.fence, b"second")
    assert await engine.leases.complete(lease.fence, b"first") == Ended(State.COMPLETED)
    outcome = await engine.executions.result(lease.execution_id)
    assert outcome is not None
    assert outcome.result == b"first"
    assert [event.name for event in await engine.executions.history(lease.execution_id)] == ["acquired", "completed"]


async def test_complete_is_refused_after_the_lease_was_given_up(engine: Engine) -> None:
    lease_ends: list[Callable[[Fence], Awaitable[Any]]] = [
        lambda fence: engine.leases.fail(fence, "once"),
        lambda fence: engine.leases.delay(fence, after="1h"),
        engine.leases.release,
        lambda fence: engine.leases.cancel(fence, "enough"),
    ]
    for end_lease in lease_ends:
        lease = await leased(engine, policy=STEADY)
        await end_lease(lease.fence)
        with pytest.raises(Refused, match="execution_not_active"):
            await engine.leases.complete(lease.fence)
