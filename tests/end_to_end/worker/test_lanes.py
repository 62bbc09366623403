"""A worker serves the lanes of its app unless it is given others."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from flowfabric import App, InvalidRequest
from tests.stores import TestStore, opened


def make_app() -> App:
    app = App("never-opened.db")

    @app.task
    async def order() -> str:
        return "ordered"

    @app.task(lane="mail")
    async def send() -> str:
        return "sent"

    return app


async def test_worker_serves_all_lanes_of_its_app_by_default(store: TestStore) -> None:
    app = make_app()
    async with opened(store) as engine:
        app.engines.adopt(engine)
        async with app.worker():
            [worker] = (await engine.workers.list()).items
            assert await app.tasks["send"].run() == "sent"
    assert worker.lanes == ("default", "mail")


async def test_worker_warns_about_tasks_on_lanes_that_it_does_not_serve(
    store: TestStore, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app()
    async with opened(store) as engine:
        app.engines.adopt(engine)
        async with app.worker(lanes=["default"]):
            [worker] = (await engine.workers.list()).items
    assert worker.lanes == ("default",)
    [record] = [record for record in caplog.records if "does not serve" in record.message]
    assert (record.name, record.levelno) == ("flowfabric.worker", logging.WARNING)
    assert record.message.startswith("This worker does not serve the lanes of send (lane mail)")


async def test_text_as_lanes_of_a_worker_is_refused(store: TestStore) -> None:
    app = make_app()
    async with opened(store) as engine:
        app.engines.adopt(engine)
        with pytest.raises(InvalidRequest, match="lanes must be a list of names, not str"):
            async with app.worker(lanes="default"):
                raise AssertionError("the worker has started")


def test_text_as_lanes_of_a_foreground_worker_is_refused(tmp_path: Path) -> None:
    app = App(str(tmp_path / "run.db"))
    with pytest.raises(InvalidRequest, match="lanes must be a list of names, not str"):
        app.run(lanes="default")
