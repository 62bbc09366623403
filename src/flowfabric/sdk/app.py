"""The app: one store, and the tasks that are stored in it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, overload
from uuid import UUID
from weakref import WeakSet

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.policy import Backoff
from flowfabric.sdk import importing, registering, signals, submitting, surroundings, units, working
from flowfabric.sdk.aliases import Async, Durable, Duration, P, R
from flowfabric.sdk.deciding import APPROVE, REJECT
from flowfabric.sdk.default_store import default_store
from flowfabric.sdk.engines import Engines, checked_options
from flowfabric.sdk.flows import Flow
from flowfabric.sdk.handles import Handle
from flowfabric.sdk.links import checked_base
from flowfabric.sdk.signals import Delivery, Signal
from flowfabric.sdk.tasks import Call, Task
from flowfabric.sdk.values import Form, names_of
from flowfabric.sdk.working import DEFAULT_LANES, DEFAULT_LEASE

if TYPE_CHECKING:
    from flowfabric.engine.connecting import StoreOptions
    from flowfabric.engine.engine import Engine
    from flowfabric.sdk import sync_client
    from flowfabric.sdk.surroundings import Worker

_BACKOFF = Backoff()
_apps: WeakSet[App] = WeakSet()


class TaskDecorator(Protocol):
    """What `@app.task(…)` makes a task with."""

    @overload
    def __call__(self, fn: Async[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Task[P, R]: ...


class App:
    """Tasks and the store that they are kept in.

    `store` is a path, `sqlite:///path`, `postgresql://…` or `:memory:`; without one it is what the variable
    FLOWFABRIC_STORE says, and otherwise `flowfabric.db` in the working directory. It is opened when it is first needed,
    once for each event loop, and closed by `async with app` or with the loop. `url` is where `app.asgi()` is served,
    the base of links. `imports` are modules with more tasks, imported by workers. `arguments` says what happens when a
    recorded call is made with other arguments than before. `options` are those of `flowfabric.engine.connect`:
    `{"pooler": True}` behind PgBouncer, `{"schema": "jobs"}`, `{"key_file": …}` and others.
    """

    def __init__(
        self, store: str | None = None, *, namespace: str = "default", url: str | None = None,
        imports: Sequence[str] = (), arguments: Literal["hold", "warn", "off"] = "hold",
        options: StoreOptions | None = None,
    ) -> None:  # fmt: skip
        self._store = None if store is None else limits.text(store, "store")
        self.namespace = limits.name(namespace, "namespace")
        self.url = None if url is None else checked_base(url)
        self.imports = () if imports == () else limits.names(imports, "imports")
        if arguments not in ("hold", "warn", "off"):
            raise InvalidRequest("invalid_choice", "arguments must be 'hold', 'warn' or 'off'", field="arguments")
        self.arguments = arguments
        self.registry = registering.Registry()
        self.tasks = self.registry.tasks
        self.engines = Engines(self.namespace, checked_options(options))
        self.callbacks: dict[tuple[str, str], Form[Any]] = {}
        _apps.add(self)

    @property
    def store(self) -> str:
        """The address of the store."""
        return self._store or default_store()

    @overload
    def task(self, fn: Async[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self, *, name: str | None = None, version: int = 1, retries: int = 3, backoff: Backoff = _BACKOFF,
        timeout: Duration | None = None, deadline: Duration | None = None, lane: str = "default", priority: int = 0,
        requires: Collection[str] = (), retention: Duration | None = None, signals: Collection[Signal[Any]] = (),
        raises: Collection[type[Exception]] = (), cancel_grace: Duration | None = None,
        retry_on: Collection[str | type[Exception]] = (),
    ) -> TaskDecorator: ...  # fmt: skip
    # mypy takes an optional positional argument beside keywords for one that some overload cannot leave out.
    def task(  # type: ignore[misc]
        self, fn: Callable[..., Any] | None = None, /, *, name: str | None = None, **settings: Any
    ) -> Any:
        """Makes a task of a function: `@app.task`, or `@app.task(…)` with how its executions are run.

        Its kind is the function's name or `name`; from `version=2` on the number belongs to it, and what is submitted
        under the name goes to the newest version. `raises` are classes that are answers rather than accidents: they
        are not retried, and whoever waits for the result gets that very class. `signals` are taken from the submit on.
        If `retry_on` names categories or classes of failures, only those are retried, by the task and by its steps.
        """
        checked = registering.checked_settings(settings)
        names = names_of(sys._getframe(1))

        def registered(fn: Callable[..., Any]) -> Task[..., Any]:
            forms = registering.forms_of(fn, names)
            task: Task[..., Any] = Task(self, registering.base_name(fn, name), fn, forms, checked)
            task.submission_of(b"")  # Whatever is wrong with the settings is said where they are written.
            self.registry.add(task)
            return task

        return registered if fn is None else registered(fn)

    @overload
    def run(
        self,
        *,
        concurrency: int = 16,
        lanes: Collection[str] = DEFAULT_LANES,
        capabilities: Collection[str] = (),
        lease: Duration = DEFAULT_LEASE,
    ) -> None: ...
    @overload
    def run(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def run(self, task: Task[..., Any] | None = None, /, *args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
        """Works in the foreground: until SIGTERM, or, given a task, until that execution of it has ended.

        With a task it submits, works on everything that the app knows, and answers the result. Interrupted, the
        execution stays stored; submitted with the same key, `app.run` attaches to it again.
        """
        importing.refuse_while_importing()
        return working.run_worker(self, **kwargs) if task is None else working.run_task(self, task, args, kwargs)

    def worker(
        self,
        *,
        concurrency: int = 16,
        lanes: Collection[str] = DEFAULT_LANES,
        capabilities: Collection[str] = (),
        lease: Duration = DEFAULT_LEASE,
    ) -> AbstractAsyncContextManager[Worker]:
        """A worker on the running loop, which works while the block is entered. What it works on is taken over by
        others after at most two `lease` periods if its process dies."""
        return working.worker(self, concurrency=concurrency, lanes=lanes, capabilities=capabilities, lease=lease)

    def submit_many(self, calls: Iterable[Call[R]]) -> Durable[list[Handle[R]]]:
        """Stores many calls, described by `task.call(…)`, in few statements; the handles are in their order."""
        return submitting.submit_many(self, calls)

    def handle(self, id: UUID | str) -> Handle[Any]:
        """The handle of any execution; `task.handle(id)` knows the type of its result."""
        return Handle(self, id)

    def signal(self, token: str, name: str, payload: object = None) -> Durable[Delivery]:
        """Delivers plain JSON under a name to the wait that the token is for."""
        return signals.deliver(self.engine, token, name, payload)

    def approve(self, token: str, comment: str = "") -> Durable[Delivery]:
        """The approval of whoever the token was made for. The first decision counts."""
        return signals.decide(self.engine, token, APPROVE, comment)

    def reject(self, token: str, reason: str = "") -> Durable[Delivery]:
        """The rejection of whoever the token was made for. The first decision counts."""
        return signals.decide(self.engine, token, REJECT, reason)

    def flow(self, name: str | None = None) -> Flow:
        """An empty flow, to which tasks are added before it is submitted."""
        return Flow(self, name)

    def asgi(self) -> Any:
        """An ASGI application that receives links and callbacks, to be mounted where `url` says."""
        return surroundings.receiver(self)

    def check(self) -> None:
        """Imports the app's modules and resolves every annotation of its tasks; raises for the first that is wrong."""
        importing.import_all(self.imports)
        for task in self.tasks.values():
            task.inputs.check()
            _ = task.result_form, [signal.form for signal in task.settings.signals]

    async def engine(self) -> Engine:
        """The engine of the running loop, opened by the first call."""
        return await self.engines.here(self.store)

    @property
    def sync(self) -> sync_client.App:
        """The same verbs for plain code."""
        from flowfabric.sdk import sync_client

        return sync_client.App(self)

    def close(self) -> Durable[None]:
        """Closes the engine of the running loop, as `async with app` does; the next use opens another."""
        return self.engines.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<app of {len(self.tasks)} tasks in namespace {self.namespace!r}>"


def app_of_here() -> App:
    """The app whose task runs here, or else the only one of this process."""
    unit = units.UNIT.get()
    if unit is not None:
        return unit.run.app
    if len(_apps) == 1:
        return next(iter(_apps))
    message = f"the handle was restored without its app, and there are {len(_apps)}; use app.handle(handle.id)"
    raise InvalidRequest("app_unknown", message)
