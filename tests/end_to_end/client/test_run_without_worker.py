"""A program that waits for a result logs one warning if no live worker can run the task."""

from __future__ import annotations

import asyncio
import logging

import pytest

from flowfabric import App
from flowfabric.app import submit
from flowfabric.engine import Engine


async def run_until(log: pytest.LogCaptureFixture, work: asyncio.Future[str], text: str) -> None:
    async with asyncio.timeout(20):
        while text not in log.text and not work.done():  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0.01)


async def test_run_without_a_live_worker_warns_once_with_what_to_start(
    app: App, engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "_WARN_AFTER_S", 0.05)

    @app.task(lane="mail")
    async def send(address: str) -> str:
        return address

    waiting = asyncio.gather(*(send.run(f"{number}@example.org") for number in range(3)))
    await asyncio.wait([waiting], timeout=0.5)
    [record] = [record for record in caplog.records if record.name == "flowfabric.app"]
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        'send has been waiting for 0.05 s: no live worker serves lane "mail"; start a worker of its app: '
        "flowfabric worker MODULE:APP"
    )
    async with app.worker():
        assert len(await waiting) == 3
        assert await send.run("a") == "a"
    assert len([record for record in caplog.records if record.name == "flowfabric.app"]) == 1


async def test_run_warns_about_a_kind_that_no_live_worker_runs(
    app: App, engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "_WARN_AFTER_S", 0.05)
    await engine.workers.register("other", ["default"], kinds=["other"])

    @app.task
    async def send() -> str:
        return "sent"

    waiting = asyncio.ensure_future(send.run())
    await run_until(caplog, waiting, "has been waiting")
    assert 'no live worker on lane "default" runs "send"' in caplog.text
    async with app.worker():
        assert await waiting == "sent"


async def test_run_with_a_busy_worker_or_a_delay_does_not_warn(
    app: App, engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "_WARN_AFTER_S", 0.02)

    @app.task
    async def send() -> str:
        await asyncio.sleep(0.1)
        return "sent"

    later = asyncio.ensure_future(send.options(delay="200ms").run())
    await asyncio.wait([later], timeout=0.1)
    async with app.worker():
        assert await send.run() == await later == "sent"
    assert "has been waiting" not in caplog.text
