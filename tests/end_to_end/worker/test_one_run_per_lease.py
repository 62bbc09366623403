"""A worker never runs the same lease twice, whatever happens to its connection to the store."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from flowfabric import App, step
from flowfabric.engine import Engine, Refused, State
from flowfabric.runtime.run import TaskRun, TaskRunner
from flowfabric.runtime.runner import IsHeld, always_held
from flowfabric.runtime.threads import ThreadPools
from flowfabric.worker import Worker
from tests.end_to_end.worker.scripted_runs import (
    ScriptedRun,
    ScriptedRunner,
    echo,
    until,
    wait_for_state,
    wait_until_completed,
)
from tests.faults.kit.link import Link
from tests.faults.kit.ownership import FragileRunner, OwnershipLedger, busy_claims, expected_results, make_program
from tests.faults.kit.proxy import Proxy, proxied
from tests.stores import PostgresTestStore, TestStore, opened

LEASE_TTL_S = 2.0
OUTAGE_S = 2.0


async def submit_job(engine: Engine, mode: str) -> UUID:
    return (await engine.executions.submit("job", json.dumps({"mode": mode}).encode())).id


async def result_of(engine: Engine, id_: UUID) -> Any:
    outcome = await engine.executions.wait(id_, timeout=30)
    assert outcome is not None and outcome.result is not None, "the execution did not complete in time"
    return json.loads(outcome.result)


@asynccontextmanager
async def program_worker(engine: Engine, app: App, lease_ttl: float, **options: Any) -> AsyncIterator[Worker]:
    threads = ThreadPools(8)
    async with Worker(engine, TaskRunner(app, threads), lease_ttl=lease_ttl, threads=threads, **options) as worker:
        yield worker


async def lose_replies_until_the_lease_is_lost(
    ledger: OwnershipLedger, id_: UUID, link: Link | Proxy, heal: Callable[[], None]
) -> None:
    async def is_waiting() -> bool:
        return id_ in ledger.waiting

    async def has_lost() -> bool:
        return id_ in ledger.lost_at

    await until(is_waiting)
    await asyncio.sleep(LEASE_TTL_S / 2)  # One renewal succeeds.
    link.drops_replies = True
    await until(has_lost)
    heal()


@pytest.mark.parametrize("mode", ["slow", "slow_once"])
async def test_recorded_step_never_runs_again_after_lost_replies(store: TestStore, mode: str) -> None:
    link = Link()
    async with opened(store) as client, client.reconcilers.run_in_background():
        ledger = OwnershipLedger(client)
        async with (
            link.opened(store.connecting()) as engine,
            program_worker(engine, make_program(ledger), LEASE_TTL_S, reconcile=False),
            busy_claims(client),
        ):
            id_ = await submit_job(client, mode)
            await lose_replies_until_the_lease_is_lost(ledger, id_, link, link.heal)
            assert {await result_of(client, id_)} == expected_results(mode)
    assert ledger.violations == []
    assert link.dropped > 0


async def test_lease_whose_code_does_not_stop_is_not_run_again(store: TestStore) -> None:
    link = Link()
    async with opened(store) as client, client.reconcilers.run_in_background():
        ledger = OwnershipLedger(client)
        async with (
            link.opened(store.connecting()) as engine,
            program_worker(engine, make_program(ledger), LEASE_TTL_S, reconcile=False),
            busy_claims(client),
        ):
            id_ = await submit_job(client, "stubborn")
            try:
                await lose_replies_until_the_lease_is_lost(ledger, id_, link, link.heal)
                assert await result_of(client, id_) == "stubborn"
            finally:
                ledger.may_stop.set()
    assert ledger.violations == []


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
@pytest.mark.parametrize("mode", ["slow", "slow_once"])
async def test_recorded_step_never_runs_again_after_a_one_way_partition(store: PostgresTestStore, mode: str) -> None:
    async with opened(store) as client, client.reconcilers.run_in_background():
        ledger = OwnershipLedger(client)
        with proxied(store.url) as (proxy, url):
            behind_proxy = PostgresTestStore(url)
            behind_proxy.schema = store.schema

            def open_renewal_engine() -> AbstractAsyncContextManager[Engine]:
                engine: AbstractAsyncContextManager[Engine] = behind_proxy.connecting(notify=False, pool_size=1)
                return engine

            def heal() -> None:
                proxy.heal()
                proxy.cut()

            async with (
                opened(behind_proxy) as engine,
                program_worker(
                    engine,
                    make_program(ledger),
                    LEASE_TTL_S,
                    reconcile=False,
                    open_renewal_engine=open_renewal_engine,
                ),
                busy_claims(client),
            ):
                id_ = await submit_job(client, mode)
                await lose_replies_until_the_lease_is_lost(ledger, id_, proxy, heal)
                assert {await result_of(client, id_)} == expected_results(mode)
    assert ledger.violations == []
    assert proxy.dropped > 0


async def test_recorded_step_never_runs_again_if_its_lease_could_not_be_released(store: TestStore) -> None:
    link, has_failed = Link(), asyncio.Event()

    async def begin_outage() -> None:
        link.is_down = True
        has_failed.set()

    async with opened(store) as client:
        ledger, threads = OwnershipLedger(client), ThreadPools(8)
        runner = FragileRunner(make_program(ledger), threads, begin_outage)
        async with (
            # The engine repeats no call, as if the outage took longer than its repeats.
            link.opened(store.connecting(retry_for=0)) as engine,
            Worker(engine, runner, lease_ttl=30, threads=threads, reconcile=False),
            client.reconcilers.run_in_background(),
            busy_claims(client),
        ):
            id_ = await submit_job(client, "short")
            async with asyncio.timeout(20):
                await has_failed.wait()
            await asyncio.sleep(OUTAGE_S)
            link.heal()
            assert await result_of(client, id_) == "short"
    assert ledger.violations == []
    assert link.refused > 0


async def test_lease_whose_claim_reply_was_lost_runs_once_and_may_have_a_journal(store: TestStore) -> None:
    link, runner = Link(), ScriptedRunner(echo)
    async with (
        opened(store) as client,
        link.opened(store.connecting()) as engine,
        Worker(engine, runner, lease_ttl=30),
    ):
        first = await client.executions.submit("job")
        await wait_until_completed(client, first.id)
        await runner.next()
        await asyncio.sleep(0.2)  # The worker has found no further work.
        try:
            link.drops_replies = True
            execution = await client.executions.submit("job")
            await wait_for_state(client, execution.id, State.ACTIVE)
        finally:
            link.heal()
        await wait_until_completed(client, execution.id)
    [run] = [runner.begun.get_nowait() for _ in range(runner.begun.qsize())]
    assert (run.lease.epoch, run.lease.has_journal) == (1, True)


async def test_lease_is_released_only_after_its_code_has_stopped(store: TestStore) -> None:
    code_stopped = asyncio.Event()

    class Stubborn(ScriptedRun):
        async def wait_stopped(self) -> None:
            await code_stopped.wait()

    async def fail(run: ScriptedRun) -> None:
        run.__class__ = Stubborn
        raise LookupError("a mistake in our own code")

    runner = ScriptedRunner(fail)
    async with opened(store) as engine:
        execution = await engine.executions.submit("job")
        async with Worker(engine, runner, lease_ttl=30) as worker:
            await runner.next()
            await asyncio.sleep(0.3)
            assert [lease.execution_id for lease in await engine.leases.held(worker.id.instance)] == [execution.id]
            code_stopped.set()
            await wait_for_state(engine, execution.id, State.DELAYED)


async def test_run_of_a_lost_lease_stops_when_its_plain_function_returns(store: TestStore) -> None:
    started, may_return = threading.Event(), threading.Event()
    app = App(":memory:")

    def wait() -> None:
        started.set()
        may_return.wait(20)

    @app.task(name="job")
    async def job() -> None:
        await step(wait)

    async with opened(store) as engine:
        run = await begin_run(engine, app)
        running = asyncio.create_task(run.run())
        await asyncio.to_thread(started.wait, 20)
        run.lease_lost(Refused("lease_expired", "the lease expired"))
        assert await running is False
        stopping = asyncio.create_task(run.wait_stopped())
        await asyncio.sleep(0.1)
        assert not stopping.done()
        may_return.set()
        async with asyncio.timeout(20):
            await stopping


async def test_run_writes_nothing_after_the_clock_of_its_worker_has_ended_the_lease(store: TestStore) -> None:
    app, is_held = App(":memory:"), True

    async def outlast() -> str:
        nonlocal is_held
        is_held = False
        return "late"

    @app.task(name="job")
    async def job() -> str:
        await step(outlast)
        return "done"

    async with opened(store) as engine:
        run = await begin_run(engine, app, lambda: is_held)
        assert await run.run() is False
        assert run.loss is not None and run.loss.code == "lease_expired"
        execution = await engine.executions.describe(run.lease.execution_id)
        assert (execution.state, await engine.executions.steps(execution.id)) == (State.ACTIVE, [])


async def begin_run(engine: Engine, app: App, is_held: IsHeld = always_held) -> TaskRun:
    """Submit a job, claim it, and return its run, which has not started."""
    await engine.executions.submit("job", b"{}")
    [lease] = await engine.leases.claim(["default"], "by-hand", lease_ttl=60)
    return TaskRunner(app, ThreadPools(4)).begin(engine, lease, is_held)
