"""A worker process of the fault tests: it claims, works as the payload requests, and writes a witness ledger.

The worker does not know which faults a test causes. It repeats a call while the store is unavailable, abandons refused
work, and records anything else as `broke`, which no run may contain.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import random
import threading
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from flowfabric.engine import (
    Engine,
    Fence,
    FlowFabricError,
    Lease,
    Refused,
    Step,
    Suspended,
    Unavailable,
    WorkerId,
    connect,
)
from flowfabric.reconcilers.loop import Reconcilers
from flowfabric.store.ports import Body, JoinedBody, Notifier, SharedBody, Store, StoreInfo
from flowfabric.store.transaction import Transaction
from tests.expectations import FENCED
from tests.faults.kit.ledgers import IN_STATEMENT, IN_TRANSACTION, OUTSIDE, Ledger, Run

Answer = TypeVar("Answer")
LANE = "default"
STEPS = ("first", "second")
WAITPOINT = "answer"


def main(order: dict[str, Any]) -> None:
    """Run a worker process."""
    worker = Worker(order)
    try:
        asyncio.run(worker.zombie() if order.get("zombie") else worker.work())
    except BaseException:
        worker.witness.write("broke", error=traceback.format_exc())
        raise


class WatchedStore:
    """The store, with a byte in shared memory that shows whether this process is inside a transaction.

    The byte is set when the transaction has begun, and cleared when the process knows that the transaction has ended.
    """

    def __init__(self, store: Store, flags: mmap.mmap, slot: int, single: int) -> None:
        self._store = store
        self._flags = flags
        self._slot = slot
        self._single = single
        self._inside = 0
        self._lock = threading.Lock()

    async def run(self, body: Body[Answer], *, is_urgent: bool = False) -> Answer:
        return await self._watched(partial(self._store.run, is_urgent=is_urgent), body, IN_TRANSACTION)

    async def run_shared(self, body: SharedBody[Answer]) -> Answer:
        return await self._store.run_shared(body)

    async def run_single(self, body: Body[Answer], *, is_urgent: bool = False) -> Answer:
        return await self._watched(partial(self._store.run_single, is_urgent=is_urgent), body, self._single)

    async def read(self, body: Body[Answer]) -> Answer:
        return await self._store.read(body)

    async def read_single(self, body: Body[Answer]) -> Answer:
        return await self._store.read_single(body)

    @property
    def local_clock(self) -> Callable[[], datetime] | None:
        return self._store.local_clock

    @property
    def notifier(self) -> Notifier:
        return self._store.notifier

    async def run_within(self, connection: object, body: JoinedBody[Answer], *, savepoint: bool) -> Answer:
        return await self._store.run_within(connection, body, savepoint=savepoint)

    def run_within_sync(self, connection: object, body: JoinedBody[Answer], *, savepoint: bool) -> Answer:
        return self._store.run_within_sync(connection, body, savepoint=savepoint)

    async def ping(self) -> None:
        await self._store.ping()

    async def store_info(self) -> StoreInfo:
        return await self._store.store_info()

    async def find_damage(self) -> list[str]:
        return await self._store.find_damage()

    async def backup(self, file: str) -> None:
        await self._store.backup(file)

    async def vacuum(self) -> bool:
        return await self._store.vacuum()

    async def end_stalled_sessions(self) -> int:
        return await self._store.end_stalled_sessions()

    async def close(self, timeout_s: float | None = None) -> None:
        await self._store.close(timeout_s)

    async def _watched(self, run: Callable[[Body[Answer]], Awaitable[Answer]], body: Body[Answer], flag: int) -> Answer:
        entered = False

        async def watched(tx: Transaction) -> Answer:
            nonlocal entered
            if not entered:
                entered = True
                self._count(1, flag)
            return await body(tx)

        try:
            return await run(watched)
        finally:
            if entered:
                self._count(-1, OUTSIDE)

    def _count(self, change: int, flag: int) -> None:
        # Two threads use the counter: on SQLite the body runs on the writer thread, and its caller waits on another.
        with self._lock:
            self._inside += change
            if change > 0 or not self._inside:
                self._flags[self._slot] = flag


def watched(engine: Engine, flags: mmap.mmap, slot: int) -> Engine:
    """Return an engine on the same store that marks its transactions in the shared flags."""
    context = engine._context
    single = IN_TRANSACTION if hasattr(context.store, "_writer") else IN_STATEMENT
    store = WatchedStore(context.store, flags, slot, single)
    duties = Reconcilers(store, context.wakeups, context.reconcilers._retention, context.vacuum)
    return Engine(replace(context, store=store, reconcilers=duties, batchers={}))


class Worker:
    """One worker process."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.instance = f"{order['slot']}-{os.getpid()}"
        self.run = Run(Path(order["folder"]))
        self.witness: Ledger = self.run.witness(self.instance)
        self.flags = self.run.flags()
        self.flags[order["slot"]] = OUTSIDE
        random.seed(os.urandom(8))

    async def work(self) -> None:
        """Claim and work until killed."""
        engine = await self.opened()
        async with engine.reconcilers.run_in_background():
            while True:
                leases = await self.retry_until_available(lambda: self.claim(engine))
                for lease in leases:
                    await self.handle(engine, lease)
                if not leases:
                    await asyncio.sleep(random.uniform(0.01, 0.05))

    async def opened(self) -> Engine:
        opening = connect(self.order["url"], **self.order["options"])
        engine = await self.retry_until_available(opening._open)
        return watched(engine, self.flags, self.order["slot"])

    async def claim(self, engine: Engine) -> list[Lease]:
        worker = WorkerId("harness", self.instance)
        return await engine.leases.claim([LANE], worker, limit=2, lease_ttl=self.order["lease_s"])

    async def handle(self, engine: Engine, lease: Lease) -> None:
        """Run the handler once. A refusal means that another worker owns the work."""
        self.witness.write("began", **self.facts(lease))
        try:
            await self.perform(engine, lease, json.loads(lease.payload)["plan"])
        except Refused as error:
            self.witness.write("refused", code=error.code, **self.facts(lease))

    async def perform(self, engine: Engine, lease: Lease, plan: str) -> None:
        fence = lease.fence
        if plan == "retry" and lease.attempt_index == 0:
            await self.retry_until_available(lambda: engine.leases.fail(fence, "not yet"))
            self.witness.write("failed", **self.facts(lease))
            return
        if plan == "rest" and lease.origin == "fresh":
            await self.retry_until_available(lambda: engine.leases.delay(fence, after="50ms"))
            self.witness.write("delayed", **self.facts(lease))
            return
        if plan in ("break", "give up"):
            await self.end_badly(engine, lease, plan)
            return
        if plan == "steps":
            await self.record_steps(engine, lease)
        if plan == "wait" and not await self.was_answered(engine, lease):
            return
        if plan == "slow":
            await asyncio.sleep(random.uniform(0, 0.2))
            await self.retry_until_available(lambda: engine.leases.renew(fence))
            await self.retry_until_available(lambda: engine.leases.progress(fence, 50, self.instance))
        if not self.run.take_effect(str(fence.execution_id), fence.epoch, str(fence.lease_id)):
            self.witness.write("effect refused", **self.facts(lease))
        await self.complete(engine, lease)

    async def end_badly(self, engine: Engine, lease: Lease, plan: str) -> None:
        if plan == "break":
            await self.retry_until_available(
                lambda: engine.leases.fail(lease.fence, "broken", failure_class="permanent")
            )
        else:
            await self.retry_until_available(lambda: engine.leases.cancel(lease.fence, "no use"))
        self.witness.write("ended badly", **self.facts(lease))

    async def was_answered(self, engine: Engine, lease: Lease) -> bool:
        """Wait for one signal.

        Return False if the worker gave up its lease to wait. A later attempt then sees how the wait ended and records
        it.
        """
        await self.stop_at("claimed")
        result = await self.retry_until_available(lambda: engine.leases.suspend(lease.fence, [WAITPOINT], key="wait"))
        if isinstance(result, Suspended):
            self.witness.write("suspended", suspension=result.suspension_id, **self.facts(lease))
            return False
        signals = [str(signal.id) for signal in result.signals]
        self.witness.write("answered", suspension=result.suspension_id, signals=signals, **self.facts(lease))
        await self.stop_at("answered")
        step = Step("answer", f"{lease.execution_id} answer".encode())
        await self.retry_until_available(lambda: engine.leases.checkpoint(lease.fence, [step]))
        self.witness.write("recorded", step=step.name, **self.facts(lease))
        await self.stop_at("recorded")
        return True

    async def stop_at(self, point: str) -> None:
        """If the test is to kill this worker at this point, report the point and stop."""
        if self.order.get("stops_at") == point:
            self.witness.write("stopped", point=point)
            await asyncio.Event().wait()

    async def record_steps(self, engine: Engine, lease: Lease) -> None:
        """Record the missing steps. Their content does not depend on the worker."""
        known = {
            step.name for step in await self.retry_until_available(lambda: engine.executions.steps(lease.execution_id))
        }
        for name in STEPS:
            if name not in known:
                step = Step(name, f"{lease.execution_id} {name}".encode())
                await self.retry_until_available(lambda step=step: engine.leases.checkpoint(lease.fence, [step]))  # type: ignore[misc]
                self.witness.write("recorded", step=name, **self.facts(lease))

    async def complete(self, engine: Engine, lease: Lease) -> None:
        """Complete the execution with a result that names the fence and the worker."""
        result = f"{lease.epoch} {lease.fence.lease_id} {self.instance}"
        self.witness.write("completing", result=result, **self.facts(lease))
        await self.retry_until_available(lambda: engine.leases.complete(lease.fence, result.encode()))
        self.witness.write("completed", result=result, **self.facts(lease))

    async def retry_until_available(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Repeat a call while the store is unavailable and return its result."""
        for tries in range(200):
            try:
                return await call()
            except Unavailable as error:
                self.witness.write("unavailable", code=error.code, error=str(error))
                await asyncio.sleep(random.uniform(0, min(0.5, 0.01 * 2**tries)))
        raise RuntimeError("the store did not come back")

    def facts(self, lease: Lease) -> dict[str, Any]:
        fence = lease.fence
        return {
            "execution": fence.execution_id,
            "attempt": lease.attempt_index,
            "epoch": fence.epoch,
            "lease": fence.lease_id,
            "pid": os.getpid(),
        }

    async def zombie(self) -> None:
        """Keep one lease until this process was frozen and woken, then try every write with the stale fence."""
        engine = await self.opened()
        worker = WorkerId("zombie", self.instance)
        lease = await self.retry_until_available(lambda: engine.leases.claim_execution(self.order["execution"], worker))
        self.witness.write("holding", **self.facts(lease))
        while not self.run.woken_path(self.instance).exists():
            try:
                await engine.leases.renew(lease.fence)
            except FlowFabricError as error:
                if error.code != "lease_busy":
                    self.witness.write("not renewed", code=error.code)
                    break
            await asyncio.sleep(0.02)
        for operation, write in stale_writes(engine, lease.fence).items():
            try:
                result = await write()
                self.witness.write("accepted", operation=operation, answer=repr(result), **self.facts(lease))
            except FlowFabricError as error:
                self.witness.write("stale", operation=operation, code=error.code, **self.facts(lease))
        # The fenced service can refuse an old fence only after it has seen a newer fence.
        if self.run.effects(str(lease.execution_id)):
            effect = self.run.take_effect(str(lease.execution_id), lease.epoch, str(lease.fence.lease_id))
            self.witness.write("accepted" if effect else "stale", operation="effect", **self.facts(lease))
        await engine.close()


def stale_writes(engine: Engine, fence: Fence) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Return every write that a worker can make."""
    return {name: partial(write, engine, fence) for name, write in FENCED.items()}
