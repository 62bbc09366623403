"""Test waiting for executions from outside of tasks: the caller gets the result, or an error that names the outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from flowfabric import (
    App,
    Cancelled,
    Completed,
    ExecutionCancelled,
    ExecutionExpired,
    ExecutionFailed,
    ExecutionSkipped,
    Expired,
    Failed,
    Handle,
    Skipped,
    TimedOut,
)
from flowfabric.engine import Engine
from tests.end_to_end.client.manual_worker import claim, complete, fail


@dataclass
class Report:
    rows: int


class Declined(Exception):
    """An exception that the task raises, with the requested amount."""

    def __init__(self, amount: int) -> None:
        super().__init__(amount)
        self.amount = amount


async def test_result_has_its_declared_type(app: App, engine: Engine) -> None:
    @app.task
    async def report() -> Report:
        return Report(3)

    handle = await report.submit()
    await complete(engine, handle.id, {"rows": 3})
    assert await handle == Report(3)
    assert await handle.outcome() == Completed(Report(3))


async def test_untyped_handle_finds_the_task_by_its_kind(app: App, engine: Engine) -> None:
    @app.task
    async def report() -> Report:
        return Report(3)

    id_ = (await report.submit()).id
    await complete(engine, id_, {"rows": 3})
    assert await app.handle(id_) == Report(3)
    assert await make_app_without_tasks(engine).handle(id_) == {"rows": 3}
    restored: Handle[Any] = Handle(make_app_without_tasks(engine), id_, annotation=Report)
    assert await restored == Report(3)


async def test_failure_contains_the_recorded_error(app: App, engine: Engine) -> None:
    @app.task
    async def job() -> None: ...

    handle = await job.submit()
    await fail(engine, handle.id, FileNotFoundError("no such order"))
    with pytest.raises(ExecutionFailed, match="no such order") as failed:
        await handle
    assert failed.value.caused_by(OSError)
    outcome = await handle.outcome()
    assert isinstance(outcome, Failed)
    assert outcome.error == failed.value.error


async def test_declared_class_is_raised(app: App, engine: Engine) -> None:
    @app.task(raises=[Declined])
    async def pay() -> None: ...

    handle = await pay.submit()
    await fail(engine, handle.id, Declined(10), (Declined,))
    with pytest.raises(Declined) as declined:
        await handle
    assert declined.value.amount == 10
    assert isinstance(await handle.outcome(), Failed)


async def test_failure_without_detail_has_message_and_category(app: App, engine: Engine) -> None:
    @app.task(retries=0)
    async def job() -> None: ...

    handle = await job.submit()
    lease = await claim(engine, handle.id)
    await engine.leases.fail(lease.fence, "it broke", category="glass")
    with pytest.raises(ExecutionFailed, match="it broke") as failed:
        await handle
    assert (failed.value.error.category, failed.value.error.type) == ("glass", "glass")


async def test_cancelled_execution_has_its_reason(app: App) -> None:
    @app.task
    async def job() -> None: ...

    handle = await job.submit()
    await handle.cancel("not needed")
    assert await handle.outcome() == Cancelled("not needed")
    with pytest.raises(ExecutionCancelled, match="not needed"):
        await handle


async def test_expired_execution_raises(app: App, engine: Engine) -> None:
    @app.task(deadline=0.01)
    async def job() -> None: ...

    handle = await job.submit()
    async with engine.reconcilers.run_in_background():
        assert isinstance(await handle.outcome(), Expired)
    with pytest.raises(ExecutionExpired):
        await handle


async def test_skipped_member_has_its_reason(app: App, engine: Engine) -> None:
    @app.task
    async def first() -> int:
        return 1

    @app.task
    async def second(number: int) -> int:
        return number

    flow = app.flow()
    a = flow.add(first)
    b = flow.add(second, a.result)
    handle = await flow.submit()
    await fail(engine, handle[a].id, ValueError("no"))
    outcome = await handle[b].outcome()
    assert isinstance(outcome, Skipped)
    assert "first" in outcome.reason
    with pytest.raises(ExecutionSkipped):
        await handle[b]


async def test_unended_execution_times_out(app: App) -> None:
    @app.task
    async def job() -> None: ...

    handle = await job.submit()
    assert isinstance(await handle.outcome(0.01), TimedOut)
    with pytest.raises(TimeoutError, match="has not ended within"):
        await handle.result("10ms")


def make_app_without_tasks(engine: Engine) -> App:
    app = App("never-opened.db")
    app.engines.adopt(engine)
    return app
