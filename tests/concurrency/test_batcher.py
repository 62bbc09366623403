"""Test each rule of group commit on the real operations of both backends."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from flowfabric.core.executions.requests import Completion
from flowfabric.engine import Created, Duplicate, Engine, Lease, Refused, Renewed, State, Step, Submission
from flowfabric.engine.batcher import MAX_BATCH, SECOND_BATCH_MIN, Batcher, run_batch
from flowfabric.ops.leases.complete import Complete
from flowfabric.store.transaction import Transaction
from flowfabric.testing import VirtualClock
from tests.scenarios import leased, submitted
from tests.stores import PostgresTestStore, SqliteTestStore, opened


class RecordingComplete(Complete):
    """The operation `complete`, which records its batches and the items that ran individually."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[bytes]] = []
        self.alone: list[bytes] = []

    async def run_batch(self, tx: Transaction, namespace: str, requests: Sequence[Completion]) -> list[Any]:
        self.batches.append([request.result for request in requests])
        return await super().run_batch(tx, namespace, requests)

    async def run_one(self, tx: Transaction, namespace: str, request: Completion) -> Any:
        self.alone.append(request.result)
        return await super().run_one(tx, namespace, request)


async def leases_of(engine: Engine, number: int) -> list[Lease]:
    await engine.executions.submit_many([Submission(kind="job") for _ in range(number)])
    return await engine.leases.claim(["default"], "w", limit=number)


def completion(lease: Lease, result: bytes, **more: Any) -> Completion:
    return Completion(fence=lease.fence, result=result, encoding="json", **more)


def batcher_of(engine: Engine, watched: RecordingComplete) -> Batcher[Completion, Any]:
    return Batcher(engine._context.store, engine.namespace, watched)


async def test_first_item_starts_immediately_and_later_ones_share_a_batch(engine: Engine) -> None:
    watched = RecordingComplete()
    batcher = batcher_of(engine, watched)
    first, *others = await leases_of(engine, 9)
    outcomes = [batcher.enqueue(completion(first, b"0"))]
    await asyncio.sleep(0)
    outcomes += [batcher.enqueue(completion(lease, b"%d" % place)) for place, lease in enumerate(others)]
    await asyncio.gather(*outcomes)
    assert [len(batch) for batch in watched.batches] == [1, 8]
    assert watched.alone == []


async def test_items_of_one_loop_iteration_share_a_batch(engine: Engine) -> None:
    watched = RecordingComplete()
    batcher = batcher_of(engine, watched)
    leases = await leases_of(engine, 9)
    await asyncio.gather(*(batcher.submit(completion(lease, b"%d" % place)) for place, lease in enumerate(leases)))
    assert [len(batch) for batch in watched.batches] == [9]


async def test_batch_size_is_bounded_and_a_second_batch_runs_beside_it(engine: Engine) -> None:
    watched = RecordingComplete()
    batcher = batcher_of(engine, watched)
    leases = await leases_of(engine, SECOND_BATCH_MIN + 2 * MAX_BATCH + 50)
    # Pretend that a batch is committing. A second batch then needs SECOND_BATCH_MIN items.
    batcher._in_flight = 1
    *first, last = leases[:SECOND_BATCH_MIN]
    outcomes = [batcher.enqueue(completion(lease, b"x")) for lease in first]
    await asyncio.sleep(0.05)
    assert watched.batches == []
    outcomes.append(batcher.enqueue(completion(last, b"x")))
    await asyncio.wait_for(asyncio.gather(*outcomes), 10)
    batcher._in_flight = 0
    await asyncio.gather(*(batcher.submit(completion(lease, b"x")) for lease in leases[SECOND_BATCH_MIN:]))
    assert [len(batch) for batch in watched.batches] == [SECOND_BATCH_MIN, MAX_BATCH, MAX_BATCH, 50]


async def test_many_items_of_one_execution_are_not_scanned_for_each_new_item(engine: Engine) -> None:
    watched = RecordingComplete()
    batcher = batcher_of(engine, watched)
    [lease] = await leases_of(engine, 1)
    looks = 0
    next_batch = batcher._next_batch

    def counted() -> Any:
        nonlocal looks
        looks += 1
        return next_batch()

    batcher._next_batch = counted  # type: ignore[method-assign]
    # Pretend that a batch is committing.
    batcher._in_flight = 1
    key = watched.key(completion(lease, b"x"))
    batcher._busy_keys.add(key)
    outcomes = []
    for _ in range(200):
        outcomes.append(batcher.enqueue(completion(lease, b"x")))
        await asyncio.sleep(0)
    assert looks == 1
    batcher._in_flight = 0
    batcher._free_key(key)
    batcher._start()
    assert len(await asyncio.gather(*outcomes)) == 200


