"""Tests of waitpoints.declare, by which a worker accepts signals that the submission did not declare."""

from __future__ import annotations

from flowfabric import App, Signal, wait_signal
from flowfabric.engine import Engine, NotFound, Satisfied, StandingWaitpoint, State
from tests.end_to_end.worker.scripted_runs import wait_for_state
from tests.expectations import nothing_written, refused
from tests.scenarios import leased
from tests.stores import TestStore, opened


async def test_declared_signal_is_kept_until_a_wait_uses_it(engine: Engine) -> None:
    lease = await leased(engine)
    await refused(engine.signals.send(lease.execution_id, "go", b"1"), "waitpoint_not_found", NotFound)
    assert await engine.waitpoints.declare(lease.fence, ["go", "stop"]) == ("go", "stop")
    await engine.signals.send(lease.execution_id, "go", b"1")
    assert isinstance(await engine.leases.suspend(lease.fence, [StandingWaitpoint("go")]), Satisfied)


async def test_repeated_declaration_changes_nothing(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine, signals=["go"])
    assert await engine.waitpoints.declare(lease.fence, {"go": None, "stop": {"type": "integer"}}) == ("stop",)
    async with nothing_written(store):
        assert await engine.waitpoints.declare(lease.fence, ["stop", "go"]) == ()


async def test_signals_declared_by_a_worker_are_declared_again_after_a_replay(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.waitpoints.declare(lease.fence, ["go"])
    await engine.leases.fail(lease.fence, "broken", failure_class="permanent")
    await engine.operator.replay(lease.execution_id)
    await engine.signals.send(lease.execution_id, "go", b"1")


async def test_task_with_declared_signals_works_when_it_was_submitted_without_its_app(store: TestStore) -> None:
    go = Signal("go", int)
    async with opened(store) as engine:
        app = App("never-opened.db")
        app.engines.adopt(engine)

        @app.task(signals=[go])
        async def job(number: int) -> int:
            first, second = await wait_signal(go), await wait_signal(go)
            return number + first.value + second.value

        submitted = await engine.executions.submit("job", b'{"number": 1}')
        async with app.worker():
            await wait_for_state(engine, submitted.id, State.SUSPENDED)
            handle = job.handle(submitted.id)
            await handle.signal(go, 10)
            await handle.signal(go, 100)
            assert await handle == 111
        assert (await handle.status()).retry_count == 0
