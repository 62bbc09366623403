"""The protocols around a run: the calls of a worker, and the needs of a run from its app and task.

worker: claim ──► begin(engine, lease) ──► run() ──────────────────────► the slot is free
                                             ▲
    renewal, signals, notifications ─────────┘  lease_lost, cancel_requested, drain, waits_changed

`App` implements `Host` and `Task` implements `TaskSpec`, so that this package imports neither.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from uuid import UUID
from weakref import WeakKeyDictionary

from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.core.executions.attempts import ATTEMPT_TIMEOUT
from flowfabric.core.executions.outcomes import Lease
from flowfabric.core.executions.requests import Submission
from flowfabric.core.policy import DEFAULT_POLICY, Backoff, Policy
from flowfabric.values import Inputs, ValueCodec
from flowfabric.values.aliases import Duration
from flowfabric.values.guards import is_a

if TYPE_CHECKING:
    from flowfabric.engine.engine import Engine
    from flowfabric.runtime.options import Retryable
    from flowfabric.runtime.signals import Signal


IsHeld: TypeAlias = Callable[[], bool]


def always_held() -> bool:
    """Return True, for a lease whose owner has no clock of its own."""
    return True


class Run(Protocol):
    """The work under one lease. The worker calls all methods on its event loop.

    A notice can arrive late. For example, a renewal may report a lease as lost that the run has just ended. After
    `run` has returned, the worker calls no method but `wait_stopped`.
    """

    async def run(self) -> bool:
        """Work until the lease is ended, released or lost. Raise nothing but CancelledError.

        Return False if the store has not confirmed that the lease has ended. The worker then releases it.
        """

    async def wait_stopped(self) -> None:
        """Return when no code of the run executes any longer. The worker calls this after `run` has returned."""

    def lease_lost(self, error: FlowFabricError) -> None:
        """Stop, and write nothing more: the lease no longer belongs to this worker."""

    def cancel_requested(self, due_at: datetime) -> None:
        """Receive a request to cancel. The engine cancels the execution at `due_at` if it has not ended by then."""

    def drain(self) -> None:
        """Unwind at the next durable call, then release the lease: the process is about to end."""

    def waits_changed(self) -> None:
        """Recheck the waiting branches: something about this execution may have changed."""


class Runner(Protocol):
    """A source of runs for executions of certain kinds."""

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds to claim. The worker begins no executions of other kinds."""

    @property
    def version(self) -> str:
        """The version of the code, which the worker registers. Workers with the same code have the same version."""

    @property
    def is_yielding(self) -> bool:
        """True for a moment after an execution did not match the code. The worker then lets others claim first."""

    def begin(self, engine: Engine, lease: Lease, is_held: IsHeld = always_held) -> Run:
        """Return a new run for a lease, without starting the run. The worker calls this on its event loop.

        `is_held` returns False once the worker's clock has ended the lease. The run must then write nothing more.
        """


class Host(Protocol):
    """The app that a run belongs to."""

    url: str | None
    callbacks: dict[tuple[str, str], ValueCodec[Any]]

    @property
    def arguments(self) -> str:
        """What to do if the arguments of a call differ from the recorded arguments: `hold`, `warn` or `off`."""

    @property
    def code_version(self) -> str | None:
        """The version of the code that the user gave, or None."""

    @property
    def tasks(self) -> Mapping[str, TaskSpec]:
        """The registered tasks by kind."""

    async def engine(self) -> Engine:
        """Return the engine of the running loop."""

    def make_handle(self, id: UUID, task: Any) -> Any:
        """Return the handle of an execution of `task`."""


