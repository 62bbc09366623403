"""Workers claim what they can perform, as much as they have slots for, and nothing that breaks ends them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from flowfabric.engine import Engine, State, connect
from flowfabric.worker import Worker
from tests.end_to_end.worker.performers import (
    Performer,
    Told,
    completed,
    echo,
    nobody_writes,
    submit_many,
    until,
    until_in,
    worker_on,
)
from tests.stores import TestStore, opened


async def test_everything_that_is_submitted_is_performed_once(store: TestStore) -> None:
    performer = Performer(echo)
    async with opened(store) as engine:
        ids = await submit_many(engine, 100)
        async with worker_on(store, engine, performer, concurrency=8):
            ids += await submit_many(engine, 1)
            for id_ in ids:
                await completed(engine, id_)
    assert sorted(performer.ids) == sorted(ids)


async def test_a_store_in_memory_has_workers_too() -> None:
    async with connect(":memory:") as engine, Worker(engine, Performer(echo)):
        answer = await engine.executions.submit("job")
        await completed(engine, answer.id)


async def test_no_more_run_at_once_than_there_are_slots(store: TestStore) -> None:
    running = most = 0

    async def counted(told: Told) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await told.complete()
        running -= 1

    async with opened(store) as engine:
        ids = await submit_many(engine, 60)
        async with worker_on(store, engine, Performer(counted), concurrency=3):
            for id_ in ids:
                await completed(engine, id_)
    assert most == 3


async def test_a_performance_that_only_waits_leaves_its_slot(store: TestStore) -> None:
    async def first_sleeps(told: Told) -> None:
        if told.lease.payload == b"sleeps":
            await told.engine.leases.delay(told.lease.fence, after="1h")
        else:
            await told.complete()

    async with opened(store) as engine:
        sleeper = await engine.executions.submit("job", b"sleeps")
        async with worker_on(store, engine, Performer(first_sleeps), concurrency=1):
            other = await engine.executions.submit("job")
            await completed(engine, other.id)
        assert (await engine.executions.describe(sleeper.id)).state is State.DELAYED


async def test_only_kinds_that_can_be_performed_are_claimed(store: TestStore) -> None:
    performer = Performer(echo, kinds=["known"])
    async with opened(store) as engine:
        unknown = await engine.executions.submit("unknown")
        async with worker_on(store, engine, performer):
            known = await engine.executions.submit("known")
            await completed(engine, known.id)
        assert performer.ids == [known.id]
        assert (await engine.executions.describe(unknown.id)).state is State.WAITING


async def test_an_execution_is_not_begun_while_its_former_performance_cleans_up(store: TestStore) -> None:
    cleaned = asyncio.Event()

    async def lingers(told: Told) -> None:
        if len(performer.ids) > 1:
            await told.complete()
            return
        await told.release()
        await cleaned.wait()

    performer = Performer(lingers)
    async with opened(store) as engine:
        answer = await engine.executions.submit("job")
        async with worker_on(store, engine, performer) as worker:
            first = await performer.next()

            async def is_claimed_again() -> bool:
                leases = await engine.leases.held(worker.id.instance)
                return any(lease.fence.epoch > first.lease.fence.epoch for lease in leases)

            await until(is_claimed_again)
            assert len(performer.ids) == 1
            cleaned.set()
            await completed(engine, answer.id)
    assert len(performer.ids) == 2


async def test_a_performance_that_breaks_is_told_and_put_off(
    store: TestStore, caplog: pytest.LogCaptureFixture
) -> None:
    async def breaks(told: Told) -> None:
        if told.lease.payload == b"bad":
            raise SystemExit("broken")
        await told.complete()

    async with opened(store) as engine:
        bad = await engine.executions.submit("job", b"bad")
        async with worker_on(store, engine, Performer(breaks), concurrency=1):
            good = await engine.executions.submit("job")
            await completed(engine, good.id)
            await until_in(engine, bad.id, State.DELAYED)
        assert "broke" in caplog.text
        assert (await engine.executions.describe(bad.id)).attempt_index == 0


async def test_a_performer_that_cannot_begin_is_told_and_put_off(
    store: TestStore, caplog: pytest.LogCaptureFixture
) -> None:
    class Unable(Performer):
        def begin(self, engine: Engine, lease: object) -> Told:
            raise LookupError("no such thing")

    async with opened(store) as engine:
        answer = await engine.executions.submit("job")
        async with worker_on(store, engine, Unable(echo)):
            await until_in(engine, answer.id, State.DELAYED)
    assert "no such thing" in caplog.text


async def test_a_worker_is_in_the_register_while_it_works(store: TestStore) -> None:
    async with opened(store) as engine:

        async def is_registered() -> bool:
            return bool(await engine.workers.list())

        worker = worker_on(store, engine, Performer(echo), name="till", concurrency=5, capabilities=["gpu"])
        async with worker:
            await until(is_registered)
            [entry] = await engine.workers.list()
            assert (entry.id, entry.slots, entry.capabilities, entry.kinds) == (worker.id, 5, ("gpu",), ("job",))
            assert entry.id.name == "till"
        assert await engine.workers.list() == []


async def test_claims_go_on_when_the_store_answers_again(store: TestStore, caplog: pytest.LogCaptureFixture) -> None:
    async def has_failed() -> bool:
        return "claims fail" in caplog.text

    async with opened(store) as client, opened(store, statement_timeout=1) as engine, AsyncExitStack() as stack:
        async with nobody_writes(store):
            await stack.enter_async_context(worker_on(store, engine, Performer(echo)))
            await until(has_failed)
        answer = await client.executions.submit("job")
        await completed(client, answer.id)
    assert caplog.text.count("claims fail") == 1
