"""Leases are renewed while the event loop is blocked, and the runs are notified of every loss."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from flowfabric import App
from flowfabric.engine import State, StoreOptions, connect
from flowfabric.worker import Worker
from tests.end_to_end.worker.scripted_runs import (
    ScriptedRun,
    ScriptedRunner,
    block_writes,
    make_worker,
    until,
    until_drained,
    until_lost,
    wait_for_state,
    wait_until_completed,
)
from tests.scenarios import KEEPING
from tests.stores import PostgresTestStore, TestStore, opened

LEASE_TTL_S = 3.0
_TOLERANCE = timedelta(seconds=1)


async def complete_after_two_terms(run: ScriptedRun) -> None:
    """Work until the lease has been renewed for more than two terms, then complete."""
    began = time.monotonic()
    while time.monotonic() - began < 2.2 * LEASE_TTL_S:
        await run.renewals.get()
    await run.complete()


async def block_the_loop(run: ScriptedRun) -> None:
    """Block the event loop for more than two lease terms, then complete."""
    time.sleep(2.2 * LEASE_TTL_S)  # noqa: ASYNC251 - the test blocks the loop on purpose
    await run.complete()


async def test_lease_is_renewed_while_its_run_works(store: TestStore) -> None:
    runner = ScriptedRunner(complete_after_two_terms)
    async with opened(store) as engine:
        execution = await engine.executions.submit("job")
        async with make_worker(store, engine, runner, lease_ttl=LEASE_TTL_S):
            await wait_until_completed(engine, execution.id)
    assert len(runner.ids) == 1


async def test_blocked_event_loop_keeps_its_lease_and_is_logged_once(
    store: TestStore, caplog: pytest.LogCaptureFixture
) -> None:
    runner = ScriptedRunner(block_the_loop)
    async with opened(store) as engine:
        execution = await engine.executions.submit("job")
        async with make_worker(store, engine, runner, lease_ttl=LEASE_TTL_S):
            await wait_until_completed(engine, execution.id)
    assert len(runner.ids) == 1
    assert caplog.text.count("Event loop has been blocked") == 1
    assert "block_the_loop" in caplog.text


async def test_app_worker_publishes_renewal_events_if_enabled(store: TestStore) -> None:
    options: StoreOptions = {"durable": False, "renewal_events": True}
    if isinstance(store, PostgresTestStore):
        options["schema"] = store.schema
    app = App(store.url, options=options)
    event_seen = asyncio.Event()

    @app.task
    async def patient() -> None:
        await event_seen.wait()

    async with app, opened(store) as other, other.events.subscribe(["lease"]) as events:
        handle = await patient.submit()
        async with app.worker(lease="1s"), asyncio.timeout(20):
            while (event := await anext(events)).name != "renewed":
                pass
            late_by = other.now() - event.at
            event_seen.set()
            await handle
    assert event.execution_id == handle.id
    # Polling alone would take longer, so the listener was notified.
    assert late_by < timedelta(seconds=5)


async def test_lease_in_memory_is_renewed_in_the_event_loop() -> None:
    runner = ScriptedRunner(complete_after_two_terms)
    async with connect(":memory:") as engine:
        execution = await engine.executions.submit("job")
        async with Worker(engine, runner, lease_ttl=LEASE_TTL_S):
            await wait_until_completed(engine, execution.id)
    assert len(runner.ids) == 1


async def test_run_is_notified_of_a_revoked_lease(store: TestStore) -> None:
    runner = ScriptedRunner(until_lost)
    async with opened(store) as engine, opened(store) as operator:
        execution = await engine.executions.submit("job", policy=KEEPING)
        async with make_worker(store, engine, runner, lease_ttl=LEASE_TTL_S):
            run = await runner.next()
            await operator.operator.revoke_lease(execution.id)
            async with asyncio.timeout(20):
                assert (await run.lost).code == "lease_revoked"


async def test_lease_claimed_again_is_reported_lost_before_the_next_renewal(store: TestStore) -> None:
    """After the revocation, the same worker claims the execution again. Its first run must have stopped by then."""

    async def stop_then_complete(run: ScriptedRun) -> None:
        if len(runner.ids) == 1:
            await run.lost
        else:
            await run.complete()

    runner = ScriptedRunner(stop_then_complete)
    async with opened(store) as engine:
        execution = await engine.executions.submit("job")
        async with make_worker(store, engine, runner, lease_ttl="1h"):
            run = await runner.next()
            await engine.operator.revoke_lease(execution.id)
            await wait_until_completed(engine, execution.id)
    # The code depends on whether the worker learned of the revocation before it claimed the execution again.
    assert run.lost.result().code in ("lease_revoked", "stale_lease")


async def test_run_is_notified_once_of_a_cancel_request_with_its_deadline(store: TestStore) -> None:
    async def cancel_after_two_renewals(run: ScriptedRun) -> None:
        await run.cancel
        # A second notification would raise, since the future is already set.
        for _ in range(2):
            await run.renewals.get()
        await run.engine.leases.cancel(run.lease.fence)

    runner = ScriptedRunner(cancel_after_two_renewals)
    async with opened(store) as engine, opened(store) as operator:
        execution = await engine.executions.submit("job")
        async with make_worker(store, engine, runner, lease_ttl=LEASE_TTL_S):
            run = await runner.next()
            await operator.operator.cancel(execution.id, grace="1m")
            async with asyncio.timeout(20):
                assert (await run.cancel) > datetime.now(UTC)
            await wait_for_state(engine, execution.id, State.CANCELLED)


async def test_run_is_notified_when_its_lease_cannot_be_renewed_in_time(store: TestStore) -> None:
    runner = ScriptedRunner(until_lost)
    async with opened(store) as engine:
        await engine.executions.submit("job")
        async with make_worker(store, engine, runner, lease_ttl=3, reconcile=False, grace=0):
            run = await runner.next()
            async with block_writes(store), asyncio.timeout(20):
                assert (await run.lost).code == "lease_expired"
                assert datetime.now(UTC) - run.lease.expires_at < _TOLERANCE


async def test_claimed_executions_that_cannot_start_in_time_are_released(store: TestStore) -> None:
    """The first runs are quick, so the worker claims ahead; then slow runs occupy all slots."""

    async def quick_then_slow(run: ScriptedRun) -> None:
        if run.lease.payload == b"slow":
            await until_drained(run)
        else:
            await run.complete()

    runner = ScriptedRunner(quick_then_slow)
    async with opened(store) as engine:
        quick = [await engine.executions.submit("job") for _ in range(20)]
        slow = [await engine.executions.submit("job", b"slow") for _ in range(5)]
        async with make_worker(store, engine, runner, lease_ttl=LEASE_TTL_S, concurrency=2) as worker:
            for execution in quick:
                await wait_until_completed(engine, execution.id)

            async def holds_only_running_leases() -> bool:
                return len(await engine.leases.held(worker.id.instance)) == 2 == worker.busy

            await until(holds_only_running_leases)
        for execution in slow:
            assert (await engine.executions.describe(execution.id)).attempt_index == 0
