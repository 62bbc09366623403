"""One program that uses everything, as a coroutine function and as a plain one: it comes to the same."""

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
    """What happened, in order; the first call of `flaky` fails."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def add(self, entry: str) -> str:
        self.entries.append(entry)
        return entry

    def flaky(self) -> str:
        self.entries.append("flaky")
        if self.entries.count("flaky") == 1:
            raise ConnectionError
        return "at last"

    def fail(self) -> str:
        raise ValueError("no")


def asynchronous(app: App, log: Log) -> Any:
    """One program that uses everything, as a coroutine function."""

    @app.task
    async def square(number: int) -> int:
        return number * number

    @app.task(signals=[GO])
    async def program(name: str) -> list[str]:
        async def branch() -> str:
            await sleep("10m")
            return await step(log.add, "branch")

        found = [await step(log.add, name), await step(log.flaky), now().isoformat()]
        match await approval("ask", by=["ann", "bob"], timeout="1d"):
            case Approved(by=who):
                found.append(f"approved by {', '.join(sorted(who))}")
            case Rejected() | TimedOut():
                found.append("no")
        reply = callback("reply", str, timeout="1h")
        found.append(str(len(await reply.token()) > 0))
        match await gather(branch(), reply, square.run(3)):
            case (str(word), TimedOut(), int(number)):
                found.append(f"{word} timed out {number}")
        match await wait_signal(GO, timeout="1h"):
            case Received(value=value):
                found.append(f"received {value}")
            case TimedOut():
                found.append("nothing received")
        won = await race(sleep("2h"), step(log.add, "fast"))
        settled = await settle(step(log.add, "good"), step.options(retries=0)(log.fail))
        found.append(f"{won.index} {[type(item).__name__ for item in settled]}")
        try:
            async with saga() as undo:
                undo.add(log.add, "undone")
                await step.options(retries=0)(log.fail)
        except Exception as error:
            found.append(type(error).__name__)
        return found

    return program


def plain(app: App, log: Log) -> Any:
    """The same program as a plain function."""

    @app.task
    def square(number: int) -> int:
        return number * number

    @app.task(signals=[GO])
    def program(name: str) -> list[str]:
        def branch() -> str:
            sync.sleep("10m")
            return sync.step(log.add, "branch")

        found = [sync.step(log.add, name), sync.step(log.flaky), sync.now().isoformat()]
        match sync.approval("ask", by=["ann", "bob"], timeout="1d").wait():
            case Approved(by=who):
                found.append(f"approved by {', '.join(sorted(who))}")
            case Rejected() | TimedOut():
                found.append("no")
        reply = sync.callback("reply", str, timeout="1h")
        found.append(str(len(reply.token()) > 0))
        match sync.gather(branch, reply.wait, lambda: square.sync.run(3)):
            case (str(word), TimedOut(), int(number)):
                found.append(f"{word} timed out {number}")
        match sync.wait_signal(GO, timeout="1h"):
            case Received(value=value):
                found.append(f"received {value}")
            case TimedOut():
                found.append("nothing received")
        won = sync.race(lambda: sync.sleep("2h"), lambda: sync.step(log.add, "fast"))
        settled = sync.settle(lambda: sync.step(log.add, "good"), lambda: sync.step.options(retries=0)(log.fail))
        found.append(f"{won.index} {[type(item).__name__ for item in settled]}")
        try:
            with sync.saga() as undo:
                undo.add(log.add, "undone")
                sync.step.options(retries=0)(log.fail)
        except Exception as error:
            found.append(type(error).__name__)
        return found

    return program


COLOURS = pytest.mark.parametrize("colour", [asynchronous, plain], ids=["async", "sync"])


async def drive(kit: Kit, program: Any) -> list[str]:
    """Runs the program with everybody that it asks, and answers what it found but for the time."""
    handle: Handle[list[str]] = await kit.start(program, "begun")
    await kit.advance("1m")
    for who in ("ann", "bob"):
        await kit.approve(handle, "ask", by=who)
    await kit.signal(handle, GO, 7)
    found = await kit.finish(handle)
    del found[2]
    return found


def check(found: list[str], log: Log) -> None:
    """What it comes to, and what happened."""
    assert found == [
        "begun", "at last", "approved by ann, bob", "True", "branch timed out 9", "received 7",
        f"1 ['{Completed.__name__}', '{Failed.__name__}']", "StepFailed",
    ]  # fmt: skip
    assert log.entries == ["begun", "flaky", "flaky", "branch", "fast", "good", "undone"]


@COLOURS
async def test_the_same_program_comes_to_the_same_in_both_colours(
    app: App, kit: Kit, colour: Callable[[App, Log], Any]
) -> None:
    log = Log()

    check(await drive(kit, colour(app, log)), log)


@COLOURS
@pytest.mark.parametrize("replay", ["suspensions", "every record"])
async def test_the_same_program_comes_to_the_same_under_forced_replay(
    app: App, colour: Callable[[App, Log], Any], replay: Any
) -> None:
    log = Log()
    program = colour(app, log)
    async with Kit(app, replay=replay) as kit:
        found = await drive(kit, program)

    check(found, log)


@COLOURS
async def test_the_same_program_records_the_same_paths_in_both_colours(
    app: App, memory_kit: Kit, colour: Callable[[App, Log], Any]
) -> None:
    handle: Handle[list[str]] = await memory_kit.start(colour(app, Log()), "begun")

    assert await memory_kit.steps(handle) == ["Log.add", "Log.flaky"]
    await memory_kit.advance("1m")
    assert await memory_kit.steps(handle) == ["Log.add", "Log.flaky", "now", "approval:ask"]
