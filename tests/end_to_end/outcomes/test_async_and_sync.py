"""A program that uses every durable call has the same result as a coroutine function and as a plain function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flowfabric import (
    App,
    Approved,
    Backoff,
    Completed,
    Failed,
    Handle,
    Received,
    Rejected,
    Signal,
    TimedOut,
    approval,
    callback,
    gather,
    now,
    race,
    saga,
    settle,
    sleep,
    step,
    sync,
    wait_signal,
)
from flowfabric.testing import Kit

GO = Signal("go", int)
FAST = Backoff(initial=0.01, jitter=False)


class Log:
    """Records the effects of a program in order. The first call of `flaky` fails."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def add(self, entry: str) -> str:
        self.entries.append(entry)
        return entry

    def flaky(self) -> str:
        self.entries.append("flaky")
        if self.entries.count("flaky") == 1:
            raise ConnectionError
        return "succeeded"

    def fail(self) -> str:
        raise ValueError("no")


def make_async_program(app: App, log: Log) -> Any:
    """Return a program that uses every durable call, as a coroutine function."""

    @app.task
    async def square(number: int) -> int:
        return number * number

    @app.task(signals=[GO])
    async def program(name: str) -> list[str]:
        async def branch() -> str:
            await sleep("10m")
            return await step(log.add, "branch")

        results = [await step(log.add, name), await step(log.flaky), now().isoformat()]
        match await approval("ask", by=["ann", "bob"], timeout="1d"):
            case Approved(by=approvers):
                results.append(f"approved by {', '.join(sorted(approvers))}")
            case Rejected() | TimedOut():
                results.append("no")
        reply = callback("reply", str, timeout="1h")
        results.append(str(len(await reply.token()) > 0))
        match await gather(branch(), reply, square.run(3)):
            case (str(word), TimedOut(), int(number)):
                results.append(f"{word} timed out {number}")
        match await wait_signal(GO, timeout="1h"):
            case Received(value=value):
                results.append(f"received {value}")
            case TimedOut():
                results.append("nothing received")
        winner = await race(sleep("2h"), step(log.add, "fast"))
        settled = await settle(step(log.add, "good"), step.options(retries=0)(log.fail))
        results.append(f"{winner.index} {[type(outcome).__name__ for outcome in settled]}")
        try:
            async with saga() as undo:
                undo.add(log.add, "undone")
                await step.options(retries=0)(log.fail)
        except Exception as error:
            results.append(type(error).__name__)
        return results

    return program


def make_sync_program(app: App, log: Log) -> Any:
    """Return the same program as a plain function."""

    @app.task
    def square(number: int) -> int:
        return number * number

    @app.task(signals=[GO])
    def program(name: str) -> list[str]:
        def branch() -> str:
            sync.sleep("10m")
            return sync.step(log.add, "branch")

        results = [sync.step(log.add, name), sync.step(log.flaky), sync.now().isoformat()]
        match sync.approval("ask", by=["ann", "bob"], timeout="1d").wait():
            case Approved(by=approvers):
                results.append(f"approved by {', '.join(sorted(approvers))}")
            case Rejected() | TimedOut():
                results.append("no")
        reply = sync.callback("reply", str, timeout="1h")
        results.append(str(len(reply.token()) > 0))
        match sync.gather(branch, reply.wait, lambda: square.sync.run(3)):
            case (str(word), TimedOut(), int(number)):
                results.append(f"{word} timed out {number}")
        match sync.wait_signal(GO, timeout="1h"):
            case Received(value=value):
                results.append(f"received {value}")
            case TimedOut():
                results.append("nothing received")
        winner = sync.race(lambda: sync.sleep("2h"), lambda: sync.step(log.add, "fast"))
        settled = sync.settle(lambda: sync.step(log.add, "good"), lambda: sync.step.options(retries=0)(log.fail))
        results.append(f"{winner.index} {[type(outcome).__name__ for outcome in settled]}")
        try:
            with sync.saga() as undo:
                undo.add(log.add, "undone")
                sync.step.options(retries=0)(log.fail)
        except Exception as error:
            results.append(type(error).__name__)
        return results

    return program


BOTH_KINDS = pytest.mark.parametrize("make_program", [make_async_program, make_sync_program], ids=["async", "sync"])


async def drive(kit: Kit, program: Any) -> list[str]:
    """Run the program, send its decisions and its signal, and return its results without the time."""
    handle: Handle[list[str]] = await kit.start(program, "begun")
    await kit.advance("1m")
    for approver in ("ann", "bob"):
        await kit.approve(handle, "ask", by=approver)
    await kit.signal(handle, GO, 7)
    results = await kit.finish(handle)
    del results[2]
    return results


def check(results: list[str], log: Log) -> None:
    """Assert the results and the effects of the program."""
    assert results == [
        "begun",
        "succeeded",
        "approved by ann, bob",
        "True",
        "branch timed out 9",
        "received 7",
        f"1 ['{Completed.__name__}', '{Failed.__name__}']",
        "StepFailed",
    ]
    assert log.entries == ["begun", "flaky", "flaky", "branch", "fast", "good", "undone"]


@BOTH_KINDS
async def test_async_and_sync_program_have_the_same_result(
    app: App, kit: Kit, make_program: Callable[[App, Log], Any]
) -> None:
    log = Log()

    check(await drive(kit, make_program(app, log)), log)


@BOTH_KINDS
@pytest.mark.parametrize("replay", ["suspensions", "every record"])
async def test_program_has_the_same_result_under_forced_replay(
    app: App, make_program: Callable[[App, Log], Any], replay: Any
) -> None:
    log = Log()
    program = make_program(app, log)
    async with Kit(app, replay=replay) as kit:
        results = await drive(kit, program)

    check(results, log)


@BOTH_KINDS
async def test_async_and_sync_program_record_the_same_paths(
    app: App, memory_kit: Kit, make_program: Callable[[App, Log], Any]
) -> None:
    handle: Handle[list[str]] = await memory_kit.start(make_program(app, Log()), "begun")

    assert await memory_kit.steps(handle) == ["Log.add", "Log.flaky"]
    await memory_kit.advance("1m")
    assert await memory_kit.steps(handle) == ["Log.add", "Log.flaky", "now", "approval:ask"]
