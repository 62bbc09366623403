"""Records of steps: the times of the last try, the number of tries, and the last failure."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from flowfabric import App, Backoff, PermanentError, poll, step
from flowfabric.engine import StepStatus, StepView, view_step
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import kit_on
from tests.stores import TestStore

APP = App("step-records.db")


def flaky(name: str) -> str:
    called.append(name)
    if called.count(name) < 3:
        raise ConnectionError(f"{name} is down")
    return name


def refuse(name: str) -> None:
    raise PermanentError(f"{name} is refused")


def write_row(connection: Any) -> str:
    return flaky("row")


async def write_row_async(connection: Any) -> str:
    return flaky("row")


def is_third(name: str) -> bool:
    called.append(name)
    return called.count(name) == 3


called: list[str] = []


@APP.task(backoff=Backoff(initial="1h"))
async def retry() -> str:
    return await step(flaky, "shop")


@APP.task(backoff=Backoff(initial="1h"))
async def retry_row(is_async: bool) -> str:
    return await (step.tx(write_row_async) if is_async else step.tx(write_row))


@APP.task
async def ask() -> bool:
    return await poll("1h", is_third, "third")


@APP.task
async def refused() -> None:
    await step(refuse, "card")


async def test_record_of_a_step_says_when_it_ran_and_how_long(store: TestStore) -> None:
    @(app := App("times.db")).task
    async def task() -> int:
        return await step(spend, 40)

    async def spend(ms: int) -> int:
        end = time.monotonic() + ms / 1000
        while time.monotonic() < end:
            pass
        return ms

    async with kit_on(store, app) as kit:
        before = kit.now()
        handle = await kit.start(task)
        assert await handle == 40
        [spent] = await _views(kit, handle.id)
    assert (spent.kind, spent.status, spent.value, spent.tries, spent.error) == ("step", "ok", b"40", 1, None)
    assert spent.started_at is not None
    assert spent.took is not None
    assert timedelta(0) <= spent.started_at - before < timedelta(seconds=2)
    assert timedelta(milliseconds=40) <= spent.took < timedelta(seconds=20)


async def test_record_of_a_retried_step_keeps_tries_and_last_failure(store: TestStore) -> None:
    called.clear()
    async with kit_on(store, APP) as kit:
        handle = await kit.start(retry)
        [waiting] = await _views(kit, handle.id)
        assert (waiting.status, waiting.tries, str(waiting.error)) == (
            StepStatus.OPEN,
            1,
            "ConnectionError: shop is down",
        )
        assert waiting.error is not None
        assert 'raise ConnectionError(f"{name} is down")' in waiting.error.traceback
        assert waiting.next_try_at is not None
        assert waiting.next_try_at > kit.now()
        assert waiting.took is not None
        await kit.finish(handle)
        [done] = await _views(kit, handle.id)
    assert (done.status, done.value, done.tries, done.next_try_at) == (StepStatus.OK, b'"shop"', 3, None)
    assert str(done.error) == "ConnectionError: shop is down"
    assert done.started_at is not None
    assert waiting.started_at is not None
    assert done.started_at + timedelta(milliseconds=1) >= waiting.next_try_at, "the times are those of the last try"


async def test_record_of_a_retried_transaction_keeps_tries_and_last_failure(store: TestStore) -> None:
    called.clear()
    async with kit_on(store, APP) as kit:
        handle = await kit.start(retry_row, is_async=store.name != "sqlite")
        assert await kit.finish(handle) == "row"
        [done] = await _views(kit, handle.id)
    assert (done.kind, done.tries, str(done.error)) == ("transaction", 3, "ConnectionError: row is down")
    assert done.took is not None


async def test_record_of_a_poll_counts_its_calls(store: TestStore) -> None:
    called.clear()
    async with kit_on(store, APP) as kit:
        handle = await kit.start(ask)
        assert await kit.finish(handle) is True
        [done] = await _views(kit, handle.id)
    assert (done.kind, done.tries, done.value, done.error) == ("poll", 3, b"true", None)
    assert done.started_at is not None


async def test_record_of_a_failed_step_has_its_failure_and_times(store: TestStore) -> None:
    async with kit_on(store, APP) as kit:
        handle = await kit.start(refused)
        [failed] = await _views(kit, handle.id)
    assert (failed.status, failed.tries, str(failed.error)) == ("failed", 1, "PermanentError: card is refused")
    assert failed.took is not None


async def _views(kit: Kit, id_: Any) -> list[StepView]:
    return [view_step(record) for record in await kit.engine.executions.steps(id_)]
