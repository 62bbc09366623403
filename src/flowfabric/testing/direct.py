"""Task functions called as they are, without a store: steps just call, sleeps return at once, nothing is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, cast
from uuid import uuid4

from flowfabric.core.errors import InvalidRequest
from flowfabric.core.outcomes import Lease
from flowfabric.core.records import Fence, WorkerId
from flowfabric.engine.engine import Engine
from flowfabric.sdk.app import App
from flowfabric.sdk.client_thread import wait_for
from flowfabric.sdk.commits import Commits
from flowfabric.sdk.journal import Record, Scope
from flowfabric.sdk.parking import Due, Verdict, Wait
from flowfabric.sdk.probes import Silent
from flowfabric.sdk.resting import Resting
from flowfabric.sdk.run import Run
from flowfabric.sdk.threads import ThreadPools
from flowfabric.sdk.units import UNIT, Unit

_THREADS = 4
_TERM = timedelta(days=1)


@contextmanager
def direct() -> Iterator[None]:
    """Inside the block `task.fn(…)` can be called like any function: `await refund.fn("o-17")`.

    Steps call their function, once unless their own policy says otherwise; sleeps and backoffs take no time. What waits
    for somebody, and children, need a kit.
    """
    threads = ThreadPools(_THREADS)
    token = UNIT.set(_DirectUnit(threads))
    try:
        yield
    finally:
        UNIT.reset(token)
        threads.close()


class _Strict(Silent):
    is_strict = True


class _DirectUnit(Unit):
    """Stands in for the body of a task wherever it is called, with a run for each event loop that it is called on."""

    __slots__ = ("_app", "_run", "_threads")

    def __init__(self, threads: ThreadPools) -> None:
        self._app, self._threads = App(":memory:", arguments="off"), threads
        self._run: Run | None = None
        self.scope, self.parent, self.together, self.thread, self.stay = Scope(), None, None, None, None
        self.is_bridging = self._is_dropped = False
        self.children, self.waitpoints = set(), set()

    @property
    def run(self) -> Run:  # type: ignore[override]
        loop = _running_loop()
        if self._run is None or loop not in (None, self._run.loop):
            # Plain code has its calls awaited elsewhere; whoever asks for that is not part of a task.
            make = self._new_run
            self._run = Context().run(wait_for, make) if loop is None else _DirectRun(self._app, self._threads)
        return self._run

    async def _new_run(self) -> Run:
        return _DirectRun(self._app, self._threads)

    @property
    def is_plain(self) -> bool:  # type: ignore[override]
        return _running_loop() is None

    @property
    def task(self) -> asyncio.Task[Any] | None:
        return None if _running_loop() is None else asyncio.current_task()

    @task.setter
    def task(self, task: object) -> None: ...

    def check_here(self) -> None: ...


class _DirectRun(Run):
    def __init__(self, app: App, threads: ThreadPools) -> None:
        task = app.tasks.get("direct") or app.task(name="direct", retries=0)(_nothing)
        # Whatever would ask the engine is refused before it does.
        super().__init__(app, task, cast(Engine, None), _lease(), threads, _Strict())

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self.commits, self.resting = _DirectCommits(self), _DirectResting(self)

    def now(self) -> datetime:
        return datetime.now(UTC)


class _DirectCommits(Commits):
    async def write(self, record: Record) -> None:
        self.ride(record)

    async def carry(self, operation: Any, *, goes_on: bool = False) -> Any:
        _refuse("tokens and links")

    async def submit(self, child: Any, record: Record) -> Any:
        _refuse(record.path)


class _DirectResting(Resting):
    async def park(self, unit: Unit, wait: Wait) -> Verdict:
        if wait.condition() is not None or wait.due is None:
            _refuse(wait.path)
        return Due(wait.due)


def _refuse(what: str) -> NoReturn:
    message = f"{what} cannot be had by calling the function directly; use testing.Kit"
    raise InvalidRequest("direct_call", message)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _lease() -> Lease:
    now = datetime.now(UTC)
    return Lease(
        fence=Fence(uuid4(), 1, uuid4()), namespace="default", lane="default", kind="direct", priority=0, payload=b"{}",
        encoding="json", tags={}, worker=WorkerId("direct", "direct"), origin="fresh", attempt_index=1, generation=0,
        acquired_at=now, expires_at=now + _TERM, ttl=_TERM, deadline_at=None, attempt_timeout_at=None, plain=True,
    )  # fmt: skip


async def _nothing() -> None: ...