async def test_two_items_of_one_execution_run_in_order_and_both_return(engine: Engine) -> None:
    watched = RecordingComplete()
    batcher = batcher_of(engine, watched)
    [first, other] = await leases_of(engine, 2)
    items = [completion(first, b"a"), completion(first, b"a"), completion(first, b"b"), completion(other, b"c")]
    outcomes: list[Any] = await asyncio.gather(*(batcher.submit(item) for item in items), return_exceptions=True)
    same, again, contradiction, neighbour = outcomes
    assert same == again == neighbour
    assert isinstance(contradiction, Refused)
    assert contradiction.fields["outcome"] == "success"
    assert watched.batches == [[b"a", b"c"], [b"a"], [b"b"]]


async def test_stale_item_is_refused_alone_and_the_others_succeed(engine: Engine) -> None:
    watched = RecordingComplete()
    batcher = batcher_of(engine, watched)
    leases = await leases_of(engine, 5)
    await engine.operator.revoke_lease(leases[2].execution_id)
    work = (batcher.submit(completion(lease, b"%d" % place)) for place, lease in enumerate(leases))
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    assert [getattr(outcome, "code", "done") for outcome in outcomes] == [
        "done",
        "done",
        "lease_revoked",
        "done",
        "done",
    ]
    assert watched.alone == [b"2"]


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_locked_row_delays_only_its_own_caller(store: PostgresTestStore, engine: Engine) -> None:
    leases = await leases_of(engine, 4)
    async with locked_row(store, leases[1]):
        busy = asyncio.create_task(engine.leases.complete(leases[1].fence, b"busy"))
        others = [engine.leases.complete(lease.fence, b"x") for lease in (leases[0], leases[2], leases[3])]
        assert len(await asyncio.wait_for(asyncio.gather(*others), timeout=10)) == 3
        assert not busy.done()
    assert (await busy).state == "completed"


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_items_batched_with_a_locked_row_finish_before_it_is_released(
    store: PostgresTestStore, engine: Engine
) -> None:
    leases = await leases_of(engine, 3)
    async with locked_row(store, leases[1]):
        together = asyncio.create_task(engine.leases.complete_many([(lease.fence, b"x") for lease in leases]))
        for free in (leases[0], leases[2]):
            outcome = await engine.executions.wait(free.execution_id, timeout=10)
            assert outcome is not None
        assert not together.done()
    assert [getattr(answer, "state", answer) for answer in await together] == ["completed"] * 3


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_all_items_wait_for_another_writer_and_then_succeed(store: SqliteTestStore, clock: VirtualClock) -> None:
    async with opened(store, clock) as engine, opened(store, clock) as second:
        leases = await leases_of(engine, 4)
        with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            both = (engine, second)
            work = [both[place % 2].leases.complete(lease.fence, b"x") for place, lease in enumerate(leases)]
            waiting = asyncio.gather(*work)
            await asyncio.wait([waiting], timeout=0.1)
            assert not waiting.done()
            other.execute("ROLLBACK")
        assert {outcome.state for outcome in await asyncio.wait_for(waiting, timeout=10)} == {State.COMPLETED}


async def test_bad_item_neither_fails_nor_reorders_the_others(engine: Engine) -> None:
    await engine.executions.submit("job", b"first", key="taken")
    bad = Submission(kind="job", payload=b"other", key="taken")
    late = Submission(kind="job", deadline=datetime(2000, 1, 1, tzinfo=UTC))
    again = Submission(kind="job", payload=b"0", id=UUID(int=1))
    good = [Submission(kind="job", payload=b"%d" % place) for place in range(1, 4)]
    outcomes = await engine.executions.submit_many([again, bad, again, good[0], late, good[1], good[2]])
    codes = [getattr(outcome, "code", type(outcome)) for outcome in outcomes]
    assert codes == [Created, "idempotency_mismatch", Duplicate, Created, "deadline_in_past", Created, Created]
    leases = await engine.leases.claim(["default"], "w", limit=10)
    assert [lease.payload for lease in leases] == [b"0", b"first", b"1", b"2", b"3"]


@asynccontextmanager
async def locked_row(store: PostgresTestStore, lease: Lease) -> AsyncIterator[None]:
    """Lock the row of an execution on another connection until the block ends."""
    holder = await asyncpg.connect(store.url)
    async with holder.transaction():
        row = f'SELECT 1 FROM "{store.schema}".execution WHERE id = $1 FOR UPDATE'
        await holder.execute(row, lease.execution_id)
        yield
    await holder.close()


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_lease_being_renewed_is_not_reported_as_lost(store: PostgresTestStore, clock: VirtualClock) -> None:
    async with opened(store, clock) as engine:
        lease, lost = await leased(engine, lease_ttl="30s"), await leased(engine, lease_ttl="30s")
        clock.advance("29s")
        holder = await asyncpg.connect(store.url)
        async with holder.transaction():
            extend = "SET lease_expires_at = lease_expires_at + INTERVAL '29 seconds'"
            await holder.execute(f'UPDATE "{store.schema}".execution {extend} WHERE id = $1', lease.execution_id)
            clock.advance("2s")
            busy, error = await asyncio.wait_for(engine.leases.renew_many([lease.fence, lost.fence]), 10)
            assert [getattr(busy, "code", None), getattr(error, "code", None)] == ["lease_busy", "lease_expired"]
        await holder.close()
        assert isinstance(await engine.leases.renew(lease.fence), Renewed)


