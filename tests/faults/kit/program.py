"""A program that makes every durable call and every call of a client, with ledgers that the engine does not write.

    client                            task `order`, one execution for each number
    submit ─────────────────────────> step, step.tx, sleep
    signal go ──────────────────────> wait_signal
                                      gather of two steps and a child, a submitted child
    signal more ────────────────────> race of a signal and a sleep
    approve, with the mailed token ─> approval
    result <───────────────────────── what the calls returned

The client makes each call without a key, as most users write it. If a call raises `Unavailable`, the client follows
the advice in the error: it repeats the call with the id in the error's fields.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from flowfabric import App, ApprovalRequest, Approved, Signal, approval, gather, race, sleep, step, wait_signal
from flowfabric.engine import FlowFabricError, Unavailable
from tests.faults.rows.row import Tally
from tests.stores import PostgresTestStore, TestStore

GO, MORE = Signal("go", int), Signal("more", int)
CHILDREN = 2
SIGNALS = Counter({"go": 1, "more": 1, "approve": 1})
EXPECTED = ["first", "paid", "go", "left", "right", "joined", "child", "more", "approved"]
PATIENCE_S = 60.0
T = TypeVar("T")


class Program:
    """The app, its ledgers, and the client. Every method runs on the event loop of the suite."""

    def __init__(self, store: TestStore, url: str, **options: Any) -> None:
        self._store = store
        if isinstance(store, PostgresTestStore):
            options["schema"] = store.schema
        store_options: Any = {"durable": False, **options}
        self.app = App(url, url="https://shop.example/ff", arguments="off", options=store_options)
        self.tally = Tally()
        self.numbers: list[int] = []
        self.faults_at: list[float] = []
        self.errors = 0
        # The ledger: which body began when, and when the task continued after it, so that its result was recorded.
        self._begun: dict[tuple[int, str], list[float]] = {}
        self._passed: dict[tuple[int, str], float] = {}
        self._tokens: dict[str, asyncio.Future[str]] = {}
        self._define_tasks()

    async def prepare(self) -> None:
        """Create the table of the user's rows."""
        await self._store.query("CREATE TABLE ff.paid (n INTEGER)")

    def _define_tasks(self) -> None:
        pay = _pay_sync if self._schema is None else partial(_pay, self._schema)

        @self.app.task
        async def child(n: int, name: str) -> str:
            return await step(self._work, n, name)

        @self.app.task(signals=[GO, MORE])
        async def order(n: int) -> list[str]:
            done = [await step(self._work, n, "first")]
            self._pass(n, "first")
            done.append(await step.tx(pay, n))
            await sleep("10ms")
            done.append("go" if (await wait_signal(GO)).value == n else "another signal")
            done += await gather(step(self._work, n, "left"), step(self._work, n, "right"), child.run(n, "joined"))
            self._pass(n, "left", "right", "joined")
            handle = await child.submit(n, "child")
            done.append(await handle)
            self._pass(n, "child")
            winner = await race(wait_signal(MORE), sleep("50s"))
            done.append("more" if winner.value is not None and winner.value.value == n else f"race: {winner}")
            decision = await approval(f"order {n}", by=["ops"], notify=self._mail)
            done.append("approved" if isinstance(decision, Approved) else f"approval: {decision}")
            return done

        self._order = order

    async def _work(self, n: int, name: str) -> str:
        self._begun.setdefault((n, name), []).append(time.monotonic())
        return name

    async def _mail(self, ask: ApprovalRequest) -> None:
        token = self._token(ask.name)
        if not token.done():
            token.set_result(ask.token)

    async def serve(self, n: int) -> None:
        """Make every call of the client for one execution, and note each violation."""
        self.numbers.append(n)
        order = self._order
        try:
            async with asyncio.timeout(PATIENCE_S):
                handle = await self._call(lambda **ids: order.options(**ids).submit(n))
                await self._call(lambda **ids: handle.signal(GO, n, **ids))
                await self._call(lambda **ids: handle.signal(MORE, n, **ids))
                token = await self._token(f"order {n}")
                await self._call(lambda **ids: self.app.approve(token))
                result = await self._repeat(lambda **ids: handle.result())
                if result != EXPECTED:
                    self.tally.wrong.append(f"order {n} returned {result}")
        except FlowFabricError as error:
            self.tally.wrong.append(f"the client of order {n} got {error}")
        except TimeoutError:
            self.tally.stuck.append(f"order {n} did not end within {PATIENCE_S:g} s")

    async def serve_until(self, enough: Callable[[], bool], clients: int) -> None:
        """Let the clients work concurrently, each on one execution after another, until `enough` returns True."""

        async def client(number: int) -> None:
            turn = 0
            while turn == 0 or not enough():
                await self.serve(turn * clients + number)
                turn += 1

        await asyncio.gather(*(client(number) for number in range(clients)))

    async def check(self) -> Tally:
        """Compare the ledgers with the store, and return the tally."""
        tally, kinds = self.tally, "SELECT r.kind, COUNT(*) AS number FROM ff.execution e JOIN ff.route r"
        rows = await self._store.query(f"{kinds} ON r.id = e.route_id GROUP BY r.kind")
        stored = {row["kind"]: row["number"] for row in rows}
        _compare(tally, "executions of order", len(self.numbers), stored.get("order", 0))
        _compare(tally, "children", CHILDREN * len(self.numbers), stored.get("child", 0))
        rows = await self._store.query("SELECT name, COUNT(*) AS number FROM ff.signal GROUP BY name")
        stored = {row["name"]: row["number"] for row in rows}
        for name, number in SIGNALS.items():
            _compare(tally, f"signals {name}", number * len(self.numbers), stored.get(name, 0))
        paid = Counter(row["n"] for row in await self._store.query("SELECT n FROM ff.paid"))
        for n in self.numbers:
            _compare(tally, f"rows that step.tx wrote for order {n}", 1, paid[n])
        for (n, name), passed_at in self._passed.items():
            if max(self._begun[n, name]) > passed_at:
                tally.doubled.append(f"step {name} of order {n} began again after its result was recorded")
        tally.executions = len(self.numbers) * (1 + CHILDREN)
        tally.signals = len(self.numbers) * SIGNALS.total()
        return tally

    def note_fault(self) -> None:
        """Note the time of a fault, to measure how long the next call of a client takes to succeed."""
        self.faults_at.append(time.monotonic())

    async def _call(self, call: Callable[..., Awaitable[T]]) -> T:
        outcome = await self._repeat(call)
        now = time.monotonic()
        self.tally.recoveries_s += [now - at for at in self.faults_at]
        self.faults_at.clear()
        return outcome

    async def _repeat(self, call: Callable[..., Awaitable[T]]) -> T:
        ids: dict[str, Any] = {}
        while True:
            try:
                return await call(**ids)
            except Unavailable as error:
                self.errors += 1
                ids = {name: value for name, value in error.fields.items() if name in ("id", "signal_id")}

    def _pass(self, n: int, *names: str) -> None:
        for name in names:
            self._passed.setdefault((n, name), time.monotonic())

    def _token(self, name: str) -> asyncio.Future[str]:
        return self._tokens.setdefault(name, asyncio.get_running_loop().create_future())

    @property
    def _schema(self) -> str | None:
        return self._store.schema if isinstance(self._store, PostgresTestStore) else None


async def _pay(schema: str, connection: Any, n: int) -> str:
    await connection.execute(f'INSERT INTO "{schema}".paid VALUES ($1)', n)
    return "paid"


def _pay_sync(connection: Any, n: int) -> str:
    connection.execute("INSERT INTO ff_paid VALUES (?)", (n,))
    return "paid"


def _compare(tally: Tally, what: str, expected: int, stored: int) -> None:
    if stored > expected:
        tally.doubled.append(f"{stored - expected} extra {what}: {stored} instead of {expected}")
    if stored < expected:
        tally.lost.append(f"{expected - stored} missing {what}: {stored} instead of {expected}")