class TaskSpec(Protocol):
    """A registered durable function."""

    name: str
    base: str
    fn: Callable[..., Any]
    is_async: bool
    inputs: Inputs
    settings: TaskSettings
    call_options: CallOptions
    step_plans: WeakKeyDictionary[Callable[..., Any], Any]

    @property
    def result_codec(self) -> ValueCodec[Any]:
        """The codec that stores and restores results of the task."""

    @property
    def newest(self) -> TaskSpec:
        """The newest registered version of this task, with the same call options."""

    def submission(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Submission:
        """Return the submission of a call of the newest version of this task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """The settings of `@app.task(…)`, which apply to every execution of the task."""

    version: int = 1
    retries: int = DEFAULT_POLICY.max_retries
    backoff: Backoff = field(default_factory=Backoff)
    timeout: Duration | None = None
    deadline: Duration | None = None
    lane: str = "default"
    priority: int = 0
    requires: Collection[str] = ()
    retention: Duration | None = None
    signals: tuple[Signal[Any], ...] = ()
    raises: tuple[type[Exception], ...] = ()
    cancel_grace: Duration | None = None
    retry_on: tuple[Retryable, ...] = ()

    def policy(self, call_options: CallOptions) -> Policy:
        """Return the engine's policy for an execution with these call options."""
        return Policy(
            max_retries=self.retries if call_options.retries is None else call_options.retries,
            backoff=self.backoff,
            attempt_timeout=self.timeout,
            deadline=self.deadline if call_options.deadline is None else call_options.deadline,
            retention=DEFAULT_POLICY.retention if self.retention is None else self.retention,
            retryable_categories=retry_categories(self.retry_on),
            dedup_window=DEFAULT_POLICY.dedup_window if call_options.key_window is None else call_options.key_window,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """The options that `task.options(…)` sets for one execution. Omitted options default to the task's settings."""

    key: str | None = None
    key_window: Duration | None = None
    id: UUID | None = None
    name: str | None = None
    delay: Duration | None = None
    at: datetime | None = None
    deadline: Duration | None = None
    lane: str | None = None
    priority: int | None = None
    retries: int | None = None
    requires: Collection[str] | None = None
    tags: Mapping[str, str] | None = None
    detached: bool = False
    connection: object = None
    creator: str | None = None


def task_called_error(name: str) -> InvalidRequest:
    """Return the error for a task that was called like a function."""
    message = f"`{name}` is a task: use await {name}.run(…), {name}.submit(…), or {name}.fn(…) for the plain function"
    return InvalidRequest("task_called", message, kind=name)


# `retry_on` lists the categories and exception classes of failures that are retried. By default all are retried.


def retry_categories(retry_on: Collection[Retryable]) -> tuple[str, ...]:
    """Return the categories that the engine retries.

    The engine does not know exception classes, so each class is represented by its name.
    """
    named = {retryable if isinstance(retryable, str) else retryable.__name__ for retryable in retry_on}
    if any(isinstance(retryable, type) and issubclass(TimeoutError, retryable) for retryable in retry_on):
        named.add(ATTEMPT_TIMEOUT)
    return tuple(sorted(named))


def retry_category(error: BaseException, category: str, retry_on: Collection[Retryable]) -> str | None:
    """Return the category under which a failure is retried, or None if it is not retried."""
    if not retry_on or category in retry_on:
        return category
    classes = (retryable for retryable in retry_on if isinstance(retryable, type))
    return next((kind.__name__ for kind in classes if is_a(error, kind)), None)


# A worker registers the version of its code, so that others can find a worker with other code.


_DIGEST_CHARACTERS = 12
_YIELD_FOR_S = 15.0
_MAX_REPORTS = 1_000
_diverged_at: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
_reports: WeakKeyDictionary[Any, dict[str, None]] = WeakKeyDictionary()
_digests: WeakKeyDictionary[Any, tuple[tuple[Callable[..., Any], ...], str]] = WeakKeyDictionary()


def code_version(app: Host) -> str:
    """Return the version that the user gave, or else a digest of the tasks and of the modules around them.

    The digest is computed once. Later, a deployment may have replaced the files of this process.
    """
    if app.code_version is not None:
        return app.code_version
    functions = tuple(task.fn for task in app.tasks.values())
    known = _digests.get(app)
    if known is None or known[0] != functions:
        known = _digests[app] = functions, _digest_code(app.tasks)
    return known[1]


def note_divergence(app: Host) -> None:
    """Note that an execution did not match the code of the app, so that workers with other code claim it first."""
    _diverged_at[app] = time.monotonic()


def is_new_report(app: Host, report: str) -> bool:
    """Return True when this process first sees the report of a divergence."""
    reports = _reports.setdefault(app, {})
    is_new = report not in reports
    reports[report] = None
    if len(reports) > _MAX_REPORTS:
        del reports[next(iter(reports))]
    return is_new


def has_diverged_lately(app: Host) -> bool:
    """Return True for a moment after an execution did not match the code of the app."""
    return time.monotonic() - _diverged_at.get(app, -_YIELD_FOR_S) < _YIELD_FOR_S


def _digest_code(tasks: Mapping[str, TaskSpec]) -> str:
    digest = hashlib.sha256()
    for kind, task in sorted(tasks.items()):
        digest.update(kind.encode())
        for part in _code_parts(getattr(inspect.unwrap(task.fn), "__code__", None)):
            digest.update(part.encode())
    files = {file for task in tasks.values() for file in _files_around(task.fn.__module__)}
    for name, content in sorted((file.name, _digest_file(file)) for file in files):
        digest.update(f"{name} {content}".encode())
    return digest.hexdigest()[:_DIGEST_CHARACTERS]


def _code_parts(code: object) -> Iterator[str]:
    """Yield texts that describe a code object, equal in every process."""
    if isinstance(code, CodeType):
        yield f"{code.co_name} {code.co_code.hex()} {code.co_names} {code.co_varnames}"
        for constant in code.co_consts:
            yield from _code_parts(constant)
    elif isinstance(code, frozenset):
        yield from sorted(map(repr, code))
    else:
        yield repr(code)


def _files_around(module: str) -> set[Path]:
    """Return the source files of the loaded modules in the package of a module, or beside a module without package."""
    package, _, inner = module.partition(".")
    if inner:
        names = [name for name in list(sys.modules) if name == package or name.startswith(f"{package}.")]
        return {file for name in names if (file := _source_file(name)) is not None}
    file = _source_file(module)
    beside = {_source_file(name) for name in list(sys.modules)} if file is not None else set()
    return {other for other in beside if other is not None and file is not None and other.parent == file.parent}


def _source_file(module: str) -> Path | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file) if isinstance(file, str) and file.endswith((".py", ".pyc")) else None


@lru_cache(maxsize=10_000)
def _digest_file(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:  # The module was loaded from an archive, or its file is gone.
        return ""
