"""Cancels, deadlines and lost races meet running code: it stops in time, and its cleanup runs once."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast
from uuid import UUID

from flowfabric import App, CancelRequested, Handle, gather, race, saga, settle, step, sync
from flowfabric.engine import Engine, State
from tests.faults.rows.row import Row, Tally, Trial
from tests.stores import PostgresTestStore, TestStore, opened

LEASE_S = 30.0
LIMIT_S = 1.0
PATIENCE_S = 20.0
GRACE_S = 10.0
TOGETHER = 6
SLOTS = 100


class Ledger:
    """What the code of the tasks did: when each function began and stopped, and what it released."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.stopped_at: dict[str, float] = {}
        self.released: Counter[str] = Counter()
        self.released_at: dict[str, float] = {}
        self._changed = asyncio.Condition()

    async def never_end(self, name: str) -> None:
        """Run until cancelled, as the function of a step."""
        await self._note(self.begun.update, [name])
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped_at[name] = time.monotonic()

    async def release(self, name: str) -> None:
        """Clean up, as the function of a step."""
        self.released_at[name] = time.monotonic()
        await self._note(self.released.update, [name])

    async def wait_for_begin(self, *names: str) -> None:
        """Wait until the functions of these names have begun."""
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(lambda: all(self.begun[name] for name in names))

    async def wait_for_release(self, name: str) -> None:
        """Wait until the cleanup of this name has run."""
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(lambda: self.released[name] > 0)

    async def _note(self, note: Callable[[list[str]], None], names: list[str]) -> None:
        async with self._changed:
            note(names)
            self._changed.notify_all()


class Bench:
    """An app with a worker, and the engine of an operator in another connection."""

    def __init__(self, store: TestStore) -> None:
        options: Any = {"durable": False}
        if isinstance(store, PostgresTestStore):
            options["schema"] = store.schema
        self.app = App(store.url, options=options)
        self.ledger, self.tally, self._store = Ledger(), Tally(), store
        self.operator: Engine

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Run the worker and open the operator's engine inside the block."""
        async with self.app, opened(self._store) as self.operator, self.app.worker(concurrency=SLOTS, lease=LEASE_S):
            yield
        if isinstance(self._store, PostgresTestStore):
            await self._store.drop()

    async def run(self, faults: int, inject: Callable[[int], Awaitable[None]]) -> Tally:
        """Inject the faults, some at the same time, and return the tally."""
        async with self.working():
            for start in range(0, faults, TOGETHER):
                numbers = range(start, min(start + TOGETHER, faults))
                self.tally.injected += len(numbers)
                self.tally.executions += len(numbers)
                await asyncio.gather(*(self._inject(inject, number) for number in numbers))
        return self.tally

    async def _inject(self, inject: Callable[[int], Awaitable[None]], number: int) -> None:
        try:
            await inject(number)
        except TimeoutError:
            self.tally.stuck.append(f"number {number} did not end within {PATIENCE_S:g} s")

    async def wait_for_end(self, id_: UUID) -> State:
        """Wait until an execution has ended, and return its state."""
        outcome = await self.operator.executions.wait(id_, timeout=PATIENCE_S)
        if outcome is None:
            raise TimeoutError
        return outcome.state

    async def note_recovery(self, name: str, since: float) -> None:
        """Wait until the code of this name has stopped, and note how long that took."""
        async with asyncio.timeout(PATIENCE_S):
            while name not in self.ledger.stopped_at:  # noqa: ASYNC110 - the code stops in its own time
                await asyncio.sleep(0.002)
        self.tally.recoveries_s.append(max(0.0, self.ledger.stopped_at[name] - since))


async def _reach_running_code(trial: Trial) -> Tally:
    bench = Bench(trial.new_store())
    causes = Causes(bench)

    async def inject(n: int) -> None:
        await bench.note_recovery(str(n), await causes.interrupt(n))

    tally = await bench.run(trial.faults, inject)
    times = sorted(tally.recoveries_s)
    if times and times[int(0.99 * (len(times) - 1))] > LIMIT_S:
        tally.wrong.append(f"99 % of the cancels took up to {times[int(0.99 * (len(times) - 1))]:.2f} s to arrive")
    return tally


