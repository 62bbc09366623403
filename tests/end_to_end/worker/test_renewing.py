"""Leases are kept whatever the event loop does, and what becomes of them is told."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from flowfabric import App
from flowfabric.engine import State, StoreOptions, connect
from flowfabric.worker import Worker
from tests.end_to_end.worker.performers import (
    Performer,
    Told,
    completed,
    nobody_writes,
    until,
    until_drained,
    until_in,
    until_lost,
    worker_on,
)
from tests.scenarios import KEEPING
from tests.stores import PostgresTestStore, TestStore, opened

SHORT_S = 3.0
_A_MOMENT = timedelta(seconds=1)


async def kept_for_two_terms(told: Told) -> None:
    """Works until it has been renewed for longer than two terms, then completes."""
    began = time.monotonic()
    while time.monotonic() - began < 2.2 * SHORT_S:
        await told.renewals.get()
    await told.complete()


async def blocks_the_loop(told: Told) -> None:
    """Holds up the whole event loop for longer than two terms, which nobody should do."""
    time.sleep(2.2 * SHORT_S)  # noqa: ASYNC251 - that is the point
    await told.complete()


async def test_a_lease_is_renewed_while_it_is_worked_on(store: TestStore) -> None:
    performer = Performer(kept_for_two_terms)
    async with opened(store) as engine:
        answer = await engine.executions.submit("job")
        async with worker_on(store, engine, performer, lease_ttl=SHORT_S):
            await completed(engine, answer.id)
    assert len(performer.ids) == 1


async def test_a_blocked_loop_loses_no_lease_and_is_told_once(
    store: TestStore, caplog: pytest.LogCaptureFixture
) -> None:
    performer = Performer(blocks_the_loop)
    async with opened(store) as engine:
        answer = await engine.executions.submit("job")
        async with worker_on(store, engine, performer, lease_ttl=SHORT_S):
            await completed(engine, answer.id)
    assert len(performer.ids) == 1
    assert caplog.text.count("the event loop has not answered") == 1
    assert "blocks_the_loop" in caplog.text


async def test_a_worker_of_an_app_notes_its_renewals_and_tells_of_them_if_it_should(store: TestStore) -> None:
    options: StoreOptions = {"durable": False, "renewal_events": True}
    if isinstance(store, PostgresTestStore):
        options["schema"] = store.schema
    app = App(store.url, options=options)
    noticed = asyncio.Event()

    @app.task
    async def patient() -> None:
        await noticed.wait()

    async with app, opened(store) as other, other.events.subscribe(["lease"]) as events:
        handle = await patient.submit()
        async with app.worker(lease="1s"), asyncio.timeout(20):
            while (event := await anext(events)).name != "renewed":
                pass
            late_by = other.now() - event.at
            noticed.set()
            await handle
    assert event.execution_id == handle.id
    # Nobody looks by itself that soon.
    assert late_by < timedelta(seconds=5)


async def test_a_store_in_memory_is_renewed_in_the_loop() -> None:
    performer = Performer(kept_for_two_terms)
    async with connect(":memory:") as engine:
        answer = await engine.executions.submit("job")
        async with Worker(engine, performer, lease_ttl=SHORT_S):
            await completed(engine, answer.id)
    assert len(performer.ids) == 1


async def test_a_revoked_lease_is_told(store: TestStore) -> None:
    performer = Performer(until_lost)
    async with opened(store) as engine, opened(store) as operator:
        answer = await engine.executions.submit("job", policy=KEEPING)
        async with worker_on(store, engine, performer, lease_ttl=SHORT_S):
            told = await performer.next()
            await operator.operator.revoke_lease(answer.id)
            async with asyncio.timeout(20):
                assert (await told.lost).code == "lease_revoked"


async def test_a_lease_that_is_claimed_anew_is_lost_before_the_next_renewal(store: TestStore) -> None:
    """Revoked, the execution waits again, and the same worker claims it: the former performance must stop first."""

    async def stops(told: Told) -> None:
        if len(performer.ids) == 1:
            await told.lost
        else:
            await told.complete()

    performer = Performer(stops)
    async with opened(store) as engine:
        answer = await engine.executions.submit("job")
        async with worker_on(store, engine, performer, lease_ttl="1h"):
            told = await performer.next()
            await engine.operator.revoke_lease(answer.id)
            await completed(engine, answer.id)
    assert told.lost.result().code == "stale_lease"


async def test_a_request_to_cancel_is_told_once_with_its_time(store: TestStore) -> None:
    async def cleans_up(told: Told) -> None:
        await told.cancel
        # Asking twice would be an error of the future.
        for _ in range(2):
            await told.renewals.get()
        await told.engine.leases.cancel(told.lease.fence)

    performer = Performer(cleans_up)
    async with opened(store) as engine, opened(store) as operator:
        answer = await engine.executions.submit("job")
        async with worker_on(store, engine, performer, lease_ttl=SHORT_S):
            told = await performer.next()
            await operator.operator.cancel(answer.id, grace="1m")
            async with asyncio.timeout(20):
                assert (await told.cancel) > datetime.now(UTC)
            await until_in(engine, answer.id, State.CANCELLED)


async def test_a_lease_that_cannot_be_renewed_is_told_lost_before_its_term_is_over(store: TestStore) -> None:
    performer = Performer(until_lost)
    async with opened(store) as engine:
        await engine.executions.submit("job")
        async with worker_on(store, engine, performer, lease_ttl=3, reconcile=False, grace=0):
            told = await performer.next()
            async with nobody_writes(store), asyncio.timeout(20):
                assert (await told.lost).code == "lease_expired"
                assert datetime.now(UTC) - told.lease.expires_at < _A_MOMENT


async def test_what_cannot_be_started_in_time_is_given_back(store: TestStore) -> None:
    """The slots are quick at first, so the worker claims ahead; then they are all taken for long."""

    async def quick_then_slow(told: Told) -> None:
        if told.lease.payload == b"slow":
            await until_drained(told)
        else:
            await told.complete()

    performer = Performer(quick_then_slow)
    async with opened(store) as engine:
        quick = [await engine.executions.submit("job") for _ in range(20)]
        slow = [await engine.executions.submit("job", b"slow") for _ in range(5)]
        async with worker_on(store, engine, performer, lease_ttl=SHORT_S, concurrency=2) as worker:
            for answer in quick:
                await completed(engine, answer.id)

            async def holds_what_runs() -> bool:
                return len(await engine.leases.held(worker.id.instance)) == 2 == worker.busy

            await until(holds_what_runs)
        for answer in slow:
            assert (await engine.executions.describe(answer.id)).attempt_index == 0