async def test_exclusive_items_run_in_their_own_batch(engine: Engine) -> None:
    watched = RecordingComplete()
    batcher = batcher_of(engine, watched)
    [plain, with_steps] = await leases_of(engine, 2)
    await asyncio.gather(
        batcher.submit(completion(plain, b"plain")),
        batcher.submit(completion(with_steps, b"steps", steps=(Step("one", b"1"),))),
    )
    assert watched.batches == [[b"plain"]]
    assert watched.alone == [b"steps"]
    assert len(await engine.executions.steps(with_steps.execution_id)) == 1


async def test_concurrent_submits_with_one_key_create_one_execution(engine: Engine) -> None:
    outcomes = await asyncio.gather(*(engine.executions.submit("job", b"x", key="only") for _ in range(20)))
    assert sum(isinstance(outcome, Created) for outcome in outcomes) == 1
    assert len({outcome.id for outcome in outcomes}) == 1


async def test_item_refused_by_the_database_is_found_by_halving(engine: Engine) -> None:
    leases = await leases_of(engine, 8)
    spoiled = leases[5].execution_id
    sizes: list[int] = []

    class Spoiled(Complete):
        single_statement = False

        async def run_batch(self, tx: Transaction, namespace: str, requests: Sequence[Completion]) -> list[Any]:
            sizes.append(len(requests))
            outcomes = await super().run_batch(tx, namespace, requests)
            if any(request.fence.execution_id == spoiled for request in requests):
                await tx.attempts.append(
                    await tx.attempts.list_all(spoiled)
                )  # The database rejects a second row for the same attempt.
            return outcomes

    items = [completion(lease, b"x") for lease in leases]
    outcomes = await run_batch(engine._context.store, engine.namespace, Spoiled(), items)
    assert sizes == [8, 4, 4, 2, 1, 1, 2]
    assert {getattr(outcome, "state", outcome) for outcome in outcomes} == {"completed"}
    for lease in leases:
        history = await engine.executions.history(lease.execution_id)
        assert [event.name for event in history] == ["acquired", "completed"]


async def test_cancelled_caller_removes_its_waiting_item(engine: Engine) -> None:
    watched = RecordingComplete()
    batcher = batcher_of(engine, watched)
    leases = await leases_of(engine, 3)
    first = batcher.enqueue(completion(leases[0], b"0"))
    await asyncio.sleep(0)
    second, third = [batcher.enqueue(completion(lease, b"%d" % place)) for place, lease in enumerate(leases[1:], 1)]
    second.cancel()
    await asyncio.gather(first, third)
    assert watched.batches == [[b"0"], [b"2"]]
    assert (await engine.executions.describe(leases[1].execution_id)).state == "active"


async def test_many_callers_share_commits_and_lose_nothing(engine: Engine) -> None:
    ids = await asyncio.gather(*(submitted(engine) for _ in range(300)))
    assert len(set(ids)) == 300
    leases = await engine.leases.claim(["default"], "w", limit=300)
    await asyncio.gather(*(engine.leases.renew(lease.fence) for lease in leases))
    await asyncio.gather(*(engine.leases.progress(lease.fence, 50) for lease in leases))
    await asyncio.gather(*(engine.leases.checkpoint(lease.fence, [Step("one", b"1")]) for lease in leases))
    await asyncio.gather(*(engine.leases.complete(lease.fence, b"x") for lease in leases))
    counts = await engine.executions.count()
    assert {state.value: count.value for state, count in counts.items() if count.value} == {"completed": 300}


async def test_contradicting_checkpoint_fails_alone(engine: Engine) -> None:
    leases = [await leased(engine) for _ in range(4)]
    await engine.leases.checkpoint(leases[1].fence, [Step("one", b"first")])
    steps = [Step("one", b"second"), Step("two", b"2")]
    work = (engine.leases.checkpoint(lease.fence, steps) for lease in leases)
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    assert [getattr(outcome, "code", outcome) for outcome in outcomes] == [2, "step_already_recorded", 2, 2]
    assert [step.name for step in await engine.executions.steps(leases[1].execution_id)] == ["one"]
