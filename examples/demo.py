"""One SQLite file, two worker processes, one of them killed at work: nothing is lost, nothing is done twice.

Run it with `python3 dev.py demo`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flowfabric.engine import (
    Backoff,
    Created,
    Duplicate,
    Engine,
    Lease,
    Policy,
    State,
    Step,
    Submission,
    WorkerId,
    connect,
)

ORDERS = 12
UNLUCKY = 5
POLICY = Policy(lease_ttl="2s", max_retries=2, backoff=Backoff(initial="200ms"))


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "shop.db")
        async with connect(path) as engine, engine.reconcilers.running():
            await submit_orders(engine)
            workers = [start_worker(path, name) for name in ("anna", "bert")]
            await kill_the_holder(engine, workers)
            await report(engine)
            for worker in workers:
                worker.terminate()
                worker.wait()


async def submit_orders(engine: Engine) -> None:
    orders = [
        Submission(
            kind="ship", payload=str(number).encode(), key=f"order-{number}", policy=POLICY, tags={"shop.city": "Bern"}
        )
        for number in range(ORDERS)
    ]
    first = await engine.executions.submit_many(orders)
    again = await engine.executions.submit_many(orders)
    created = sum(isinstance(answer, Created) for answer in first)
    duplicates = sum(isinstance(answer, Duplicate) for answer in again)
    say(f"submitted {created} orders; the same {duplicates} again were recognised as duplicates")


def start_worker(path: str, name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, "worker", path, name])


async def kill_the_holder(engine: Engine, workers: list[subprocess.Popen[bytes]]) -> None:
    """Waits until one worker is in the middle of the unlucky order, then kills that process."""
    while True:
        for worker in workers:
            for lease in await engine.leases.held(str(worker.pid)):
                if lease.payload == str(UNLUCKY).encode():
                    os.kill(worker.pid, signal.SIGKILL)
                    say(f"killed the worker that was packing order {UNLUCKY}; nobody tells the engine")
                    return
        await asyncio.sleep(0.01)


async def report(engine: Engine) -> None:
    began = time.monotonic()
    page = await engine.executions.list(kind="ship", limit=ORDERS)
    for order in page.items:
        outcome = await engine.executions.wait(order.id, timeout="30s")
        assert outcome is not None, "an order was lost"
        assert outcome.state is State.COMPLETED, outcome
    say(f"all {ORDERS} orders were shipped, {time.monotonic() - began:.1f} s after the kill")
    unlucky = next(item for item in (await engine.executions.list(kind="ship")).items if item.reclaim_count)
    say(f"history of the order whose worker died ({unlucky.id}):")
    for event in await engine.executions.history(unlucky.id):
        name, worker = f"{event.family}.{event.name}", event.worker.name if event.worker else "-"
        say(f"  {event.version:>2}  {name:<22} attempt {event.attempt_index}  worker {worker}")


async def work(path: str, name: str) -> None:
    """A worker: claims an order, packs it in two durable steps, completes it. Order 7 fails the first time."""
    async with connect(path) as engine, engine.reconcilers.running():
        while True:
            for lease in await engine.leases.claim(["default"], WorkerId(name, str(os.getpid()))):
                await pack(engine, lease)
            await asyncio.sleep(0.02)


async def pack(engine: Engine, lease: Lease) -> None:
    order = int(lease.payload)
    if order == UNLUCKY and lease.attempt_index == 0:
        await asyncio.sleep(60)
    if order == 7 and lease.attempt_index == 0:
        await engine.leases.fail(lease.fence, "the printer jammed", category="printer")
        return
    await engine.leases.checkpoint(lease.fence, [Step("label", b'"printed"')])
    await engine.leases.complete(lease.fence, b'"shipped"', steps=[Step("parcel", b'"packed"')])


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        asyncio.run(work(sys.argv[2], sys.argv[3]))
    else:
        asyncio.run(main())