class Causes:
    """Every way in which another process interrupts running code. Each returns the time of its commit."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._winners: dict[int, asyncio.Event] = {}
        app, ledger, winners = bench.app, bench.ledger, self._winners

        @app.task
        async def work(n: int) -> None:
            await step(ledger.never_end, str(n))

        @app.task
        async def parent(n: int) -> None:
            await work.run(n)

        @app.task
        async def winner(n: int) -> None:
            await winners[n].wait()

        @app.task
        async def racer(n: int) -> None:
            await race(work.run(n), winner.run(n))

        self._work, self._parent, self._racer = work, parent, racer

    async def interrupt(self, n: int) -> float:
        """Start the code with this number, and interrupt it in one of the ways."""
        causes = (
            self.cancel, self.cancel_with_grace, self.cancel_parent, self.cancel_flow, self.lose_race, self.expire,
        )  # fmt: skip
        return await causes[n % len(causes)](n)

    async def cancel(self, n: int) -> float:
        """Cancel an execution."""
        return await self._cancel(n, await self._work.submit(n))

    async def cancel_with_grace(self, n: int) -> float:
        """Request a cancel."""
        return await self._cancel(n, await self._work.submit(n), grace="1h")

    async def cancel_parent(self, n: int) -> float:
        """Cancel the parent of the execution."""
        return await self._cancel(n, await self._parent.submit(n), children=True)

    async def cancel_flow(self, n: int) -> float:
        """Cancel the flow of the execution."""
        flow = self._bench.app.flow("work")
        flow.add(self._work, n)
        handle = await flow.submit()
        await self._bench.ledger.wait_for_begin(str(n))
        await self._bench.operator.flows.cancel(handle.id)
        return time.monotonic()

    async def lose_race(self, n: int) -> float:
        """Let another child of the same parent win a race."""
        self._winners[n] = asyncio.Event()
        _ = await self._racer.submit(n)
        await self._bench.ledger.wait_for_begin(str(n))
        self._winners[n].set()
        return time.monotonic()

    async def expire(self, n: int) -> float:
        """Let the deadline pass."""
        handle = await self._work.options(deadline="1s").submit(n)
        await self._bench.wait_for_end(handle.id)
        return time.monotonic()

    async def _cancel(self, n: int, handle: Handle[None], **options: Any) -> float:
        await self._bench.ledger.wait_for_begin(str(n))
        await self._bench.operator.operator.cancel(handle.id, **options)
        return time.monotonic()


async def _cancel_with_grace(trial: Trial) -> Tally:
    bench = Bench(trial.new_store())
    programs, chance = _programs(bench), trial.random()

    async def inject(n: int) -> None:
        kind = chance.choice(sorted(programs))
        task, name = programs[kind], f"{kind} {n}"
        handle = cast(Handle[None], await task.submit(name))
        await bench.ledger.wait_for_begin(name)
        since = time.monotonic()
        await bench.operator.operator.cancel(handle.id, children=True, grace=GRACE_S)
        state = await bench.wait_for_end(handle.id)
        if state is not State.CANCELLED:
            bench.tally.wrong.append(f"{name} is {state}")
        if not bench.ledger.released[name]:
            bench.tally.lost.append(f"the cleanup of {name} did not run")
        elif bench.ledger.released[name] > 1 or bench.ledger.begun[name] > 1:
            bench.tally.doubled.append(f"{name} ran again after its cancel")
        else:
            bench.tally.recoveries_s.append(bench.ledger.released_at[name] - since)

    return await bench.run(trial.faults, inject)


def _programs(bench: Bench) -> dict[str, Any]:
    """Return tasks that clean up after a running step: alone, in every group, in a saga and in a plain function."""
    app, ledger = bench.app, bench.ledger

    @app.task
    async def alone(name: str) -> None:
        try:
            await step(ledger.never_end, name)
        finally:
            await step(ledger.release, name)

    def in_group(group: Any) -> Callable[[str], Awaitable[None]]:
        async def branch(name: str) -> None:
            await step(ledger.never_end, name)

        async def task(name: str) -> None:
            try:
                await group(branch(name), step(ledger.never_end, f"{name} too"))
            finally:
                await step(ledger.release, name)

        return task

    @app.task
    async def undone(name: str) -> None:
        async with saga() as undo:
            undo.add(ledger.release, name)
            await step(ledger.never_end, name)

    @app.task
    async def caught(name: str) -> None:
        try:
            await step(ledger.never_end, name)
        except CancelRequested:
            await step(ledger.release, name)
            raise

    @app.task
    def plain(name: str) -> None:
        try:
            sync.step(ledger.never_end, name)
        finally:
            sync.step(ledger.release, name)

    groups = {group.__name__: app.task(name=group.__name__)(in_group(group)) for group in (gather, race, settle)}
    return {"alone": alone, "undone": undone, "caught": caught, "plain": plain, **groups}


async def _end_trees(trial: Trial) -> Tally:
    bench = Bench(trial.new_store())
    trees = Trees(bench)
    return await bench.run(trial.faults, lambda n: trees.end(n, _grow(trial.random(str(n)), depth=2)))


class Trees:
    """Trees of children that never end, and three ways to end their root."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        app, ledger = bench.app, bench.ledger

        @app.task(retries=0)
        async def node(name: str, tree: list[Any]) -> None:
            for number, inner in enumerate(tree):
                _ = await node.submit(f"{name}.{number}", inner)
            await step(ledger.never_end, name)

        @app.task(retries=0, timeout="2s")
        async def timed(name: str, tree: list[Any]) -> None:
            for number, inner in enumerate(tree):
                _ = await node.submit(f"{name}.{number}", inner)
            await step(ledger.never_end, name)

        @app.task
        async def free(name: str) -> None:
            await step(ledger.release, name)

        @app.task(deadline="2s")
        async def bounded(name: str, tree: list[Any]) -> None:
            _ = await free.options(detached=True, delay="3s").submit(name)
            await gather(*(node.run(f"{name}.{number}", inner) for number, inner in enumerate(tree)))

        self._roots = (bounded, timed, node)

    async def end(self, n: int, tree: list[Any]) -> None:
        """Start a tree, end its root, and check that everything in the tree has ended."""
        bench, root, name = self._bench, self._roots[n % len(self._roots)], f"tree {n}"
        handle = await root.submit(name, tree)
        if n % len(self._roots) == 2:
            await bench.ledger.wait_for_begin(*_names(name, tree))
            await bench.operator.operator.cancel(handle.id, children=True)
        await bench.wait_for_end(handle.id)
        since = time.monotonic()
        await _check_tree(bench, handle.id, name, since)
        for each in _names(name, tree):
            if bench.ledger.begun[each]:
                await bench.note_recovery(each, since)
        if n % len(self._roots) == 0:
            await bench.ledger.wait_for_release(name)


