"""Connections break before the reply. Clients call once, without a key, and every call has exactly one effect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.faults.kit.program import Program
from tests.faults.kit.proxy import proxied
from tests.faults.kit.replies import losing_engine
from tests.faults.rows.row import Row, Tally, Trial
from tests.stores import PostgresTestStore

CLIENTS = 16
POOL_SIZE = 4
LEASE = "5s"
# A reset costs PostgreSQL a new connection, so a smaller share takes the same time there.
RESET_SHARE: dict[str, float] = {"sqlite": 0.08, "postgres": 0.05}
# A cut ends every connection, and opening them again takes a part of the pause until the next cut.
MIN_PAUSE_S, MAX_PAUSE_S, DOWN_S = 0.2, 0.7, 0.03


@dataclass
class Breaker:
    """The controls that break the connections of a program. `injected` returns the number of broken calls."""

    program: Program
    injected: Callable[[], int]
    set_share: Callable[[float], None]
    cut: Callable[[], None]


@asynccontextmanager
async def running(trial: Trial, part: str) -> AsyncIterator[Breaker]:
    """Run the program behind connections that can be broken: its worker, and the engine of its clients."""
    store, chance = trial.new_store(), trial.random(part)
    if isinstance(store, PostgresTestStore):
        with proxied(trial.dsn, chance.getrandbits(32)) as (proxy, url):
            program = Program(store, url, pool_size=POOL_SIZE)
            async with program.app, program.app.worker(concurrency=2 * CLIENTS, lease=LEASE):
                await program.prepare()

                def set_share(share: float) -> None:
                    proxy.reset_rate = share

                yield Breaker(program, lambda: proxy.resets, set_share, proxy.cut)
        await store.drop()
        return
    program, share, is_down = Program(store, store.url), 0.0, False

    def losing() -> str | None:
        if is_down:
            return "request" if chance.random() < 0.5 else "reply"
        return "reply" if chance.random() < share else None

    def set_share_of_replies(value: float) -> None:
        nonlocal share
        share = value

    def cut() -> None:
        nonlocal is_down
        is_down = True
        asyncio.get_running_loop().call_later(DOWN_S, end_cut)

    def end_cut() -> None:
        nonlocal is_down
        is_down = False

    async with program.app.engines.opener(store.url) as engine:
        lossy, losing_store = losing_engine(engine, losing)
        program.app.engines.adopt(lossy)
        try:
            async with program.app.worker(concurrency=2 * CLIENTS, lease=LEASE):
                await program.prepare()
                yield Breaker(program, lambda: losing_store.lost, set_share_of_replies, cut)
        finally:
            program.app.engines.adopt(None)


async def _reset_replies(trial: Trial) -> Tally:
    async with running(trial, "resets") as breaker:
        breaker.set_share(RESET_SHARE[trial.backend])
        await breaker.program.serve_until(lambda: breaker.injected() >= trial.faults, CLIENTS)
        breaker.set_share(0.0)
        tally = await breaker.program.check()
        tally.injected = breaker.injected()
    return tally


async def _flap(trial: Trial) -> Tally:
    chance = trial.random("pauses")
    async with running(trial, "flapping") as breaker:

        async def cut_often() -> None:
            while True:
                await asyncio.sleep(chance.uniform(MIN_PAUSE_S, MAX_PAUSE_S))
                breaker.cut()
                breaker.program.note_fault()

        cutting = asyncio.create_task(cut_often())
        try:
            await breaker.program.serve_until(lambda: breaker.injected() >= trial.faults, CLIENTS)
        finally:
            cutting.cancel()
            await asyncio.gather(cutting, return_exceptions=True)
        tally = await breaker.program.check()
        tally.injected = breaker.injected()
    return tally


ROWS = (
    Row(
        "connection reset before the reply",
        "Connections break after the server has worked and before its reply arrives, over every durable call",
        _reset_replies,
        minimum=2500,
        short_minimum=40,
    ),
    Row(
        "flapping connection",
        "All connections are cut every few hundred milliseconds, over every durable call",
        _flap,
        minimum=1000,
        short_minimum=20,
    ),
)
