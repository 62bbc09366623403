"""Workers register the version of their code, and release work that their code does not match."""

from __future__ import annotations

import asyncio
import logging
from unittest import mock

import pytest

from flowfabric import App, Diverged, changed, sleep, step
from flowfabric.engine import Engine, State
from flowfabric.runtime.runner import code_version
from flowfabric.worker import active_runs
from tests.end_to_end.worker.scripted_runs import ScriptedRun, ScriptedRunner, make_worker, wait_for_state
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
        await sleep("50ms")
        done.append(await step(str.title, order))
        return done

    return app


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
            versions = {worker.version for worker in await engine.workers.list()}
    assert versions == {"v7", code_version(old), code_version(new)}
    assert len({*versions}) == 3
    assert code_version(old) == code_version(make_app(engine, None, is_new=False))


async def test_old_worker_releases_work_of_new_code_and_the_new_worker_completes_it(
    store: TestStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "flowfabric")
    async with opened(store) as engine, opened(store) as other:
        new, old = make_app(engine, "new", is_new=True), make_app(other, "old", is_new=False)
        refund = new.tasks["refund"]
        # The new worker begins the execution, and both workers are there when it continues.
        async with new.worker(concurrency=1):
            handles = [await refund.submit(f"o-{number}") for number in range(20)]
            async with old.worker(concurrency=20):
                results = await asyncio.wait_for(asyncio.gather(*handles), 60)
    expected = [[[f"O-{n}", f"o-{n}", f"O-{n}"], [f"O-{n}", f"O-{n}"]] for n in range(20)]
    assert all(result in expected[n] for n, result in enumerate(results))
    releases = [record.getMessage() for record in caplog.records if "does not match code version" in record.message]
    assert releases, "no execution changed from the new worker to the old one"
    assert all("does not match code version old and is released for a worker" in message for message in releases)


async def test_single_worker_whose_code_diverged_holds_the_execution_immediately(store: TestStore) -> None:
    async with opened(store) as engine:
        new, old = make_app(engine, "new", is_new=True), make_app(engine, "old", is_new=False)
        async with new.worker():
            handle = await new.tasks["refund"].submit("o-17")
            await wait_for_state(engine, handle.id, State.DELAYED)
        async with old.worker():
            with pytest.raises(Diverged):
                await old.handle(handle.id)


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
