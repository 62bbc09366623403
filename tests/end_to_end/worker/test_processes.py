"""Worker processes and signals: a killed worker is replaced, and a signalled worker drains."""

from __future__ import annotations

import signal
import time
from uuid import UUID

from flowfabric.engine import Engine, State
from tests.end_to_end.worker.processes import worker_process
from tests.end_to_end.worker.scripted_runs import submit_many, wait_until_completed
from tests.stores import TestStore, opened

LEASE_TTL_S = 3.0


async def test_lease_of_a_killed_process_is_taken_over_within_two_lease_terms(store: TestStore) -> None:
    async with opened(store) as engine:
        [id_] = await submit_many(engine, 1)
        async with worker_process(store, body="until drained", lease_ttl=LEASE_TTL_S) as victim:
            assert await victim.wait_for_line("begins") == f"begins {id_} 0"
            async with worker_process(store, body="echo", lease_ttl=LEASE_TTL_S) as replacement:
                await replacement.wait_for_line("log Worker started")
                victim.signal(signal.SIGKILL)
                killed_at = time.monotonic()
                await wait_until_completed(engine, id_)
                assert time.monotonic() - killed_at < 2 * LEASE_TTL_S


async def test_two_processes_share_executions_without_repeating_any(store: TestStore) -> None:
    async with (
        opened(store) as engine,
        worker_process(store, body="echo") as one,
        worker_process(store, body="echo") as two,
    ):
        for process in (one, two):
            await process.wait_for_line("log Worker started")
        ids = await submit_many(engine, 200)
        for id_ in ids:
            await wait_until_completed(engine, id_)
        for process in (one, two):
            process.signal(signal.SIGTERM)
            await process.wait_for_line("ended")
        begun = [line for process in (one, two) for line in process.lines if line.startswith("begins")]
    assert sorted(begun) == sorted(f"begins {id_} 0" for id_ in ids)


async def test_sigterm_drains_without_using_an_attempt(store: TestStore) -> None:
    async with opened(store) as engine:
        [id_] = await submit_many(engine, 1)
        async with worker_process(store, body="until drained") as process:
            await process.wait_for_line("begins")
            process.signal(signal.SIGTERM)
            await process.wait_for_line("ended")
            assert await process.exit_code() == 0
        await _assert_waiting_at_first_attempt(engine, id_)
        assert (await engine.workers.list()).items == ()


async def test_grace_period_ends_a_run_that_ignores_draining(store: TestStore) -> None:
    async with opened(store) as engine:
        [id_] = await submit_many(engine, 1)
        async with worker_process(store, body="until lost", grace=0.1) as process:
            await process.wait_for_line("begins")
            process.signal(signal.SIGINT)
            await process.wait_for_line("ended")
            assert await process.exit_code() == 0
        await _assert_waiting_at_first_attempt(engine, id_)


async def test_second_interrupt_kills_the_process_immediately(store: TestStore) -> None:
    async with opened(store) as engine:
        await submit_many(engine, 1)
        async with worker_process(store, body="until lost", grace=3600) as process:
            await process.wait_for_line("begins")
            process.signal(signal.SIGINT)
            await process.wait_for_line("log Received SIGINT")
            process.signal(signal.SIGINT)
            assert await process.exit_code() == -signal.SIGINT


async def test_blocked_event_loop_is_logged_and_can_be_interrupted(store: TestStore) -> None:
    async with opened(store) as engine:
        await submit_many(engine, 1)
        async with worker_process(store, body="block loop", grace=3600) as process:
            await process.wait_for_line("log Event loop has been blocked")
            await process.interrupt_until_exit()
            assert await process.exit_code() == -signal.SIGINT


async def _assert_waiting_at_first_attempt(engine: Engine, id_: UUID) -> None:
    execution = await engine.executions.describe(id_)
    assert (execution.state, execution.attempt_index) == (State.WAITING, 0)
