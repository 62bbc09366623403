"""A worker that stops leaves nothing behind, and uses up no attempt."""

from __future__ import annotations

import asyncio
import contextlib

from flowfabric.engine import Engine, State
from tests.end_to_end.worker.performers import (
    Performer,
    Told,
    completed,
    echo,
    submit_many,
    until_drained,
    until_lost,
    worker_on,
)
from tests.stores import TestStore, opened


async def test_what_runs_is_asked_to_unwind_and_goes_on_elsewhere(store: TestStore) -> None:
    performer, other = Performer(until_drained), Performer(echo)
    async with opened(store) as engine:
        [id_] = await submit_many(engine, 1)
        async with worker_on(store, engine, performer) as worker:
            await performer.next()
            await worker.stop()
            await _is_waiting_unharmed(engine, id_)
        async with worker_on(store, engine, other):
            await completed(engine, id_)
        assert (await other.next()).lease.attempt_index == 0


async def test_what_does_not_unwind_within_the_grace_is_given_back_for_it(store: TestStore) -> None:
    performer = Performer(until_lost)
    async with opened(store) as engine:
        [id_] = await submit_many(engine, 1)
        async with worker_on(store, engine, performer) as worker:
            told = await performer.next()
            await worker.stop(grace=0.1)
        assert told.draining.is_set()
        assert told.lost.result().code == "execution_not_active"
        await _is_waiting_unharmed(engine, id_)


async def test_what_listens_to_nothing_is_cancelled(store: TestStore) -> None:
    left = asyncio.Event()

    async def deaf(told: Told) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        left.set()

    performer = Performer(deaf)
    async with opened(store) as engine:
        [id_] = await submit_many(engine, 1)
        async with worker_on(store, engine, performer, grace=0):
            await performer.next()
        assert left.is_set()
        await _is_waiting_unharmed(engine, id_)


async def test_what_was_claimed_ahead_is_given_back(store: TestStore) -> None:
    async def quick_then_slow(told: Told) -> None:
        if performer.ids.index(told.lease.execution_id) >= 20:
            await until_drained(told)
        else:
            await told.complete()

    performer = Performer(quick_then_slow)
    async with opened(store) as engine:
        ids = await submit_many(engine, 40)
        async with worker_on(store, engine, performer, concurrency=4) as worker:
            begun = [await performer.next() for _ in range(24)]
            await worker.stop()
            assert await engine.leases.held(worker.id.instance) == []
        for id_ in set(ids) - {told.lease.execution_id for told in begun[:20]}:
            await _is_waiting_unharmed(engine, id_)


async def test_a_lease_whose_reply_was_lost_is_given_back(store: TestStore) -> None:
    performer = Performer(echo, kinds=["other"])
    async with opened(store) as engine:
        [id_] = await submit_many(engine, 1)
        async with worker_on(store, engine, performer) as worker:
            await engine.leases.claim_execution(id_, worker.id)
        await _is_waiting_unharmed(engine, id_)


async def test_a_second_stop_may_shorten_the_grace(store: TestStore) -> None:
    performer = Performer(until_lost)
    async with opened(store) as engine:
        await submit_many(engine, 1)
        async with worker_on(store, engine, performer) as worker:
            told = await performer.next()
            patient = asyncio.create_task(worker.stop(grace="1h"))
            await told.draining.wait()
            async with asyncio.timeout(20):
                await worker.stop(grace=0)
                await patient
                await worker.run()


async def _is_waiting_unharmed(engine: Engine, id_: object) -> None:
    found = await engine.executions.describe(str(id_))
    assert (found.state, found.attempt_index) == (State.WAITING, 0)
