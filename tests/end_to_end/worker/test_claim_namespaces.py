"""One worker serves several namespaces: each run acts in the namespace of its lease."""

from __future__ import annotations

import asyncio
import logging

import pytest

from flowfabric import App, step
from flowfabric.engine import Engine, Outcome
from flowfabric.engine.opener import StoreOptions
from tests.stores import PostgresTestStore, TestStore

TENANTS = ("a", "b")


@pytest.fixture
def app(store: TestStore) -> App:
    """Return an app in namespace "pool" whose workers claim from two tenants."""
    options: StoreOptions = {"durable": False, "claim_namespaces": TENANTS}
    if isinstance(store, PostgresTestStore):
        options["schema"] = store.schema
    return App(store.url, namespace="pool", options=options)


async def submit(engine: Engine, tenant: str, kind: str) -> Outcome:
    """Submit an execution for a tenant, and return its outcome."""
    tenant_engine = engine.for_namespace(tenant)
    execution = await tenant_engine.executions.submit(kind, b"{}")
    outcome = await tenant_engine.executions.wait(execution.id, 30)
    assert outcome is not None
    return outcome


async def kinds_in(engine: Engine, namespace: str) -> list[str]:
    return sorted(execution.kind for execution in (await engine.for_namespace(namespace).executions.list()).items)


async def test_children_and_submits_of_a_run_are_stored_in_the_namespace_of_its_lease(app: App) -> None:
    @app.task
    async def child() -> str:
        return "done"

    @app.task
    async def other() -> None: ...

    async def submit_other() -> None:
        _ = await other.submit()

    @app.task
    async def parent() -> str:
        await step(submit_other)
        return await child.run()

    async with app, app.worker(lease="10s"):
        engine = await app.engine()
        for tenant in TENANTS:
            assert (await submit(engine, tenant, "parent")).result == b'"done"'
            assert await kinds_in(engine, tenant) == ["child", "other", "parent"]
        assert await kinds_in(engine, "pool") == []


async def test_worker_is_registered_in_every_namespace_that_it_claims_from(app: App) -> None:
    @app.task
    async def job() -> None: ...

    async with app:
        engine = await app.engine()
        async with app.worker() as worker:
            for tenant in TENANTS:
                [info] = (await engine.for_namespace(tenant).workers.list()).items
                assert info.id == worker.id
            assert (await engine.workers.list()).items == ()
        for tenant in TENANTS:
            assert (await engine.for_namespace(tenant).workers.list()).items == ()


async def test_leases_of_all_namespaces_are_renewed_and_a_cancel_reaches_the_run_within_a_second(app: App) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @app.task
    async def endless() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    async with app, app.worker(lease="1s"):
        tenant = (await app.engine()).for_namespace("b")
        execution = await tenant.executions.submit("endless", b"{}")
        async with asyncio.timeout(30):
            await started.wait()
            first = (await tenant.executions.describe(execution.id)).lease
            while True:
                lease = (await tenant.executions.describe(execution.id)).lease
                assert first is not None and lease is not None
                if lease.renewed_at > first.renewed_at:
                    break
                await asyncio.sleep(0.05)
        await tenant.operator.cancel(execution.id)
        async with asyncio.timeout(10):
            await stopped.wait()


async def test_worker_logs_the_namespaces_that_it_serves(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task
    async def task() -> None: ...

    with caplog.at_level(logging.INFO, "flowfabric.worker"):
        async with app, app.worker():
            pass
    [started] = [record.message for record in caplog.records if record.message.startswith("Worker started")]
    assert ", namespaces a, b; lanes default" in started
