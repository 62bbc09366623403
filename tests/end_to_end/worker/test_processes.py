"""Real processes and real signals: one that is killed is replaced, one that is told to end leaves nothing behind."""

from __future__ import annotations

import signal
import time
from uuid import UUID

from flowfabric.engine import Engine, State
from tests.end_to_end.worker.performers import completed, submit_many
from tests.end_to_end.worker.processes import worker_process
from tests.stores import TestStore, opened

LEASE_S = 3.0


async def test_what_a_killed_process_held_goes_on_within_two_leases(store: TestStore) -> None:
    async with opened(store) as engine:
        [id_] = await submit_many(engine, 1)
        async with worker_process(store, body="until drained", lease_ttl=LEASE_S) as victim:
            assert await victim.says("begins") == f"begins {id_} 0"
            async with worker_process(store, body="echo", lease_ttl=LEASE_S) as heir:
                await heir.says("log works")
                victim.signal(signal.SIGKILL)
                killed_at = time.monotonic()
                await completed(engine, id_)
                assert time.monotonic() - killed_at < 2 * LEASE_S


async def test_two_processes_share_the_work_and_do_nothing_twice(store: TestStore) -> None:
    async with (
        opened(store) as engine,
        worker_process(store, body="echo") as one,
        worker_process(store, body="echo") as two,
    ):
        for process in (one, two):
            await process.says("log works")
        ids = await submit_many(engine, 200)
        for id_ in ids:
            await completed(engine, id_)
        for process in (one, two):
            process.signal(signal.SIGTERM)
            await process.says("ended")
        begun = [line for process in (one, two) for line in process.lines if line.startswith("begins")]
    assert sorted(begun) == sorted(f"begins {id_} 0" for id_ in ids)


async def test_sigterm_drains_and_uses_up_no_attempt(store: TestStore) -> None:
    async with opened(store) as engine:
        [id_] = await submit_many(engine, 1)
        async with worker_process(store, body="until drained") as process:
            await process.says("begins")
            process.signal(signal.SIGTERM)
            await process.says("ended")
            assert await process.code() == 0
        await _is_unharmed(engine, id_)
        assert await engine.workers.list() == []


async def test_the_grace_ends_what_does_not_listen(store: TestStore) -> None:
    async with opened(store) as engine:
        [id_] = await submit_many(engine, 1)
        async with worker_process(store, body="deaf", grace=0.1) as process:
            await process.says("begins")
            process.signal(signal.SIGINT)
            await process.says("ended")
            assert await process.code() == 0
        await _is_unharmed(engine, id_)


async def test_a_second_interrupt_ends_the_process_at_once(store: TestStore) -> None:
    async with opened(store) as engine:
        await submit_many(engine, 1)
        async with worker_process(store, body="deaf", grace=3600) as process:
            await process.says("begins")
            process.signal(signal.SIGINT)
            await process.says("log SIGINT: draining")
            process.signal(signal.SIGINT)
            assert await process.code() == -signal.SIGINT


async def test_a_blocked_loop_is_told_and_can_be_interrupted(store: TestStore) -> None:
    async with opened(store) as engine:
        await submit_many(engine, 1)
        async with worker_process(store, body="blocks", grace=3600) as process:
            await process.says("log the event loop has not answered")
            await process.is_interrupted()
            assert await process.code() == -signal.SIGINT


async def _is_unharmed(engine: Engine, id_: UUID) -> None:
    found = await engine.executions.describe(id_)
    assert (found.state, found.attempt_index) == (State.WAITING, 0)
