"""Hosts vanish inside a transaction, in silence. Another worker takes over their work."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from flowfabric.engine import Engine
from tests.faults.kit.proxy import Proxy, proxies
from tests.faults.kit.vanished_host import CALLS, take_over, vanish
from tests.faults.rows.row import Row, Tally, Trial
from tests.stores import PostgresTestStore, opened

LEASE_S = 2.0
# The required limit of a takeover, besides two leases.
VANISHED_S = 30.0
TOGETHER = 20
# In a short run, the server ends silent sessions after two seconds. A full run has the default limit of 20 seconds.
SHORT_FAULTS = 3
SHORT_OPTIONS: dict[str, Any] = {"statement_timeout": "1s"}


async def _run(trial: Trial) -> Tally:
    tally, options = Tally(), SHORT_OPTIONS if trial.faults <= SHORT_FAULTS else {}
    store = PostgresTestStore(trial.dsn)
    async with opened(store, **options) as survivor, survivor.reconcilers.run_in_background():
        for start in range(0, trial.faults, TOGETHER):
            numbers = range(start, min(start + TOGETHER, trial.faults))
            with proxies(trial.dsn, len(numbers), trial.seed) as pairs:
                lose = [
                    _lose_host(tally, pair, survivor, store, list(CALLS)[number % len(CALLS)], options)
                    for number, pair in zip(numbers, pairs, strict=True)
                ]
                await asyncio.gather(*lose)
    await store.drop()
    return tally


async def _lose_host(
    tally: Tally, pair: tuple[Proxy, str], survivor: Engine, store: PostgresTestStore, call: str, options: Any
) -> None:
    proxy, url = pair
    id_, vanished_at = await vanish(proxy, url, survivor, store, call, LEASE_S, **options)
    tally.injected += 1
    tally.executions += 1
    limit_s = 2 * LEASE_S + VANISHED_S
    if await take_over(survivor, id_, LEASE_S, vanished_at + limit_s):
        tally.recoveries_s.append(time.monotonic() - vanished_at)
    else:
        tally.stuck.append(f"the work of a host that vanished in {call} was not taken over within {limit_s:g} s")
    attempts = await store.query("SELECT COUNT(*) AS number FROM ff.step WHERE execution_id = ?", id_)
    if attempts[0]["number"]:
        tally.wrong.append(f"the transaction of a host that vanished in {call} was committed")


ROWS = (
    Row(
        "half-open connections, vanished host",
        "A host vanishes inside a transaction, and its connections stay open without a word",
        _run,
        minimum=60,
        short_minimum=SHORT_FAULTS,
        backends=("postgres",),
        lease_s=LEASE_S,
        recovery_limit_s=2 * LEASE_S + VANISHED_S,
    ),
)
