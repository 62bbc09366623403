"""A worker whose host vanishes inside a transaction: the server gets nothing more, and its connection stays open.

vanishing worker ──> proxy ──> PostgreSQL <── survivor, which expires leases and claims
                       └ stalls at the second statement of a transaction, while the row is locked
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from flowfabric.engine import Engine, Lease, Step, connect
from tests.faults.kit.proxy import Proxy
from tests.stores import PostgresTestStore

POLL_S = 0.05
PATIENCE_S = 120.0
WORKER = "vanishing"


async def _add_rows(db: Any) -> None:
    await db.execute("SELECT pg_advisory_xact_lock($1)", time.monotonic_ns())


# Calls of a worker that lock the row of an execution in one statement and go on in a second one.
CALLS: dict[str, Callable[[Engine, Lease], Awaitable[Any]]] = {
    "fail": lambda engine, lease: engine.leases.fail(lease.fence, "no"),
    "delay": lambda engine, lease: engine.leases.delay(lease.fence, after="1h"),
    "step.tx": lambda engine, lease: engine.leases.transact(lease.fence, _add_rows, lambda _: Step("pay", b"1")),
}


async def vanish(
    proxy: Proxy, url: str, survivor: Engine, store: PostgresTestStore, call: str, lease_s: float, **options: Any
) -> tuple[UUID, float]:
    """Lose a host inside a call. Return the id of its execution, whose row stays locked, and the time of the loss."""
    created = await survivor.executions.submit("job")
    engine = await connect(url, schema=store.schema, durable=False, notify=False, retry_for=0, **options)
    lease = await engine.leases.claim_execution(created.id, WORKER, lease_ttl=lease_s)
    proxy.vanish_at("between statements" if call == "delay" else "inside a statement")
    calling = asyncio.ensure_future(CALLS[call](engine, lease))
    try:
        assert await asyncio.to_thread(proxy.has_vanished.wait, PATIENCE_S), f"{call} has no second statement"
        vanished_at = time.monotonic()
    finally:
        await engine.close(0)
        calling.cancel()
        await asyncio.wait([calling])
    if not calling.cancelled():
        calling.exception()  # The call fails because its engine was closed.
    return created.id, vanished_at


async def take_over(survivor: Engine, id_: UUID, lease_s: float, until: float) -> bool:
    """Return whether the survivor could claim and complete the execution before the time `until`."""
    while time.monotonic() < until:
        for lease in await survivor.leases.claim(["default"], "survivor", limit=100, lease_ttl=lease_s):
            await survivor.leases.complete(lease.fence, b"done")
        if (await survivor.executions.describe(id_)).state == "completed":
            return True
        await asyncio.sleep(POLL_S)
    return False