async def _check_tree(bench: Bench, root: UUID, name: str, since: float) -> None:
    """Note every descendant that has not ended in time, or that ended in another way."""
    parents = [root]
    while parents:
        children = [child for id_ in parents for child in await bench.operator.executions.children(id_)]
        for child in children:
            left_s = max(0.05, since + PATIENCE_S - time.monotonic())
            outcome = await bench.operator.executions.wait(child.id, timeout=left_s)
            if outcome is None:
                bench.tally.stuck.append(f"child {child.id} of {name} continues after the end of its parent")
            elif outcome.state not in (State.CANCELLED, State.EXPIRED):
                bench.tally.wrong.append(f"child {child.id} of {name} is {outcome.state}")
        parents = [child.id for child in children]


def _grow(chance: random.Random, depth: int) -> list[Any]:
    return [_grow(chance, depth - 1) if depth else [] for _ in range(chance.randint(1, 3))]


def _names(name: str, tree: list[Any]) -> list[str]:
    return [name, *(inner for number, each in enumerate(tree) for inner in _names(f"{name}.{number}", each))]


ROWS = (
    Row(
        "cancel of running code",
        "Cancels, deadlines and lost races end executions whose async steps run, from another connection",
        _reach_running_code,
        minimum=300,
        short_minimum=12,
        lease_s=LEASE_S,
    ),
    Row(
        "cancel with grace",
        "A cancel with grace meets a running step, alone, in groups, in sagas and in plain functions",
        _cancel_with_grace,
        minimum=300,
        short_minimum=12,
        lease_s=LEASE_S,
    ),
    Row(
        "ended trees",
        "A deadline, an attempt timeout or a cancel ends the root of a tree of running children",
        _end_trees,
        minimum=60,
        short_minimum=3,
        lease_s=LEASE_S,
    ),
)
