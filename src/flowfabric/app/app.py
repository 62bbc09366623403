"""The app: one store, the tasks in it, and the workers that run them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, Unpack, cast, overload
from uuid import UUID
from weakref import WeakSet

from flowfabric.app import loader, submit, workers
from flowfabric.app.flow import Flow
from flowfabric.app.handle import Handle
from flowfabric.app.store_address import resolve_store, working_directory
from flowfabric.app.task import Call, Registry, Task, codecs_for, task_name
from flowfabric.app.workers import DEFAULT_CONCURRENCY, DEFAULT_LEASE
from flowfabric.core import validation
from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.core.policy import Backoff
from flowfabric.core.store_address import make_absolute
from flowfabric.runtime import signals
from flowfabric.runtime.branch import BRANCH
from flowfabric.runtime.options import check_settings
from flowfabric.runtime.runner import TaskSettings
from flowfabric.runtime.signals import Delivery, Signal
from flowfabric.store.forks import Forks
from flowfabric.values import ValueCodec, frame_namespace
from flowfabric.values.aliases import Async, Durable, Duration, P, R, awaited_as

if TYPE_CHECKING:
    from flowfabric.app import sync_client
    from flowfabric.engine.engine import Engine
    from flowfabric.engine.opener import EngineOpener, StoreOptions
    from flowfabric.worker import Worker

_BACKOFF = Backoff()
# With this mark, pytest leaves out the frames of this module, so that a failed test shows the lines of the user.
__tracebackhide__ = True
_apps: WeakSet[App] = WeakSet()


class TaskDecorator(Protocol):
    """The decorator that `@app.task(…)` returns."""

    @overload
    def __call__(self, fn: Async[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Task[P, R]: ...


class App:
    """Tasks, and the store of their executions.

    `store` is a path, `sqlite:///path`, `postgresql://…` or `:memory:`. It defaults to the environment variable
    FLOWFABRIC_STORE, or else to `flowfabric.db` in the working directory. The store is opened on first use, once per
    event loop. It is closed at the end of `async with app` or of the loop. `url` is the public address of `app.asgi()`;
    all links begin with it. Workers import the modules in `imports`, which contain more tasks. `arguments` decides what
    happens if a later run makes a recorded call with different arguments. The app holds the execution (`hold`), warns
    (`warn`) or ignores the difference (`off`). `options` are options of `flowfabric.engine.connect`, for example
    `{"pooler": True}` behind PgBouncer, `{"schema": "jobs"}` or `{"key_file": …}`. Workers register `code_version`, for
    example the commit of a deployment. It defaults to a digest of the tasks and the modules around them.
    """

    def __init__(
        self,
        store: str | None = None,
        *,
        namespace: str = "default",
        url: str | None = None,
        imports: Sequence[str] = (),
        arguments: Literal["hold", "warn", "off"] = "hold",
        options: StoreOptions | None = None,
        code_version: str | None = None,
    ) -> None:
        self.code_version = None if code_version is None else validation.name(code_version, "code_version")
        self._folder = working_directory()
        self._store = None if store is None else make_absolute(_validate_store(store), self._folder)
        self.namespace = validation.name(namespace, "namespace")
        self.url = None if url is None else signals.validate_base_url(url)
        self.imports = () if imports == () else validation.names(imports, "imports")
        if arguments not in ("hold", "warn", "off"):
            raise InvalidRequest("invalid_choice", "arguments must be 'hold', 'warn' or 'off'", field="arguments")
        self.arguments = arguments
        self.registry = Registry()
        self.tasks = self.registry.tasks
        self.engines = Engines(self.namespace, _validate_options(options))
        self.callbacks: dict[tuple[str, str], ValueCodec[Any]] = {}
        _apps.add(self)

    @property
    def store(self) -> str:
        """The address of the store. A relative path refers to the working directory in which the app was created."""
        return self._store or resolve_store(None, self._folder)

    @overload
    def task(self, fn: Async[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        version: int = 1,
        retries: int = 3,
        backoff: Backoff = _BACKOFF,
        timeout: Duration | None = None,
        deadline: Duration | None = None,
        lane: str = "default",
        priority: int = 0,
        requires: Collection[str] = (),
        retention: Duration | None = None,
        signals: Collection[Signal[Any]] = (),
        raises: Collection[type[Exception]] = (),
        cancel_grace: Duration | None = None,
        retry_on: Collection[str | type[Exception]] = (),
    ) -> TaskDecorator: ...
    # mypy wrongly reports that an overload requires the optional positional argument.
    def task(  # type: ignore[misc]
        self, fn: Callable[..., Any] | None = None, /, *, name: str | None = None, **settings: Any
    ) -> Any:
        """Make a function a task: `@app.task`, or `@app.task(…)` with settings for its executions.

        The kind of the task is `name` or the function's name. From `version=2` on, the kind includes the version. Each
        submit uses the newest version. Exceptions in `raises` are expected results: they are not retried, and a caller
        that waits gets an exception of the same class. The execution accepts the signals in `signals` as soon as it is
        submitted. With `retry_on`, the task and its steps retry only failures of these categories or classes.
        """
        task_settings = TaskSettings(**check_settings(settings))
        names = frame_namespace(sys._getframe(1))

        def register(fn: Callable[..., Any]) -> Task[..., Any]:
            codecs = codecs_for(fn, names)
            task: Task[..., Any] = Task(self, task_name(fn, name), fn, codecs, task_settings)
            task.submission_of(b"")  # Report invalid settings here, where they are written.
            self.registry.add(task)
            return task

        return register if fn is None else register(fn)

    @overload
    def run(
        self,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        lanes: Collection[str] | None = None,
        capabilities: Collection[str] = (),
        lease: Duration = DEFAULT_LEASE,
    ) -> None: ...
    @overload
    def run(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def run(self, task: Task[..., Any] | None = None, /, *args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
        """Run a worker in the foreground until SIGTERM or SIGINT.

        The worker serves all lanes of the app's tasks, or only `lanes`. Its messages go to standard error, unless the
        program configures logging.

        With a task, submit an execution of it, run a worker for all tasks of the app until that execution has ended,
        and return its result. If the program is interrupted, the execution stays stored. A later `app.run` with the
        same key continues that execution.
        """
        loader.refuse_while_importing()
        if task is None:
            return workers.run_until_signalled(self, kwargs)
        if not isinstance(task, Task):
            message = f"app.run takes a task and its arguments, as in app.run(task, …), not {type(task).__name__}"
            raise InvalidRequest("invalid_type", message, field="task")
        if task.app is not self:
            raise InvalidRequest("other_app", f"{task.name} is a task of another app", kind=task.name)
        return workers.run_until_ended(self, task, args, kwargs)

    def worker(
        self,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        lanes: Collection[str] | None = None,
        capabilities: Collection[str] = (),
        lease: Duration = DEFAULT_LEASE,
    ) -> AbstractAsyncContextManager[Worker]:
        """Run a worker on the current event loop inside the `async with` block.

        The worker serves all lanes of the app's tasks, or only `lanes`. If its process dies, other workers take over
        its work after at most two `lease` periods.
        """
        return workers.enter_worker(self, concurrency=concurrency, lanes=lanes, capabilities=capabilities, lease=lease)

    def submit_many(self, calls: Iterable[Call[R]]) -> Durable[list[Handle[R]]]:
        """Store many calls, each made by `task.call(…)`, in batches. Return their handles in the order of the calls."""
        return submit.submit_many(self, calls)

    def handle(self, id: UUID | str) -> Handle[Any]:
        """Return the handle of any execution. A handle from `task.handle(id)` also knows the type of the result."""
        return Handle(self, id)

    def make_handle(self, id: UUID, task: Task[..., R] | None) -> Handle[R]:
        """Return the handle of an execution of `task`. The runtime calls this for the children of a task."""
        return Handle(self, id, task)

    def signal(
        self, token: str, name: str, payload: object = None, *, signal_id: UUID | str | None = None
    ) -> Durable[Delivery]:
        """Deliver a signal with this name and a JSON payload to the waitpoint of the token."""
        return signals.deliver(self.engine, token, name, payload, signal_id)

    def approve(self, token: str, comment: str = "") -> Durable[Delivery]:
        """Approve on behalf of the token's approver. Only the first decision of an approver counts."""
        return signals.send_decision(self.engine, token, "approve", comment)

    def reject(self, token: str, reason: str = "") -> Durable[Delivery]:
        """Reject on behalf of the token's approver. Only the first decision of an approver counts."""
        return signals.send_decision(self.engine, token, "reject", reason)

    def flow(self, name: str | None = None) -> Flow:
        """Return an empty flow. Add tasks to it, then submit it."""
        return Flow(self, name)

    def asgi(self) -> Any:
        """Return an ASGI application for approval links and callbacks. Serve it at the app's `url`."""
        from flowfabric.web import asgi_app

        return asgi_app(self.engine, check_payload=partial(_payload_error, self), close=self.engines.close)

    def check(self) -> None:
        """Import the app's modules and resolve all annotations of its tasks. Raise the first error."""
        loader.import_all(self.imports)
        for task in self.tasks.values():
            task.inputs.check()
            _ = task.result_codec, [signal.payload_type for signal in task.settings.signals]

    async def engine(self) -> Engine:
        """Return the engine of the running event loop. The first call opens the engine.

        Inside a task, it acts in the namespace of the task's execution.
        """
        engine, branch = self.engines.ready or await self.engines.get(self.store), BRANCH.get()
        return engine if branch is None or branch.run.app is not self else engine.for_lease(branch.run.lease)

    @property
    def sync(self) -> sync_client.App:
        """The methods of this app for plain (not async) code."""
        from flowfabric.app import sync_client

        return sync_client.App(self)

    def close(self) -> Durable[None]:
        """Close the engine of the running loop, as `async with app` does. The next use opens a new engine."""
        return self.engines.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<app of {len(self.tasks)} tasks in namespace {self.namespace!r}>"


