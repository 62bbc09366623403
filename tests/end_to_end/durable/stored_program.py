"""A program that makes every durable call, and the journal that it stores at each of its waits.

This file also runs with earlier versions of FlowFabric. This command prints the journals that the version in the folder
EARLIER stores:

    PYTHONPATH=EARLIER/src:. python -m tests.end_to_end.durable.stored_program > stored_journals.json
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

from flowfabric import (
    App,
    ExecutionFailed,
    Handle,
    PermanentError,
    Received,
    Signal,
    Single,
    approval,
    callback,
    changed,
    gather,
    now,
    poll,
    race,
    rng,
    saga,
    settle,
    sleep,
    step,
    uuid4,
    wait_for,
    wait_signal,
)
from flowfabric.testing import Kit

app = App("stored.db")
GO, HINT = Signal("go", int), Signal("hint", str)
# The names of the functions that steps have called. A replay uses the recorded results and adds no name.
called: list[str] = []
# The program passes the token of its callback to these functions. In a replay the list is empty, so the program does
# not ask the store for the token.
token_receivers: list[Callable[[str], object]] = []


class NoSeats(Exception):
    """An expected failure."""


def note(text: str) -> str:
    called.append(text)
    return text.upper()


async def fail_twice(name: str) -> int:
    called.append(name)
    if called.count(name) < 3:
        raise ConnectionError("not yet")
    return called.count(name)


@step.policy(raises=[NoSeats])
def reserve(seats: int) -> None:
    called.append("reserve")
    raise NoSeats(seats)


def refuse(name: str) -> None:
    called.append(name)
    raise PermanentError(f"{name} is refused")


def is_third(name: str) -> bool:
    called.append(name)
    return called.count(name) == 3


def notify(request: Any) -> None:
    called.append(f"notify {request.approver}")


def write_row(connection: sqlite3.Connection, row: int) -> int:
    called.append("write_row")
    connection.execute("CREATE TABLE IF NOT EXISTS mine (row INTEGER)")
    connection.execute("INSERT INTO mine VALUES (?)", [row])
    return row + 1


async def hang(name: str) -> None:
    called.append(name)
    await asyncio.Event().wait()


@app.task
async def part(number: int) -> int:
    return number * len(await step(note, f"part {number}"))


@app.task
async def broken(name: str) -> None:
    await step(refuse, name)


@app.task(signals=[GO])
async def listener() -> int:
    return (await wait_signal(GO)).value


async def branch(name: str) -> list[Any]:
    return [await step(note, name), str(now().date()), await step(note, f"{name} again")]


async def trip() -> list[Any]:
    done: list[Any] = []
    try:
        async with saga() as undo:
            done.append(await step(note, "book"))
            undo.add(note, "cancel booking")
            raise ValueError("no seats left")
    except ValueError as error:
        return [*done, str(error)]


@app.task(signals=[GO])
async def order(number: str) -> list[Any]:
    """Make every kind of durable call, and return the outcomes of the calls."""
    seen: list[Any] = [number, changed("second version"), now().isoformat(), str(uuid4()), rng().randrange(10**6)]
    seen += [await step(note, number), await step.options(key="k", name="named")(note, "keyed")]
    seen += [await step(fail_twice, "flaky"), await step.tx(write_row, 3), await poll("1m", is_third, "third")]
    try:
        await step(reserve, 2)
    except NoSeats as error:
        seen += [f"NoSeats: {error}"]
    try:
        await broken.run("card")
    except ExecutionFailed as error:
        seen += [str(error)]
    seen += [await trip(), str(uuid4())]
    await sleep("1h")
    seen += [(await wait_signal(GO)).value]
    hint = await wait_signal(HINT, timeout="1d")
    assert isinstance(hint, Received)
    seen += [hint.value]
    seen += [type(await wait_signal(HINT, timeout="1m")).__name__]
    seen += [[signal.name for signal in (await wait_for(Single("go"))).signals]]
    decided = await approval("refund", by=["ops", "finance"], notify=notify)
    seen += [[decision.comment for decision in decided.decisions], type(await approval("open", timeout="1m")).__name__]
    paid = callback("paid", dict[str, int])
    for receive in token_receivers:
        receive(await paid.token())
    seen += [(await paid).value]
    child = await part.submit(7)
    heard = await listener.submit()
    await heard.signal(GO, 5)
    seen += [await part.run(6), await child, type(await child.outcome()).__name__, await heard]
    seen += await gather(step(note, "gathered"), part.run(4), sleep("5m"), branch("in a branch"))
    seen += [[type(each).__name__ for each in await settle(step(note, "settled"), step(refuse, "settled too"))]]
    won = await race(step(hang, "slow"), step(note, "fast"), sleep("1d"))
    won_by_branch = await race(sleep("1d"), branch("racing"), wait_signal(HINT))
    return [*seen, won.value, won_by_branch.value, str(now().date())]


async def _drive(kit: Kit, handle: Handle[Any], tokens: list[str]) -> AsyncIterator[str]:
    """Yield the name of each wait of the program, then send its signal or advance the clock. Yield `end` last."""
    yield "retry"
    await kit.advance("30m")
    yield "sleep"
    await kit.advance("1h")
    yield "declared signal"
    await kit.signal(handle, GO, 11)
    yield "signal"
    await kit.signal(handle, HINT, "left")
    yield "timeout"
    await kit.advance("1m")
    yield "condition"
    await kit.signal(handle, GO, 12)
    yield "approval"
    await kit.approve(handle, "refund", by="ops", comment="fine")
    await kit.approve(handle, "refund", by="finance", comment="also fine")
    yield "approval of anyone"
    await kit.advance("1m")
    yield "callback"
    await app.signal(tokens[-1], "callback", {"cents": 100})
    await kit.work()
    yield "group"
    await kit.finish(handle)
    yield "end"


async def _journals() -> dict[str, Any]:
    """Run the program. Return its execution id, its result, and the records that are new or changed at each wait."""
    tokens: list[str] = []
    token_receivers.append(tokens.append)
    async with Kit(app) as kit:
        handle = await kit.start(order, "o-17")
        journals: dict[str, list[list[str]]] = {}
        known: dict[str, list[str]] = {}
        async for point in _drive(kit, handle, tokens):
            steps = await kit.engine.executions.steps(handle.id, limit=1_000)
            records = {step.name: [step.name, step.status, step.payload.decode()] for step in steps}
            journals[point] = [record for path, record in records.items() if known.get(path) != record]
            known = records
        return {"execution_id": str(handle.id), "result": await handle, "journals": journals}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(_journals()), indent=1) + "\n")
