"""A stopping worker releases every lease and uses no attempt."""

from __future__ import annotations

import asyncio
import contextlib

from flowfabric.engine import Engine, State
from tests.end_to_end.worker.scripted_runs import (
    ScriptedRun,
    ScriptedRunner,
    echo,
    make_worker,
    submit_many,
    until_drained,
    until_lost,
    wait_until_completed,
)
from tests.stores import TestStore, opened


async def test_draining_run_unwinds_and_another_worker_continues_it(store: TestStore) -> None:
    runner, other_runner = ScriptedRunner(until_drained), ScriptedRunner(echo)
    async with opened(store) as engine:
        [id_] = await submit_many(engine, 1)
        async with make_worker(store, engine, runner) as worker:
            await runner.next()
            await worker.stop()
            await _assert_waiting_at_first_attempt(engine, id_)
        async with make_worker(store, engine, other_runner):
            await wait_until_completed(engine, id_)
        assert (await other_runner.next()).lease.attempt_index == 0


async def test_worker_releases_a_run_that_does_not_unwind_within_the_grace(store: TestStore) -> None:
    runner = ScriptedRunner(until_lost)
    async with opened(store) as engine:
        [id_] = await submit_many(engine, 1)
        async with make_worker(store, engine, runner) as worker:
            run = await runner.next()
            await worker.stop(grace=0.1)
        assert run.draining.is_set()
        assert run.lost.result().code == "execution_not_active"
        await _assert_waiting_at_first_attempt(engine, id_)


async def test_run_that_ignores_draining_and_loss_is_cancelled(store: TestStore) -> None:
    body_ended = asyncio.Event()

    async def ignore_everything(run: ScriptedRun) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        body_ended.set()

    runner = ScriptedRunner(ignore_everything)
    async with opened(store) as engine:
        [id_] = await submit_many(engine, 1)
        async with make_worker(store, engine, runner, grace=0):
            await runner.next()
        assert body_ended.is_set()
        await _assert_waiting_at_first_attempt(engine, id_)


async def test_leases_claimed_ahead_are_released(store: TestStore) -> None:
    async def quick_then_slow(run: ScriptedRun) -> None:
        if runner.ids.index(run.lease.execution_id) >= 20:
            await until_drained(run)
        else:
            await run.complete()

    runner = ScriptedRunner(quick_then_slow)
    async with opened(store) as engine:
        ids = await submit_many(engine, 40)
        async with make_worker(store, engine, runner, concurrency=4) as worker:
            begun = [await runner.next() for _ in range(24)]
            await worker.stop()
            assert await engine.leases.held(worker.id.instance) == []
        for id_ in set(ids) - {run.lease.execution_id for run in begun[:20]}:
            await _assert_waiting_at_first_attempt(engine, id_)


async def test_lease_whose_claim_reply_was_lost_is_released(store: TestStore) -> None:
    runner = ScriptedRunner(echo, kinds=["other"])
    async with opened(store) as engine:
        [id_] = await submit_many(engine, 1)
        async with make_worker(store, engine, runner) as worker:
            await engine.leases.claim_execution(id_, worker.id)
        await _assert_waiting_at_first_attempt(engine, id_)


async def test_second_stop_shortens_the_grace(store: TestStore) -> None:
    runner = ScriptedRunner(until_lost)
    async with opened(store) as engine:
        await submit_many(engine, 1)
        async with make_worker(store, engine, runner) as worker:
            run = await runner.next()
            first_stop = asyncio.create_task(worker.stop(grace="1h"))
            await run.draining.wait()
            async with asyncio.timeout(20):
                await worker.stop(grace=0)
                await first_stop
                await worker.run()


async def _assert_waiting_at_first_attempt(engine: Engine, id_: object) -> None:
    execution = await engine.executions.describe(str(id_))
    assert (execution.state, execution.attempt_index) == (State.WAITING, 0)
