"""Workers register the version of their code, and release work that their code does not match."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from unittest import mock

import pytest

from flowfabric import App, Diverged, Handle, changed, sleep, step
from flowfabric.engine import Engine, Registered, State
from flowfabric.engine.workers import Workers
from flowfabric.runtime.runner import code_version
from flowfabric.worker import active_runs
from tests.end_to_end.worker.scripted_runs import (
    ScriptedRun,
    ScriptedRunner,
    make_worker,
    until,
    wait_for_state,
    wait_until_completed,
)
from tests.stores import TestStore, opened


def make_app(engine: Engine, version: str | None, *, is_new: bool) -> App:
    """Return an app with the old or the new code of a task, whose new call is guarded."""
    app = App("never-opened.db", code_version=version)
    app.engines.adopt(engine)

    @app.task
    async def refund(order: str) -> list[str]:
        done = [await step(str.upper, order)]
        if is_new and changed("audit"):
            done.append(await step(str.lower, order))
        await sleep("1s")
        done.append(await step(str.title, order))
        return done

    return app


async def has_diverged(handle: Handle[Any]) -> bool:
    """Return True if a worker has released the execution because its code diverged."""
    return any(event.reason == "diverged" for event in await handle.history())


async def test_worker_registers_the_given_version_or_a_digest_of_its_code(store: TestStore) -> None:
    async with opened(store) as engine:
        given, old, new = (
            make_app(engine, "v7", is_new=False),
            make_app(engine, None, is_new=False),
            App("never-opened.db"),
        )
        new.engines.adopt(engine)

        @new.task
        async def other() -> None: ...

        async with given.worker(), old.worker(), new.worker():
            versions = {worker.version for worker in (await engine.workers.list()).items}
    assert versions == {"v7", code_version(old), code_version(new)}
    assert len({*versions}) == 3
    assert code_version(old) == code_version(make_app(engine, None, is_new=False))


async def test_old_worker_releases_work_of_new_code_and_the_new_worker_completes_it(
    store: TestStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "flowfabric")
    is_free, is_busy = asyncio.Event(), asyncio.Event()
    async with opened(store) as engine, opened(store) as other:
        new, old = make_app(engine, "new", is_new=True), make_app(other, "old", is_new=False)

        @new.task
        async def block() -> None:
            is_busy.set()
            await is_free.wait()

        async with new.worker(concurrency=1):
            handle = await new.tasks["refund"].submit("o-17")
            await wait_for_state(engine, handle.id, State.DELAYED)
            # The new worker is busy while the old one meets the journal of the new code.
            _ = await block.submit()
            await is_busy.wait()
            async with old.worker():
                await until(lambda: has_diverged(handle))
                explanation = await engine.operator.explain(handle.id)
                is_free.set()
                assert await handle == ["O-17", "o-17", "O-17"]
    [release] = [record.getMessage() for record in caplog.records if "no longer matches" in record.getMessage()]
    assert release.startswith(f"refund {handle.id}: the code no longer matches the journal\n")
    assert "The execution is released for a worker with other code than version old, until " in release
    assert "Waiting for a worker with other code" in explanation.sentence
    assert explanation.facts["code_versions"] == ("new",)


async def test_single_worker_whose_code_diverged_holds_the_execution_immediately(store: TestStore) -> None:
    async with opened(store) as engine:
        new, old = make_app(engine, "new", is_new=True), make_app(engine, "old", is_new=False)
        async with new.worker():
            handle = await new.tasks["refund"].submit("o-17")
            await wait_for_state(engine, handle.id, State.DELAYED)
        async with old.worker():
            with pytest.raises(Diverged):
                await old.handle(handle.id)


async def test_worker_registers_before_it_claims(store: TestStore) -> None:
    order: list[str] = []

    async def begin(run: ScriptedRun) -> None:
        order.append("began")
        await run.complete()

    async with opened(store) as engine:
        register = Workers.register

        async def register_slowly(workers: Workers, *args: Any, **options: Any) -> Registered:
            for _ in range(10):
                await engine.executions.count()
            registered = await register(workers, *args, **options)
            order.append("registered")
            return registered

        id_ = (await engine.executions.submit("job")).id
        with mock.patch.object(Workers, "register", register_slowly):
            async with make_worker(store, engine, ScriptedRunner(begin)):
                await wait_until_completed(engine, id_)
    assert order == ["registered", "began"]


async def test_run_that_keeps_failing_in_our_code_is_held_with_the_traceback(store: TestStore) -> None:
    async def fail(run: ScriptedRun) -> None:
        raise ZeroDivisionError("a mistake of ours")

    runner = ScriptedRunner(fail)
    async with opened(store) as engine:
        with mock.patch.object(active_runs, "_ERROR_PAUSE_S", 0.02):
            async with make_worker(store, engine, runner):
                id_ = (await engine.executions.submit("job")).id
                await wait_for_state(engine, id_, State.BLOCKED)
        held = await engine.executions.describe(id_)
        explanation = await engine.operator.explain(id_)
    assert len(runner.ids) == 6
    assert (held.hold_reason, held.attempt_index, held.retry_count) == ("run_failed", 0, 0)
    assert "ZeroDivisionError: a mistake of ours" in (held.hold_report or "")
    assert "Held by its worker" in explanation.sentence
