"""A kit for tests of durable functions: a store of its own, a clock that is moved by hand, crashes where you want them.

    async with Kit(app) as kit:
        handle = await kit.start(refund, "o-17")
        await kit.approve(handle, "refund", by="ops")
        await kit.advance("1d")
        assert await kit.finish(handle) == "nobody answered"

Nothing runs by itself: each verb performs what can be performed, and returns when nothing can go on without time or
somebody else. Results that change when they are stored, and steps that change their arguments, are errors here.
"""

from __future__ import annotations

from datetime import datetime
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from flowfabric.core import limits
from flowfabric.core.ids import IdMinter
from flowfabric.engine.connecting import connect
from flowfabric.engine.engine import Engine
from flowfabric.sdk import results
from flowfabric.sdk.aliases import Duration, P, R, T
from flowfabric.sdk.app import App
from flowfabric.sdk.deciding import APPROVE, REJECT
from flowfabric.sdk.handles import Handle
from flowfabric.sdk.signals import Delivery, Signal
from flowfabric.sdk.tasks import Task
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.deciding import Deliveries, Said
from flowfabric.testing.driving import Driver, Stuck
from flowfabric.testing.watching import Crash, Replay, Watch

if TYPE_CHECKING:
    from flowfabric.testing.sync_kit import SyncKit

_MOST_MOVES = 10_000
_PAGE = 1_000


class Kit:
    """Performs the tasks of an app in a test. `store` may be any address; `options` go to `connect`.

    `replay` runs every body again from its top: before each suspension, or after every record too. `concurrency` is how
    many executions are performed at once; one at a time makes their order the same in every run.
    """

    def __init__(
        self, app: App, store: str = ":memory:", *, replay: Replay | None = None, concurrency: int = 1,
        clock: VirtualClock | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.app = app
        self.clock = VirtualClock() if clock is None else clock
        self.watch = Watch(replay)
        self.concurrency = limits.whole(concurrency, "concurrency", 1, limits.BATCH)
        self._connecting = connect(store, namespace=app.namespace, clock=self.clock, notify=False, **options)
        self._is_own = store == ":memory:"
        self._deliveries = Deliveries()
        self.engine: Engine

    async def __aenter__(self) -> Self:
        self.app.check()
        engine = await self._connecting.__aenter__()
        self.engine = engine.minting(_same_ids(self.clock)) if self._is_own else engine
        # Time does not go back in a store that was used before.
        self.clock.advance_to(await self.engine.reconcilers.now())
        self.app.engines.adopt(self.engine)
        self._driver = Driver(self.app, self.engine, self.clock, self.watch, self.concurrency)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._driver.stop()
        self.app.engines.adopt(None)
        await self._connecting.__aexit__()
        if error is None and self.watch.crashes:
            raise Stuck(f"never happened: {', '.join(map(str, self.watch.crashes))}")

    @property
    def sync(self) -> SyncKit:
        """The same for plain code: `with Kit(app).sync as kit`."""
        from flowfabric.testing.sync_kit import SyncKit

        return SyncKit(self)

    async def start(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Submits an execution and performs what can be performed."""
        handle = await task.submit(*args, **kwargs)
        await self.work()
        return handle

    async def run(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Submits an execution and answers its result, skipping time."""
        return await self.finish(await self.start(task, *args, **kwargs))

    async def work(self) -> None:
        """Performs what can be performed; for what was told to the store by other means than the kit's."""
        await self._driver.work()

    async def advance(self, duration: Duration) -> None:
        """Lets this much time go by. It stops at every due time on the way and performs what became possible."""
        end = self.clock.now() + limits.duration(duration, "duration")
        await self.work()
        for _ in range(_MOST_MOVES):
            due = await self._driver.next_due()
            if due is None or due > end:
                self.clock.advance_to(end)
                await self.work()
                return
            self._driver.move_to(due)
            await self.work()
        raise Stuck(f"something is due more than {_MOST_MOVES} times within {duration}")

    async def finish(self, handle: Handle[R]) -> R:
        """The result of an execution. Time is skipped as far as it takes; an execution that waits for somebody is
        told about instead."""
        for _ in range(_MOST_MOVES):
            await self.work()
            if await self.engine.executions.result(handle.id) is not None:
                return await handle
            results.refuse_if_diverged(await self.engine.executions.describe(handle.id))
            due = await self._driver.next_due()
            if due is None:
                raise Stuck(f"{handle!r} cannot go on: {await handle.explain()}")
            self._driver.move_to(due)
        raise Stuck(f"{handle!r} has not ended after {_MOST_MOVES} due times: {await handle.explain()}")

    def now(self) -> datetime:
        """The present time of the kit."""
        return self.clock.now()

    async def signal(self, handle: Handle[Any], signal: Signal[T], value: T, *, key: str | None = None) -> Delivery:
        """Sends a signal, and performs what it makes possible."""
        answer = await self._deliveries.signal(self.engine, handle.id, signal, value, key)
        await self.work()
        return answer

    async def approve(self, handle: Handle[Any], name: str, *, by: str, comment: str = "") -> Delivery:
        """Approves what is open under this name, and performs what that makes possible."""
        answer = await self._deliveries.decide(self.engine, handle.id, name, Said(by, APPROVE, comment))
        await self.work()
        return answer

    async def reject(self, handle: Handle[Any], name: str, *, by: str, reason: str = "") -> Delivery:
        """Rejects what is open under this name, and performs what that makes possible."""
        answer = await self._deliveries.decide(self.engine, handle.id, name, Said(by, REJECT, reason))
        await self.work()
        return answer

    def crash_after(self, path: str) -> None:
        """Kills the run that records this path next, right after that: the record is stored, the rest is lost."""
        self.watch.crashes.append(Crash("after", path))

    def crash_before(self, path: str) -> None:
        """Kills the run that is about to record this path next: what it did has happened, but the record is lost."""
        self.watch.crashes.append(Crash("before", path))

    def duplicate_delivery(self) -> None:
        """From now on every signal and decision is delivered twice, as senders do that do not hear a reply."""
        self._deliveries.come_twice = True

    async def steps(self, handle: Handle[Any]) -> list[str]:
        """The paths of everything that is recorded of an execution, in order."""
        return await _paths(self.engine, handle.id)


def _same_ids(clock: VirtualClock) -> IdMinter:
    """In a store of its own the ids are the same in every run, and so is the order of work that is equally old."""
    return IdMinter(lambda: int(clock.now().timestamp() * 1000), Random(0).getrandbits)


async def _paths(engine: Engine, id_: UUID) -> list[str]:
    found: list[str] = []
    after = 0
    while True:
        page = await engine.executions.steps(id_, after=after, limit=_PAGE)
        found += [step.name for step in page]
        if len(page) < _PAGE:
            return found
        after = page[-1].seq
