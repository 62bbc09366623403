"""complete: an execution ends well, once; a lost reply is answered again, and the result stays on its attempt."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from flowfabric.engine import (
    AttemptOutcome,
    AttemptState,
    Ended,
    Engine,
    Fence,
    FlowFabricError,
    Lease,
    Policy,
    State,
    Step,
    TerminalOutcome,
)  # fmt: skip
from flowfabric.testing import VirtualClock
from tests.facts import event_names, nothing_written, refused, stored_row
from tests.scenarios import KEEPING, leased
from tests.stores import TestStore

DONE = Ended(State.COMPLETED)


async def test_a_completed_execution_shows_its_result_and_is_terminal(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=Policy(attempt_timeout="1h", deadline="2h"))
    assert await engine.executions.result(lease.execution_id) is None
    ended = clock.advance("5s")
    assert await engine.leases.complete(lease.fence, b"\x00out", encoding="raw") == DONE
    found = await engine.executions.describe(lease.execution_id)
    assert (found.state, found.ended_at, found.lease) == (State.COMPLETED, ended, None)
    assert found.vector.terminal_outcome is TerminalOutcome.SUCCESS
    assert found.vector.attempt_state is AttemptState.TERMINAL
    outcome = await engine.executions.result(lease.execution_id)
    assert outcome is not None
    assert (outcome.state, outcome.result, outcome.encoding) == (State.COMPLETED, b"\x00out", "raw")
    assert (outcome.ended_at, outcome.failure, outcome.cancelled_by) == (ended, None, None)
    [attempt] = found.attempts
    assert (attempt.outcome, attempt.result, attempt.worker) == (AttemptOutcome.SUCCESS, b"\x00out", lease.worker)
    assert (attempt.started_at, attempt.ended_at) == (lease.acquired_at, ended)


async def test_the_one_event_of_a_completion_also_ends_the_lease_and_the_epoch_stays(engine: Engine) -> None:
    lease = await leased(engine, tags={"a.b": "c"})
    await engine.leases.complete(lease.fence, b"out")
    found = await engine.executions.describe(lease.execution_id)
    assert (found.epoch, found.version) == (lease.epoch, 2)
    event = (await engine.executions.history(lease.execution_id))[-1]
    assert (event.family, event.name, event.version) == ("completion", "completed", 2)
    assert (event.ends_lease, event.lease_id, event.epoch) == (True, lease.fence.lease_id, lease.epoch)
    assert (event.worker, event.state, event.tags) == (lease.worker, State.COMPLETED, {"a.b": "c"})


async def test_an_empty_result_is_a_result(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.complete(lease.fence)
    outcome = await engine.executions.result(lease.execution_id)
    assert outcome is not None
    assert outcome.result == b""


async def test_nothing_is_due_any_more_after_a_completion(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    lease = await leased(engine, policy=Policy(attempt_timeout="1m", deadline="2m"))
    await engine.leases.complete(lease.fence, b"out")
    clock.advance("1h")
    async with nothing_written(store):
        await engine.reconcilers.tick()


async def test_a_repeated_completion_is_answered_as_the_first_and_writes_nothing(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    lease = await leased(engine)
    steps = [Step("one", b"1")]
    riding = await leased(engine)
    await engine.leases.complete(lease.fence, b"out")
    await engine.leases.complete(riding.fence, b"out", steps=steps)
    async with nothing_written(store):
        assert await engine.leases.complete(lease.fence, b"out") == DONE
        clock.advance("1h")
        assert await engine.leases.complete(lease.fence, b"out") == DONE
        assert await engine.leases.complete(riding.fence, b"out", steps=steps) == DONE


async def test_a_completion_with_other_content_is_refused_with_the_stored_outcome(
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


async def test_a_completion_is_answered_again_until_a_later_owner_gives_up_the_lease(
    engine: Engine, store: TestStore
) -> None:
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


async def test_a_result_stays_on_the_attempt_it_belongs_to(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.complete(lease.fence, b"first")
    await engine.operator.replay(lease.execution_id)
    assert await engine.executions.result(lease.execution_id) is None
    later = await engine.leases.claim_execution(lease.execution_id, "worker")
    await engine.leases.complete(later.fence, b"second", encoding="raw")
    found = await engine.executions.describe(lease.execution_id)
    results = [(item.attempt_index, item.generation, item.result, item.encoding) for item in found.attempts]
    assert results == [(0, 0, b"first", "json"), (1, 1, b"second", "raw")]
    outcome = await engine.executions.result(lease.execution_id)
    assert outcome is not None
    assert (outcome.result, outcome.encoding) == (b"second", "raw")


async def rows_of(store: TestStore, id_: UUID) -> dict[str, list[dict[str, Any]]]:
    """Everything that is stored about one execution, without the ids of it and of the requests that were made."""
    own = {"id", "execution_id", "lease_id", "former_lease_id", "former_digest", "transaction_id", "event_xid"}
    queries = {
        "execution": "SELECT * FROM ff.execution WHERE id = ?",
        "attempt": "SELECT * FROM ff.attempt WHERE execution_id = ? ORDER BY attempt_index",
        "step": "SELECT * FROM ff.step WHERE execution_id = ? ORDER BY seq",
        "event": "SELECT * FROM ff.event WHERE execution_id = ? ORDER BY version",
    }
    found = {table: await store.query(query, id_) for table, query in queries.items()}
    return {
        table: [{name: value for name, value in row.items() if name not in own} for row in rows]
        for table, rows in found.items()
    }


async def test_steps_in_a_completion_leave_the_rows_of_a_checkpoint_and_a_completion(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    policy = Policy(attempt_timeout="1h", retention="2d")
    apart, together = [await leased(engine, policy=policy, tags={"a.b": "c"}) for _ in range(2)]
    for lease in (apart, together):
        await engine.leases.progress(lease.fence, 50, "half")
    clock.advance("1s")
    await engine.leases.checkpoint(apart.fence, [Step("one", b"1")])
    await engine.leases.complete(apart.fence, b"out", encoding="raw")
    await engine.leases.complete(together.fence, b"out", encoding="raw", steps=[Step("one", b"1")])
    assert await rows_of(store, apart.execution_id) == await rows_of(store, together.execution_id)


async def handed_over(engine: Engine, clock: VirtualClock) -> Lease:
    """A lease by a grant, after which the row is not plain any more."""
    lost = await leased(engine, policy=KEEPING)
    clock.advance("31s")
    await engine.reconcilers.tick()
    grant = await engine.operator.grant_reclaim(lost.execution_id, "worker-2")
    lease = await engine.leases.reclaim(grant, "worker-2")
    assert isinstance(lease, Lease)
    return lease


async def test_an_execution_that_is_not_plain_completes_with_the_same_rows(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    granted = await handed_over(engine, clock)
    plain = await leased(engine, policy=KEEPING, worker="worker-2")
    assert (plain.plain, granted.plain) == (True, False)
    clock.advance("1s")
    written = []
    for lease in (plain, granted):
        before = await stored_row(store, lease.execution_id)
        assert await engine.leases.complete(lease.fence, b"out") == DONE
        assert await engine.leases.complete(lease.fence, b"out") == DONE
        after = await stored_row(store, lease.execution_id)
        assert after["epoch"] == after["former_epoch"] == lease.epoch
        changes = {name: value for name, value in after.items() if value != before[name]}
        rows = await rows_of(store, lease.execution_id)
        written.append((changes, rows["attempt"][-1], rows["event"][-1]))
    expected = {"version", "epoch", "former_epoch", "former_lease_id", "attempt_index", "origin", "started_at"}
    expected |= {"event_xid"}
    for of_plain, of_granted in zip(*written, strict=True):
        different = {name for name in of_plain | of_granted if of_plain.get(name) != of_granted.get(name)}
        assert different <= expected
    assert (await event_names(engine, granted.execution_id))[-2:] == ["lease.reclaimed", "completion.completed"]


async def test_many_completions_are_answered_each_for_itself_and_in_order(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    lost = await leased(engine, lease_ttl=1)
    granted = await handed_over(engine, clock)
    first, second, revoked = [await leased(engine) for _ in range(3)]
    await engine.operator.revoke_lease(revoked.execution_id)
    unknown = Fence(uuid4(), 1, UUID(int=1))
    results = [
        (revoked.fence, b"0"), (first.fence, b"1"), (unknown, b"2"), (granted.fence, b"3"), (lost.fence, b"4"),
        (second.fence, b"5"), (first.fence, b"1"), (first.fence, b"other"),
    ]  # fmt: skip
    answers = await engine.leases.complete_many(results, encoding="raw")
    expected: list[object] = [
        "lease_revoked", DONE, "execution_not_found", DONE, "lease_expired", DONE, DONE, "execution_not_active",
    ]  # fmt: skip
    assert [answer.code if isinstance(answer, FlowFabricError) else answer for answer in answers] == expected
    for lease, result in ((first, b"1"), (granted, b"3"), (second, b"5")):
        outcome = await engine.executions.result(lease.execution_id)
        assert outcome is not None
        assert (outcome.result, outcome.encoding) == (result, "raw")
    async with nothing_written(store):
        assert await engine.leases.complete_many([]) == []
        assert await engine.leases.complete_many(results[1:2], encoding="raw") == [DONE]