def current_app() -> App:
    """Return the app of the running task, or, outside of tasks, the only app of this process."""
    branch = BRANCH.get()
    if branch is not None:
        return cast(App, branch.run.app)
    if len(_apps) == 1:
        return next(iter(_apps))
    message = f"the handle was restored without its app, and there are {len(_apps)}; use app.handle(handle.id)"
    raise InvalidRequest("app_unknown", message)


def _validate_store(store: object) -> str:
    address = validation.text(store, "store")
    if not address.strip():
        message = "store is empty; give a path or a URL, or leave it out to use FLOWFABRIC_STORE or flowfabric.db"
        raise InvalidRequest("invalid_url", message, field="store")
    return address


def _payload_error(app: App, kind: str, key: str, payload: bytes) -> str | None:
    """Return the error message for a callback's payload, or None if no error was found.

    The payload is checked only if a task in this process has made the callback, since only then its type is known.
    """
    codec = app.callbacks.get((kind, key))
    try:
        if codec is not None:
            codec.restore(payload)
    except FlowFabricError as error:
        return error.message
    return None


# An app has one engine per event loop, opened on first use. The engine's modules are also imported only then, so that a
# program that only declares tasks, or prints its help, starts sooner.


_Loop = asyncio.AbstractEventLoop


class Engines:
    """The engines of one store, one per event loop.

    A database connection belongs to the loop and the process that opened it. So every loop has its own engine, and a
    forked child process starts without engines.
    """

    def __init__(self, namespace: str, options: StoreOptions) -> None:
        self._namespace = namespace
        self._options = options
        self._reset()

    def _reset(self) -> None:
        self._forks = Forks.number
        self._opening: dict[_Loop, asyncio.Task[Engine]] = {}
        self._open: dict[_Loop, AsyncGenerator[Engine, None]] = {}
        self._adopted: dict[_Loop, Engine] = {}
        self._ready: dict[_Loop, Engine] = {}

    def set_options(self, **options: Unpack[StoreOptions]) -> None:
        """Add options for engines that are opened later.

        Raise if the app itself sets an option to a different value.
        """
        for name, value in options.items():
            own = self._options.get(name, value)
            if own != value:
                message = f"the app has {name}={own!r}; omit the other value {value!r}"
                raise InvalidRequest("other_option", message, field=name)
        self._options = _validate_options({**self._options, **options})

    def opener(self, store: str, **instead: Unpack[StoreOptions]) -> EngineOpener:
        """Return an opener of an engine with the app's options, some of them replaced by the options in `instead`."""
        from flowfabric.engine.opener import connect

        options: StoreOptions = {**self._options, **instead}
        return connect(store, namespace=self._namespace, **options)

    @property
    def ready(self) -> Engine | None:
        """The open engine of the running loop, if there is one."""
        loop = asyncio.get_running_loop()
        return (self._adopted.get(loop) or self._ready.get(loop)) if self._forks == Forks.number else None

    async def get(self, store: str) -> Engine:
        """Return the engine of the running loop. The engine is closed by `close` or at the end of the loop."""
        if (ready := self.ready) is not None:
            return ready
        loop = asyncio.get_running_loop()
        self._drop_closed()
        if loop not in self._opening:
            # The engine's tasks must not inherit the context of the first caller.
            self._opening[loop] = loop.create_task(self._start(loop, store), context=Context())
        opening = self._opening[loop]
        try:
            # A caller that stops waiting must not cancel the opening for the others.
            return await asyncio.shield(opening)
        except BaseException:
            if opening.done() and (opening.cancelled() or opening.exception()):
                self._opening.pop(loop, None)
            raise

    def adopt(self, engine: Engine | None) -> None:
        """Use this engine for the running loop. The caller must close the engine.

        With None, the loop uses an engine that this app opens again.
        """
        self._drop_closed()
        loop = asyncio.get_running_loop()
        if engine is None:
            self._adopted.pop(loop, None)
        else:
            self._adopted[loop] = engine

    @property
    def is_adopted(self) -> bool:
        """True while the running loop uses an engine that this app did not open."""
        return asyncio.get_running_loop() in self._adopted

    @awaited_as("App.close")
    async def close(self, timeout_s: float | None = None) -> None:
        """Close the engine that was opened for the running loop. The next call of `get` opens a new engine."""
        loop = asyncio.get_running_loop()
        self._opening.pop(loop, None)
        ready, opened = self._ready.pop(loop, None), self._open.pop(loop, None)
        if ready is not None and timeout_s is not None:
            await ready.close(timeout_s)
        if opened is not None:
            await opened.aclose()

    async def _start(self, loop: _Loop, store: str) -> Engine:
        opened = _keep_open(self.opener(store))
        engine = await anext(opened)
        self._open[loop] = opened
        self._ready[loop] = engine
        return engine

    def _drop_closed(self) -> None:
        """Forget loops that have ended. After a fork, forget all loops without closing their engines.

        Closing them would close the connections of the parent process.
        """
        if self._forks != Forks.number:
            self._reset()
        for by_loop in (self._opening, self._open, self._adopted, self._ready):
            # Another thread may add or remove its loop at the same time.
            for loop in [loop for loop in list(by_loop) if loop.is_closed()]:
                by_loop.pop(loop, None)


async def _keep_open(opener: EngineOpener) -> AsyncGenerator[Engine, None]:
    """Yield the engine, which stays open until the generator is closed.

    `asyncio.run` closes async generators when its loop ends, so a program without `async with app` leaves nothing open.
    """
    async with opener as engine:
        yield engine


def _validate_options(options: object) -> StoreOptions:
    """Return the options if `connect` accepts them, else raise. So the error appears where the app is created."""
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        message = f"options must be a mapping, not {type(options).__name__}"
        raise InvalidRequest("invalid_type", message, field="options")
    from flowfabric.engine.opener import StoreOptions, connect

    unknown = sorted(str(name) for name in options.keys() - StoreOptions.__annotations__.keys())
    if unknown:
        names = ", ".join(StoreOptions.__annotations__)
        message = f"options has no {', '.join(unknown)}; use one of {names}"
        raise InvalidRequest("invalid_choice", message, field="options")
    store_options = StoreOptions(**options)  # type: ignore[typeddict-item]
    _ = connect(":memory:", **store_options)
    if key_file := store_options.get("key_file"):
        store_options["key_file"] = make_absolute(key_file, working_directory())
    return store_options
