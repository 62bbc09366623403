"""Direct calls of task functions, without a store. Steps call their function, sleeps return immediately."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, cast
from uuid import uuid4

from flowfabric.app.app import App
from flowfabric.app.client_thread import run_on_client_thread, running_loop
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.executions.outcomes import Lease
from flowfabric.core.executions.records import Fence, WorkerId
from flowfabric.core.flows.graph import ChildSubmission
from flowfabric.engine.engine import Engine
from flowfabric.runtime.branch import BRANCH, Branch
from flowfabric.runtime.journal import Record, Scope
from flowfabric.runtime.record_writer import RecordWriter
from flowfabric.runtime.run import RunHooks, TaskRun
from flowfabric.runtime.suspension import Suspender
from flowfabric.runtime.threads import ThreadPools
from flowfabric.runtime.waits import DueTimeReached, Verdict, Wait

_MAX_THREADS = 4
_LEASE_TTL = timedelta(days=1)


@contextmanager
def direct() -> Iterator[None]:
    """Let the code in the `with` block call `task.fn(…)` like any function: `await refund.fn("o-17")`.

    A step calls its function once, unless the step has its own retry policy. Sleeps and backoffs return immediately.
    Nothing is stored. Signals, approvals, callbacks and children raise `InvalidRequest`; test them with a `Kit`.
    """
    threads = ThreadPools(_MAX_THREADS)
    token = BRANCH.set(_DirectBranch(threads))
    try:
        yield
    finally:
        BRANCH.reset(token)
        threads.close()


class _StrictHooks(RunHooks):
    is_strict = True


class _DirectBranch(Branch):
    """The branch of all calls in a `direct` block. On each new event loop, it makes a new run."""

    __slots__ = ("_app", "_run", "_threads")

    def __init__(self, threads: ThreadPools) -> None:
        self._app, self._threads = App(":memory:", arguments="off"), threads
        self._run: TaskRun | None = None
        self.scope, self.parent, self.wait_group, self.thread, self.segment = Scope(), None, None, None, None
        self.race, self.group = None, None
        self.is_bridging = self._is_dropped = False
        self.children, self.waitpoints = set(), set()

    @property
    def run(self) -> TaskRun:  # type: ignore[override]
        loop = running_loop()
        if self._run is None or loop not in (None, self._run.loop):
            # Without a running event loop, create the run on the loop of the client thread. Use an empty context for
            # this, because inside this branch the creation would become a durable call.
            make_run = self._make_run
            self._run = (
                Context().run(run_on_client_thread, make_run) if loop is None else _DirectRun(self._app, self._threads)
            )
        return self._run

    async def _make_run(self) -> TaskRun:
        return _DirectRun(self._app, self._threads)

    @property
    def is_plain(self) -> bool:  # type: ignore[override]
        return running_loop() is None

    @property
    def task(self) -> asyncio.Task[Any] | None:
        return None if running_loop() is None else asyncio.current_task()

    @task.setter
    def task(self, task: object) -> None: ...

    def check_caller(self) -> None: ...


class _DirectRun(TaskRun):
    def __init__(self, app: App, threads: ThreadPools) -> None:
        task = app.tasks.get("direct") or app.task(name="direct", retries=0)(_do_nothing)
        super().__init__(app, task, cast(Engine, _DirectClock()), _make_lease(), threads, _StrictHooks())

    def _reset(self) -> None:
        super()._reset()
        self.record_writer, self.suspender = _DirectRecordWriter(self), _DirectSuspender(self)


class _DirectClock:
    """The clock of this host, in place of the engine. Every call that needs more of an engine is refused first."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class _DirectRecordWriter(RecordWriter):
    async def write(self, record: Record) -> None:
        self.enqueue(record)

    def report(self, record: Record) -> None:
        self.enqueue(record)

    async def commit_with(self, operation: Any, *, keeps_lease: bool = False) -> Any:
        _refuse("tokens and links")

    async def submit(self, child: ChildSubmission, record: Record | None) -> Any:
        _refuse(child.key)


class _DirectSuspender(Suspender):
    async def wait(self, branch: Branch, wait: Wait) -> Verdict:
        if wait.condition() is not None or wait.due is None:
            _refuse(wait.path)
        return DueTimeReached(wait.due)


def _refuse(feature: str) -> NoReturn:
    message = f"a direct call cannot use {feature}; use testing.Kit"
    raise InvalidRequest("direct_call", message)


def _make_lease() -> Lease:
    now = datetime.now(UTC)
    return Lease(
        fence=Fence(uuid4(), 1, uuid4()),
        namespace="default",
        lane="default",
        kind="direct",
        priority=0,
        payload=b"{}",
        encoding="json",
        tags={},
        worker=WorkerId("direct", "direct"),
        origin="fresh",
        attempt_index=1,
        generation=0,
        acquired_at=now,
        expires_at=now + _LEASE_TTL,
        ttl=_LEASE_TTL,
        deadline_at=None,
        attempt_timeout_at=None,
        is_standalone=True,
        has_journal=False,
    )


async def _do_nothing() -> None: ...
