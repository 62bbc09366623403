"""A worker claims executions for its kinds and slots, and continues after failures."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from flowfabric.engine import Engine, State, connect
from flowfabric.worker import Worker
from tests.end_to_end.worker.scripted_runs import (
    ScriptedRun,
    ScriptedRunner,
    block_writes,
    echo,
    make_worker,
    submit_many,
    until,
    wait_for_state,
    wait_until_completed,
)
from tests.stores import TestStore, opened


async def test_every_submitted_execution_runs_once(store: TestStore) -> None:
    runner = ScriptedRunner(echo)
    async with opened(store) as engine:
        ids = await submit_many(engine, 100)
        async with make_worker(store, engine, runner, concurrency=8):
            ids += await submit_many(engine, 1)
            for id_ in ids:
                await wait_until_completed(engine, id_)
    assert sorted(runner.ids) == sorted(ids)


async def test_worker_runs_executions_of_a_store_in_memory() -> None:
    async with connect(":memory:") as engine, Worker(engine, ScriptedRunner(echo)):
        execution = await engine.executions.submit("job")
        await wait_until_completed(engine, execution.id)


async def test_worker_runs_at_most_as_many_executions_as_slots(store: TestStore) -> None:
    running = max_running = 0

    async def count_and_complete(run: ScriptedRun) -> None:
        nonlocal running, max_running
        running += 1
        max_running = max(max_running, running)
        await run.complete()
        running -= 1

    async with opened(store) as engine:
        ids = await submit_many(engine, 60)
        async with make_worker(store, engine, ScriptedRunner(count_and_complete), concurrency=3):
            for id_ in ids:
                await wait_until_completed(engine, id_)
    assert max_running == 3


async def test_delayed_run_frees_its_slot(store: TestStore) -> None:
    async def delay_or_complete(run: ScriptedRun) -> None:
        if run.lease.payload == b"delay":
            await run.engine.leases.delay(run.lease.fence, after="1h")
        else:
            await run.complete()

    async with opened(store) as engine:
        sleeper = await engine.executions.submit("job", b"delay")
        async with make_worker(store, engine, ScriptedRunner(delay_or_complete), concurrency=1):
            other = await engine.executions.submit("job")
            await wait_until_completed(engine, other.id)
        assert (await engine.executions.describe(sleeper.id)).state is State.DELAYED


async def test_worker_claims_only_kinds_of_its_runner(store: TestStore) -> None:
    runner = ScriptedRunner(echo, kinds=["known"])
    async with opened(store) as engine:
        unknown = await engine.executions.submit("unknown")
        async with make_worker(store, engine, runner):
            known = await engine.executions.submit("known")
            await wait_until_completed(engine, known.id)
        assert runner.ids == [known.id]
        assert (await engine.executions.describe(unknown.id)).state is State.WAITING


async def test_execution_does_not_begin_again_while_its_previous_run_cleans_up(store: TestStore) -> None:
    cleanup_done = asyncio.Event()

    async def release_then_linger(run: ScriptedRun) -> None:
        if len(runner.ids) > 1:
            await run.complete()
            return
        await run.release()
        await cleanup_done.wait()

    runner = ScriptedRunner(release_then_linger)
    async with opened(store) as engine:
        execution = await engine.executions.submit("job")
        async with make_worker(store, engine, runner) as worker:
            first = await runner.next()

            async def is_claimed_again() -> bool:
                leases = await engine.leases.held(worker.id.instance)
                return any(lease.fence.epoch > first.lease.fence.epoch for lease in leases)

            await until(is_claimed_again)
            assert len(runner.ids) == 1
            cleanup_done.set()
            await wait_until_completed(engine, execution.id)
    assert len(runner.ids) == 2


async def test_broken_run_is_logged_and_delayed(store: TestStore, caplog: pytest.LogCaptureFixture) -> None:
    async def break_or_complete(run: ScriptedRun) -> None:
        if run.lease.payload == b"bad":
            raise SystemExit("broken")
        await run.complete()

    async with opened(store) as engine:
        bad = await engine.executions.submit("job", b"bad")
        async with make_worker(store, engine, ScriptedRunner(break_or_complete), concurrency=1):
            good = await engine.executions.submit("job")
            await wait_until_completed(engine, good.id)
            await wait_for_state(engine, bad.id, State.DELAYED)
        assert "failed unexpectedly" in caplog.text
        assert (await engine.executions.describe(bad.id)).attempt_index == 0


async def test_runner_that_fails_to_begin_is_logged_and_the_execution_delayed(
    store: TestStore, caplog: pytest.LogCaptureFixture
) -> None:
    class FailingRunner(ScriptedRunner):
        def begin(self, engine: Engine, lease: object, is_held: object = None) -> ScriptedRun:
            raise LookupError("no such thing")

    async with opened(store) as engine:
        execution = await engine.executions.submit("job")
        async with make_worker(store, engine, FailingRunner(echo)):
            await wait_for_state(engine, execution.id, State.DELAYED)
    assert "no such thing" in caplog.text


async def test_worker_is_registered_while_it_runs(store: TestStore) -> None:
    async with opened(store) as engine:

        async def is_registered() -> bool:
            return bool((await engine.workers.list()).items)

        worker = make_worker(store, engine, ScriptedRunner(echo), name="till", concurrency=5, capabilities=["gpu"])
        async with worker:
            await until(is_registered)
            [worker_info] = (await engine.workers.list()).items
            assert (worker_info.id, worker_info.slots, worker_info.capabilities, worker_info.kinds) == (
                worker.id,
                5,
                ("gpu",),
                ("job",),
            )
            assert worker_info.id.name == "till"
        assert (await engine.workers.list()).items == ()


async def test_worker_claims_again_when_the_store_recovers(store: TestStore, caplog: pytest.LogCaptureFixture) -> None:
    async def has_failed() -> bool:
        return "Claim failed" in caplog.text

    async with opened(store) as client, opened(store, statement_timeout=1) as engine, AsyncExitStack() as stack:
        async with block_writes(store):
            await stack.enter_async_context(make_worker(store, engine, ScriptedRunner(echo)))
            await until(has_failed)
        execution = await client.executions.submit("job")
        await wait_until_completed(client, execution.id)
    assert caplog.text.count("Claim failed") == 1
