"""A worker whose host vanishes inside a transaction: the server gets nothing more, and its connection stays open.

vanishing worker ──> proxy ──> PostgreSQL <── survivor, which expires leases and claims
                       └ stalls at the next statement after the one that locked the row of the execution
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from flowfabric.engine import Engine, Lease, Step, connect
from tests.faults.kit.proxy import Proxy, VanishingPlace
from tests.stores import PostgresTestStore

POLL_S = 0.05
PATIENCE_S = 120.0
ARRIVAL_S = 1.0
WORKER = "vanishing"
# The state of the server's session. A session inside a statement has begun to work on it, and waits for the rest.
STATES = {"inside a statement": "active", "between statements": "idle in transaction"}
# While a transaction locks a row, `xmax` holds its id.
_LOCKING = """
SELECT a.state FROM ff.execution AS e JOIN pg_stat_activity AS a ON a.backend_xid = e.xmax
WHERE e.id = ? AND a.wait_event = 'ClientRead'
"""


async def _add_rows(db: Any) -> None:
    await db.execute("SELECT pg_advisory_xact_lock($1)", time.monotonic_ns())


# Calls of a worker that lock the row of an execution in one statement and go on in another one.
CALLS: dict[str, Callable[[Engine, Lease], Awaitable[Any]]] = {
    "fail": lambda engine, lease: engine.leases.fail(lease.fence, "no"),
    "delay": lambda engine, lease: engine.leases.delay(lease.fence, after="1h"),
    "step.tx": lambda engine, lease: engine.leases.transact(lease.fence, _add_rows, lambda _: Step("pay", b"1")),
}


async def vanish(
    proxy: Proxy, url: str, survivor: Engine, store: PostgresTestStore, call: str, lease_s: float, **options: Any
) -> tuple[UUID, float]:
    """Lose a host inside a call. Return the id of its execution, whose row stays locked, and the time of the loss."""
    # The survivor must not claim the execution of one host while it takes over the work of another one.
    created = await survivor.executions.submit("job", lane=f"host-{uuid4()}")
    engine = await connect(url, schema=store.schema, durable=False, notify=False, retry_for=0, **options)
    lease = await engine.leases.claim_execution(created.id, WORKER, lease_ttl=lease_s)
    place: VanishingPlace = "between statements" if call == "delay" else "inside a statement"
    proxy.vanish_at(place)
    calling = asyncio.ensure_future(CALLS[call](engine, lease))
    try:
        assert await asyncio.to_thread(proxy.has_vanished.wait, PATIENCE_S), f"{call} runs no statement after its lock"
        vanished_at = time.monotonic()
    finally:
        await engine.close(0)
        calling.cancel()
        await asyncio.wait([calling])
    if not calling.cancelled():
        calling.exception()  # The call fails because its engine was closed.
    await _check_locked(store, created.id, STATES[place])
    return created.id, vanished_at


async def _check_locked(store: PostgresTestStore, id_: UUID, state: str) -> None:
    """Raise unless a session in this state locks the row of the execution and waits for its client."""
    until = time.monotonic() + ARRIVAL_S
    while (locking := await store.query(_LOCKING, id_)) != [{"state": state}]:
        assert time.monotonic() < until, f"the row must be locked by a session that is {state}, not by {locking}"
    with pytest.raises(asyncpg.LockNotAvailableError):
        await store.query("SELECT FROM ff.execution WHERE id = ? FOR NO KEY UPDATE NOWAIT", id_)


async def take_over(survivor: Engine, id_: UUID, lease_s: float, until: float) -> bool:
    """Return whether the survivor could claim and complete the execution before the time `until`."""
    lane = (await survivor.executions.describe(id_)).lane
    while time.monotonic() < until:
        for lease in await survivor.leases.claim([lane], "survivor", lease_ttl=lease_s):
            await survivor.leases.complete(lease.fence, b"done")
        if (await survivor.executions.describe(id_)).state == "completed":
            return True
        await asyncio.sleep(POLL_S)
    return False
