"""A kit for tests of durable functions, with its own store, a manual clock and planned crashes.

    async with Kit(app) as kit:
        handle = await kit.start(refund, "o-17")
        await kit.approve(handle, "refund", by="ops")
        await kit.advance("1d")
        assert await kit.finish(handle) == "refunded"

Executions run only during calls such as `start`, `advance` and `signal`. Each call returns when no execution can run
until the clock moves or the test acts. In a kit, a result that changes when it is stored is an error, and so is a step
that changes its arguments.
"""

from __future__ import annotations

from datetime import datetime
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from flowfabric.app.app import App
from flowfabric.app.handle import Handle
from flowfabric.app.task import Task
from flowfabric.core import validation
from flowfabric.core.ids import IdMinter
from flowfabric.engine.engine import Engine
from flowfabric.engine.opener import connect
from flowfabric.runtime import results
from flowfabric.runtime.signals import Delivery, Signal
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.decisions import Deliveries
from flowfabric.testing.driver import Driver, Stuck
from flowfabric.testing.hooks import Crash, KitHooks, Replay
from flowfabric.values.aliases import Duration, P, R, T

if TYPE_CHECKING:
    from flowfabric.testing.sync_kit import SyncKit

_MAX_CLOCK_MOVES = 10_000
_PAGE_SIZE = 1_000
# With this mark, pytest leaves out the frames of this module, so that a failed test shows the lines of the user.
__tracebackhide__ = True


class Kit:
    """A runner of the tasks of an app in a test. `store` may be any address, and `options` are passed to `connect`.

    The kit moves the store's time, which never goes back. So it refuses a store that a program has used, unless `adopt`
    is True. Then the store becomes a test store for good.

    With `replay="suspensions"`, each body runs again from its top before it suspends. With `"every record"`, it also
    runs again after every record. At most `concurrency` executions run at the same time. If it is 1, they run in the
    same order in every test run.
    """

    def __init__(
        self,
        app: App,
        store: str = ":memory:",
        *,
        replay: Replay | None = None,
        concurrency: int = 1,
        adopt: bool = False,
        clock: VirtualClock | None = None,
        **options: Any,
    ) -> None:
        self.app = app
        self.clock = VirtualClock() if clock is None else clock
        self.hooks = KitHooks(replay)
        self.concurrency = validation.integer(concurrency, "concurrency", 1, validation.MAX_BATCH)
        self._opener = connect(store, namespace=app.namespace, clock=self.clock, notify=False, **options)
        self._has_own_store = store == ":memory:"
        self._adopt = validation.boolean(adopt, "adopt")
        self._deliveries = Deliveries()
        self.engine: Engine

    async def __aenter__(self) -> Self:
        self.app.check()
        engine = await self._opener.__aenter__()
        try:
            await engine.mark_as_test(adopt=self._adopt)
        except BaseException:
            await self._opener.__aexit__()
            raise
        self.engine = engine.with_ids(_make_repeatable_ids(self.clock)) if self._has_own_store else engine
        # A store that was used before may have a later time than the clock, and its time must not go back.
        self.clock.advance_to(await self.engine.reconcilers.now())
        self.app.engines.adopt(self.engine)
        self._driver = Driver(self.app, self.engine, self.clock, self.hooks, self.concurrency)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._driver.stop()
        self.app.engines.adopt(None)
        await self._opener.__aexit__()
        if error is None and self.hooks.crashes:
            raise Stuck(f"planned crashes never happened: {', '.join(map(str, self.hooks.crashes))}")

    @property
    def sync(self) -> SyncKit:
        """This kit for plain code: `with Kit(app).sync as kit`."""
        from flowfabric.testing.sync_kit import SyncKit

        return SyncKit(self)

    async def start(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Submit an execution, run everything that can run now, and return the handle."""
        handle = await task.submit(*args, **kwargs)
        await self.work()
        return handle

    async def run(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Submit an execution and return its result. The clock moves as far as the execution needs."""
        return await self.finish(await self.start(task, *args, **kwargs))

    async def work(self) -> None:
        """Run everything that can run now. Call this after a change that was made without the kit."""
        await self._driver.work()

    async def advance(self, duration: Duration) -> None:
        """Move the clock forward by `duration`. Stop at every due time on the way and run what can run."""
        end = self.clock.now() + validation.duration(duration, "duration")
        await self.work()
        for _ in range(_MAX_CLOCK_MOVES):
            due = await self._driver.next_due()
            if due is None or due > end:
                self.clock.advance_to(end)
                await self.work()
                return
            self._driver.move_to(due)
            await self.work()
        raise Stuck(f"more than {_MAX_CLOCK_MOVES} due times within {duration}")

    async def finish(self, handle: Handle[R]) -> R:
        """Return the result of an execution. The clock moves as far as the execution needs.

        Raise `Stuck` if the execution cannot end without a signal, a decision or another action of the test.
        """
        for _ in range(_MAX_CLOCK_MOVES):
            await self.work()
            if await self.engine.executions.result(handle.id) is not None:
                return await handle
            results.refuse_if_diverged(await self.engine.executions.describe(handle.id))
            due = await self._driver.next_due()
            if due is None:
                raise Stuck(f"{handle!r} cannot continue: {await handle.explain()}")
            self._driver.move_to(due)
        raise Stuck(f"{handle!r} has not ended after {_MAX_CLOCK_MOVES} due times: {await handle.explain()}")

    def now(self) -> datetime:
        """Return the current time of the kit's clock."""
        return self.clock.now()

    async def signal(self, handle: Handle[Any], signal: Signal[T], value: T, *, key: str | None = None) -> Delivery:
        """Send a signal, then run everything that can run."""
        delivery = await self._deliveries.signal(self.engine, handle.id, signal, value, key)
        await self.work()
        return delivery

    async def approve(self, handle: Handle[Any], name: str, *, by: str, comment: str = "") -> Delivery:
        """Approve the open approval `name` as `by`, then run everything that can run."""
        delivery = await self._deliveries.decide(self.engine, handle.id, name, by, "approve", comment)
        await self.work()
        return delivery

    async def reject(self, handle: Handle[Any], name: str, *, by: str, reason: str = "") -> Delivery:
        """Reject the open approval `name` as `by`, then run everything that can run."""
        delivery = await self._deliveries.decide(self.engine, handle.id, name, by, "reject", reason)
        await self.work()
        return delivery

    def crash_after(self, path: str) -> None:
        """Kill the next run that records `path`, right after the record is stored. Later work of that run is lost."""
        self.hooks.crashes.append(Crash("after", path))

    def crash_before(self, path: str) -> None:
        """Kill the next run that records `path`, just before the record is stored. The effect has happened by then."""
        self.hooks.crashes.append(Crash("before", path))

    def duplicate_delivery(self) -> None:
        """Deliver every later signal and decision twice, like a sender that got no reply and retries."""
        self._deliveries.is_duplicating = True

    async def steps(self, handle: Handle[Any]) -> list[str]:
        """Return the paths of all records of an execution, in order."""
        paths: list[str] = []
        after = 0
        while page := await self.engine.executions.steps(handle.id, after=after, limit=_PAGE_SIZE):
            paths += [step.name for step in page]
            after = page[-1].seq
        return paths


def _make_repeatable_ids(clock: VirtualClock) -> IdMinter:
    """Return a minter that makes the same ids in every test run, so that equally old executions keep their order."""
    return IdMinter(lambda: int(clock.now().timestamp() * 1000), Random(0).getrandbits)
