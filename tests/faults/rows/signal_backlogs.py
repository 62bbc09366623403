"""A long queue of signals, and malformed payloads among good ones.

Tasks take the signals of a long queue one by one. Each must get them in order, and the cost of a signal must not depend
on the length of the queue. Other tasks get malformed payloads. The sender gets an error or the task skips the payload,
and no task fails.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator

from flowfabric import App, FlowFabricError, Handle, Signal, callback, race, step, wait_signal
from flowfabric.core.waits.evaluate import _Tally
from flowfabric.engine import Engine
from flowfabric.store.snapshot import SnapshotStore
from flowfabric.store.waits import WaitStore
from tests.end_to_end.web.browser import Browser
from tests.faults.rows.row import Row, Tally, Trial
from tests.stores import opened

SHORT_QUEUE = 100
PART = 200  # The signals that one generation takes, so that the journal stays short.
PATIENCE_S = 300.0
URL = "https://shop.example/ff"

work, stop = Signal("work", int), Signal("stop", int)


async def _run_backlog(trial: Trial) -> Tally:
    """Let tasks take a short and a long queue. A fault is one queued signal."""
    tally = Tally()
    async with opened(trial.new_store()) as engine:
        app = App("never-opened.db")
        app.engines.adopt(engine)
        takers = _define_takers(app, tally)
        for taker in takers:
            long = max(SHORT_QUEUE, trial.faults // len(takers))
            costs = [await _take_queue(app, engine, taker, number, tally) for number in (SHORT_QUEUE, long)]
            for name in costs[0]:
                if costs[1][name] > 1.1 * costs[0][name]:
                    change = f"{costs[0][name]:.2f} {name} at {SHORT_QUEUE}, and {costs[1][name]:.2f} at {long}"
                    tally.wrong.append(f"{taker.name}: a signal costs {change} queued signals")
    return tally


def _define_takers(app: App, tally: Tally) -> list[Any]:
    @app.task(signals=[work])
    async def take(total: int, begin: int) -> int:
        end = min(total, begin + PART)
        for expected in range(begin, end):
            received = await wait_signal(work)
            _check(tally, received.value, expected)
        if end < total:
            take.continue_with(total, end)
        return end

    @app.task(signals=[work, stop])
    async def take_until_stop(total: int, begin: int) -> int:
        end = min(total, begin + PART)
        for expected in range(begin, end):
            won = await race(wait_signal(stop), wait_signal(work))
            _check(tally, won.value.value, expected)
        if end < total:
            take_until_stop.continue_with(total, end)
        return end

    return [take, take_until_stop]


def _check(tally: Tally, value: int, expected: int) -> None:
    if value != expected:
        tally.wrong.append(f"signal {value} arrived in the place of {expected}")


async def _take_queue(app: App, engine: Engine, taker: Any, number: int, tally: Tally) -> dict[str, float]:
    """Queue signals, let a task take all of them, and return the cost of each signal."""
    handle = await taker.submit(number, 0)
    for value in range(number):
        await engine.signals.send(handle.id, "work", b"%d" % value)
    tally.injected += number
    tally.signals += number
    tally.executions += 1
    counts: Counter[str] = Counter()
    with counted_reads(counts):
        async with app.worker():
            try:
                if await handle.result(PATIENCE_S) != number:
                    tally.lost.append(f"{taker.name} took fewer signals than {number}")
            except TimeoutError:
                tally.stuck.append(f"{taker.name} has not taken {number} signals")
    return {name: count / number for name, count in counts.items()}


@contextmanager
def counted_reads(counts: Counter[str]) -> Iterator[None]:
    """Count the queued signals that the store reads, and those that a condition evaluates."""
    read, look, add = WaitStore.available_signals, SnapshotStore.read_waits, _Tally.add

    async def counted_read(self: Any, *arguments: Any) -> Any:
        signals = await read(self, *arguments)
        counts["rows read"] += sum(len(group) for part in signals for group in part.values())
        return signals

    async def counted_look(self: Any, *arguments: Any) -> Any:
        snapshots = await look(self, *arguments)
        counts["rows read"] += sum(len(snapshot.signals) for snapshot in snapshots.values())
        return snapshots

    def counted_add(self: Any, signal: Any) -> Any:
        counts["evaluations"] += 1
        return add(self, signal)

    patches = ((WaitStore, "available_signals", counted_read), (SnapshotStore, "read_waits", counted_look))
    for owner, name, function in (*patches, (_Tally, "add", counted_add)):
        setattr(owner, name, function)
    try:
        yield
    finally:
        WaitStore.available_signals, SnapshotStore.read_waits = read, look  # type: ignore[method-assign]
        _Tally.add = add  # type: ignore[method-assign]


# Malformed payloads.


def _check_even(value: int) -> int:
    """Refuse odd numbers, which no schema can express."""
    if value % 2:
        raise ValueError("odd")
    return value


@dataclass
class Report:
    """The payload of a callback."""

    rows: int


Even = Annotated[int, AfterValidator(_check_even)]
even = Signal("even", Even)
REFUSED = (b"", b"{", b'"x"', b"[]", b"1.5", b"null", b"{}", b"1 2", b"\xff")
SKIPPED = (b"1", b"-7", b'"3"')
GOOD = (2, 4, 6)


async def _run_malformed(trial: Trial) -> Tally:
    """Send malformed payloads to declared and undeclared signals and to callbacks. A fault is one payload."""
    tally, chance = Tally(), trial.random()
    async with opened(trial.new_store()) as engine:
        app = App("never-opened.db", url=URL)
        app.engines.adopt(engine)
        other = App("other.db", url=URL)
        other.engines.adopt(engine)
        trials = _MalformedPayloads(app, engine, Browser(other.asgi()), tally, chance)
        async with app.worker():
            while tally.injected < trial.faults:
                await asyncio.gather(*(trials.run_one() for _ in range(5)))
    return tally


class _MalformedPayloads:
    """Executions that get malformed payloads. Each must end with the good payloads, in order."""

    def __init__(self, app: App, engine: Engine, browser: Browser, tally: Tally, chance: random.Random) -> None:
        self._engine, self._browser, self._tally, self._chance = engine, browser, tally, chance
        self._urls: asyncio.Queue[str] = asyncio.Queue()

        @app.task(signals=[even])
        async def declared() -> list[int]:
            return [(await wait_signal(even)).value for _ in GOOD]

        @app.task
        async def undeclared() -> list[int]:
            return [(await wait_signal(even)).value for _ in GOOD]

        @app.task
        async def exported() -> list[int]:
            reply = callback("export", Report)
            await step(self._urls.put, await reply.url())
            return [(await reply).value.rows]

        self._declared, self._undeclared, self._exported = declared, undeclared, exported

    async def run_one(self) -> None:
        kind = self._chance.choice([self._declared, self._undeclared])
        handles = [await kind.submit(), await self._exported.submit()]
        self._tally.executions += 2
        await self._call_back(await self._urls.get())
        for value in GOOD:
            for _ in range(self._chance.randrange(3)):
                await self._send(handles[0], self._chance.choice(SKIPPED), is_refused=False)
            await self._send(handles[0], self._chance.choice(REFUSED), is_refused=True)
            await self._send(handles[0], b"%d" % value, is_refused=False)
        self._tally.injected += len(GOOD)
        for handle, expected in zip(handles, (list(GOOD), [7]), strict=True):
            await self._check(handle, expected)

    async def _send(self, handle: Handle[Any], payload: bytes, *, is_refused: bool) -> None:
        """Send a payload, again until the task waits for it."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while asyncio.get_running_loop().time() < deadline:
            try:
                await self._engine.signals.send(handle.id, "even", payload, or_wait=True)
            except FlowFabricError as error:
                if error.code == "signal_not_expected":
                    await asyncio.sleep(0.005)
                    continue
                if error.code != "payload_mismatch" or not is_refused:
                    self._tally.wrong.append(f"{payload!r} was refused with {error.code}")
                return
            self._tally.signals += 1
            if is_refused:
                self._tally.wrong.append(f"{payload!r} was accepted")
            return
        self._tally.stuck.append(f"{handle!r} never waited for {payload!r}")

    async def _call_back(self, url: str) -> None:
        path = url.removeprefix(URL)
        documents: list[Any] = [{"rows": "x"}, [], {}, {"rows": None}]
        for document in documents:
            reply = await self._browser.post_json(path, document)
            self._tally.injected += 1
            if reply.status != 422:
                self._tally.wrong.append(f"the callback {document} got {reply.status}")
        if (await self._browser.post_json(path, {"rows": 7})).status != 200:
            self._tally.lost.append("a good callback was refused")

    async def _check(self, handle: Handle[Any], expected: list[int]) -> None:
        try:
            values = await handle.result(PATIENCE_S)
        except TimeoutError:
            self._tally.stuck.append(f"{handle!r} has not ended: {await handle.explain()}")
        except FlowFabricError as error:
            self._tally.wrong.append(f"{handle!r} failed: {error}")
        else:
            if values != expected:
                self._tally.wrong.append(f"{handle!r} returned {values}, not {expected}")


ROWS = (
    Row(
        "a backlog of 10,000 signals",
        "Tasks take the signals of a queue one by one; the cost of a signal is the same in a short and in a long queue",
        _run_backlog,
        minimum=10_000,
        short_minimum=400,
    ),
    Row(
        "malformed payloads",
        "Signals and callbacks have payloads of the wrong type, also such that no schema refuses",
        _run_malformed,
        minimum=1_000,
        short_minimum=40,
    ),
)
