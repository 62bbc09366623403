"""Group commit: one test for each rule of a batch, on the real operations of both backends."""

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

from flowfabric.batching import ENOUGH_FOR_ANOTHER, MOST_TOGETHER, Batcher, run_batch
from flowfabric.core.requests import Completion
from flowfabric.engine import Created, Duplicate, Engine, Lease, Refused, Renewed, State, Step, Submission
from flowfabric.ops.complete import COMPLETE
from flowfabric.ops.hot import HotOperation
from flowfabric.store.transaction import Transaction
from flowfabric.testing import VirtualClock
from tests.scenarios import leased, submitted
from tests.stores import PostgresTestStore, SqliteTestStore, opened


class Watched:
    """The complete operation, noting which batches it was given and what was looked at alone."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.alone: list[bytes] = []
        self.operation: HotOperation[Completion, Any] = HotOperation(
            self.together, self.one, subject=COMPLETE.subject, solitary=COMPLETE.solitary
        )

    async def together(self, tx: Transaction, namespace: str, items: Sequence[Completion]) -> list[Any]:
        self.batches.append([item.result for item in items])
        return await COMPLETE.together(tx, namespace, items)

    async def one(self, tx: Transaction, namespace: str, item: Completion) -> Any:
        self.alone.append(item.result)
        return await COMPLETE.alone(tx, namespace, item)


async def leases_of(engine: Engine, number: int) -> list[Lease]:
    await engine.executions.submit_many([Submission(kind="job") for _ in range(number)])
    return await engine.leases.claim(["default"], "w", limit=number)


def completion(lease: Lease, result: bytes, **more: Any) -> Completion:
    return Completion(fence=lease.fence, result=result, encoding="json", **more)


def batcher_of(engine: Engine, watched: Watched) -> Batcher[Completion, Any]:
    return Batcher(engine._context.store, engine.namespace, watched.operation)


async def test_the_first_goes_at_once_and_those_who_come_meanwhile_go_together(engine: Engine) -> None:
    watched = Watched()
    batcher = batcher_of(engine, watched)
    first, *others = await leases_of(engine, 9)
    answers = [batcher.enter(completion(first, b"0"))]
    await asyncio.sleep(0)
    answers += [batcher.enter(completion(lease, b"%d" % place)) for place, lease in enumerate(others)]
    await asyncio.gather(*answers)
    assert [len(batch) for batch in watched.batches] == [1, 8]
    assert watched.alone == []


async def test_those_who_come_in_the_same_turn_of_the_loop_go_together(engine: Engine) -> None:
    watched = Watched()
    batcher = batcher_of(engine, watched)
    leases = await leases_of(engine, 9)
    await asyncio.gather(*(batcher.submit(completion(lease, b"%d" % place)) for place, lease in enumerate(leases)))
    assert [len(batch) for batch in watched.batches] == [9]


async def test_a_batch_holds_at_most_so_many_items_and_enough_for_another_go_beside_it(engine: Engine) -> None:
    watched = Watched()
    batcher = batcher_of(engine, watched)
    leases = await leases_of(engine, ENOUGH_FOR_ANOTHER + 2 * MOST_TOGETHER + 50)
    # As if a batch were under way, beside which one less is not enough for another.
    batcher._committing = 1
    *first, last = leases[:ENOUGH_FOR_ANOTHER]
    answers = [batcher.enter(completion(lease, b"x")) for lease in first]
    await asyncio.sleep(0.05)
    assert watched.batches == []
    answers.append(batcher.enter(completion(last, b"x")))
    await asyncio.wait_for(asyncio.gather(*answers), 10)
    batcher._committing = 0
    await asyncio.gather(*(batcher.submit(completion(lease, b"x")) for lease in leases[ENOUGH_FOR_ANOTHER:]))
    assert [len(batch) for batch in watched.batches] == [ENOUGH_FOR_ANOTHER, MOST_TOGETHER, MOST_TOGETHER, 50]


async def test_many_items_of_one_execution_are_not_looked_through_for_each_that_comes(engine: Engine) -> None:
    watched = Watched()
    batcher = batcher_of(engine, watched)
    [lease] = await leases_of(engine, 1)
    looks = 0
    next_batch = batcher._next_batch

    def counted() -> Any:
        nonlocal looks
        looks += 1
        return next_batch()

    batcher._next_batch = counted  # type: ignore[method-assign]
    # As if one were under way.
    batcher._committing = 1
    batcher._subjects.add(lease.execution_id)
    answers = []
    for _ in range(200):
        answers.append(batcher.enter(completion(lease, b"x")))
        await asyncio.sleep(0)
    assert looks == 1
    batcher._committing = 0
    batcher._free(lease.execution_id)
    batcher._start()
    assert len(await asyncio.gather(*answers)) == 200


async def test_two_items_of_one_execution_go_one_after_the_other_and_each_is_answered(engine: Engine) -> None:
    watched = Watched()
    batcher = batcher_of(engine, watched)
    [first, other] = await leases_of(engine, 2)
    items = [completion(first, b"a"), completion(first, b"a"), completion(first, b"b"), completion(other, b"c")]
    answers: list[Any] = await asyncio.gather(*(batcher.submit(item) for item in items), return_exceptions=True)
    same, again, contradiction, neighbour = answers
    assert same == again == neighbour
    assert isinstance(contradiction, Refused)
    assert contradiction.fields["outcome"] == "success"
    assert watched.batches == [[b"a", b"c"], [b"a"], [b"b"]]


async def test_a_stale_item_is_refused_alone_and_its_neighbours_are_done(engine: Engine) -> None:
    watched = Watched()
    batcher = batcher_of(engine, watched)
    leases = await leases_of(engine, 5)
    await engine.operator.revoke_lease(leases[2].execution_id)
    work = (batcher.submit(completion(lease, b"%d" % place)) for place, lease in enumerate(leases))
    answers = await asyncio.gather(*work, return_exceptions=True)
    assert [getattr(answer, "code", "done") for answer in answers] == ["done", "done", "lease_revoked", "done", "done"]
    assert watched.alone == [b"2"]


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_a_busy_row_delays_nobody_but_its_own_caller(store: PostgresTestStore, engine: Engine) -> None:
    leases = await leases_of(engine, 4)
    async with locked_row(store, leases[1]):
        busy = asyncio.create_task(engine.leases.complete(leases[1].fence, b"busy"))
        others = [engine.leases.complete(lease.fence, b"x") for lease in (leases[0], leases[2], leases[3])]
        assert len(await asyncio.wait_for(asyncio.gather(*others), timeout=10)) == 3
        assert not busy.done()
    assert (await busy).state == "completed"


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_what_is_brought_together_with_a_busy_row_is_done_before_it_is_free(
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
async def test_while_another_process_writes_the_file_all_wait_and_then_all_are_done(
    store: SqliteTestStore, clock: VirtualClock
) -> None:
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
        assert {answer.state for answer in await asyncio.wait_for(waiting, timeout=10)} == {State.COMPLETED}


async def test_a_bad_item_neither_fails_nor_reorders_its_neighbours(engine: Engine) -> None:
    await engine.executions.submit("job", b"first", key="taken")
    bad = Submission(kind="job", payload=b"other", key="taken")
    late = Submission(kind="job", deadline=datetime(2000, 1, 1, tzinfo=UTC))
    again = Submission(kind="job", payload=b"0", id=UUID(int=1))
    good = [Submission(kind="job", payload=b"%d" % place) for place in range(1, 4)]
    answers = await engine.executions.submit_many([again, bad, again, good[0], late, good[1], good[2]])
    told = [getattr(answer, "code", type(answer)) for answer in answers]
    assert told == [Created, "idempotency_mismatch", Duplicate, Created, "deadline_in_past", Created, Created]
    leases = await engine.leases.claim(["default"], "w", limit=10)
    assert [lease.payload for lease in leases] == [b"0", b"first", b"1", b"2", b"3"]


@asynccontextmanager
async def locked_row(store: PostgresTestStore, lease: Lease) -> AsyncIterator[None]:
    """The row of an execution is locked by somebody else while the block lasts."""
    holder = await asyncpg.connect(store.url)
    async with holder.transaction():
        row = f'SELECT 1 FROM "{store.schema}".execution WHERE id = $1 FOR UPDATE'
        await holder.execute(row, lease.execution_id)
        yield
    await holder.close()


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_a_lease_that_is_just_being_extended_is_not_called_lost(
    store: PostgresTestStore, clock: VirtualClock
) -> None:
    async with opened(store, clock) as engine:
        lease, lost = await leased(engine, lease_ttl="30s"), await leased(engine, lease_ttl="30s")
        clock.advance("29s")
        holder = await asyncpg.connect(store.url)
        async with holder.transaction():
            extend = "SET lease_expires_at = lease_expires_at + INTERVAL '29 seconds'"
            await holder.execute(f'UPDATE "{store.schema}".execution {extend} WHERE id = $1', lease.execution_id)
            clock.advance("2s")
            renewing = asyncio.create_task(engine.leases.renew_many([lease.fence, lost.fence]))
            await asyncio.wait([renewing], timeout=0.2)
            assert not renewing.done()
        await holder.close()
        renewed, error = await asyncio.wait_for(renewing, 10)
        assert isinstance(renewed, Renewed)
        assert getattr(error, "code", None) == "lease_expired"


async def test_items_that_may_not_share_a_batch_run_by_themselves(engine: Engine) -> None:
    watched = Watched()
    batcher = batcher_of(engine, watched)
    [plain, with_steps] = await leases_of(engine, 2)
    await asyncio.gather(
        batcher.submit(completion(plain, b"plain")),
        batcher.submit(completion(with_steps, b"steps", steps=(Step("one", b"1"),))),
    )
    assert watched.batches == [[b"plain"]]
    assert watched.alone == [b"steps"]
    assert len(await engine.executions.steps(with_steps.execution_id)) == 1


async def test_submits_with_a_key_are_created_once_however_many_come_at_once(engine: Engine) -> None:
    answers = await asyncio.gather(*(engine.executions.submit("job", b"x", key="only") for _ in range(20)))
    assert sum(isinstance(answer, Created) for answer in answers) == 1
    assert len({answer.id for answer in answers}) == 1


async def test_an_item_that_the_database_refuses_is_found_by_halving_and_the_others_are_done(engine: Engine) -> None:
    leases = await leases_of(engine, 8)
    spoiled = leases[5].execution_id
    sizes: list[int] = []

    async def together(tx: Transaction, namespace: str, items: Sequence[Completion]) -> list[Any]:
        sizes.append(len(items))
        answers = await COMPLETE.together(tx, namespace, items)
        if any(item.fence.execution_id == spoiled for item in items):
            await tx.attempts.append(await tx.attempts.of(spoiled))  # The database refuses the same attempt twice.
        return answers

    operation = HotOperation(together, COMPLETE.alone, subject=COMPLETE.subject, one_statement=False)
    items = [completion(lease, b"x") for lease in leases]
    answers = await run_batch(engine._context.store, engine.namespace, operation, items)
    assert sizes == [8, 4, 4, 2, 1, 1, 2]
    assert {getattr(answer, "state", answer) for answer in answers} == {"completed"}
    for lease in leases:
        history = await engine.executions.history(lease.execution_id)
        assert [event.name for event in history] == ["acquired", "completed"]


async def test_a_caller_who_is_cancelled_while_waiting_takes_its_item_along(engine: Engine) -> None:
    watched = Watched()
    batcher = batcher_of(engine, watched)
    leases = await leases_of(engine, 3)
    first = batcher.enter(completion(leases[0], b"0"))
    await asyncio.sleep(0)
    second, third = [batcher.enter(completion(lease, b"%d" % place)) for place, lease in enumerate(leases[1:], 1)]
    second.cancel()
    await asyncio.gather(first, third)
    assert watched.batches == [[b"0"], [b"2"]]
    assert (await engine.executions.describe(leases[1].execution_id)).state == "active"


async def test_many_callers_share_their_commits_and_none_is_lost(engine: Engine) -> None:
    ids = await asyncio.gather(*(submitted(engine) for _ in range(300)))
    assert len(set(ids)) == 300
    leases = await engine.leases.claim(["default"], "w", limit=300)
    await asyncio.gather(*(engine.leases.renew(lease.fence) for lease in leases))
    await asyncio.gather(*(engine.leases.progress(lease.fence, 50) for lease in leases))
    await asyncio.gather(*(engine.leases.checkpoint(lease.fence, [Step("one", b"1")]) for lease in leases))
    await asyncio.gather(*(engine.leases.complete(lease.fence, b"x") for lease in leases))
    counts = await engine.executions.count()
    assert {state.value: count.number for state, count in counts.items() if count.number} == {"completed": 300}


async def test_a_contradicting_checkpoint_spoils_only_itself(engine: Engine) -> None:
    leases = [await leased(engine) for _ in range(4)]
    await engine.leases.checkpoint(leases[1].fence, [Step("one", b"first")])
    steps = [Step("one", b"second"), Step("two", b"2")]
    work = (engine.leases.checkpoint(lease.fence, steps) for lease in leases)
    answers = await asyncio.gather(*work, return_exceptions=True)
    assert [getattr(answer, "code", answer) for answer in answers] == [2, "step_already_recorded", 2, 2]
    assert [step.name for step in await engine.executions.steps(leases[1].execution_id)] == ["one"]
