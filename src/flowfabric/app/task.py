"""Tasks: durable functions with their settings.

A `Task` is not callable. `submit` stores an execution, and `run` also waits for its result. `options` returns the same
task with different options for its calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, update_wrapper
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, cast
from uuid import UUID
from weakref import WeakKeyDictionary

from flowfabric.app import submit
from flowfabric.app.handle import Handle
from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.executions.requests import Submission
from flowfabric.runtime.options import check_options
from flowfabric.runtime.runner import CallOptions, TaskSettings, task_called_error
from flowfabric.values import Inputs, Namespace, ValueCodec, inputs_for, return_codec
from flowfabric.values.aliases import Durable, Duration, P, R, R_co

if TYPE_CHECKING:
    from flowfabric.app import sync_client
    from flowfabric.app.app import App
    from flowfabric.runtime.calls.step import StepPlan


_NO_TAGS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """A validated call that has not been submitted yet."""

    task: Task[..., R_co]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    submission: Submission


class Task(Generic[P, R]):
    """A durable function. `fn` is the function itself, for tests and direct calls."""

    __name__: str
    __qualname__: str

    def __init__(
        self,
        app: App,
        base: str,
        fn: Callable[..., Any],
        codecs: TaskCodecs,
        settings: TaskSettings,
        call_options: CallOptions | None = None,
    ) -> None:
        # Give the task the name, the docstring and the signature of its function, as a decorated function has them.
        update_wrapper(cast(Any, self), fn, updated=())
        self.app = app
        self.base = base
        self.name = base if settings.version == 1 else f"{base}@{settings.version}"
        self.fn = fn
        self.is_async = codecs.is_async
        self.inputs = codecs.inputs
        self._codecs = codecs
        self.settings = settings
        self.call_options = CallOptions() if call_options is None else call_options
        self.step_plans: WeakKeyDictionary[Callable[..., Any], StepPlan] = WeakKeyDictionary()

    if not TYPE_CHECKING:
        # Type checkers must not see this method, so that they reject a call of a task.
        def __call__(self, *args, **kwargs):
            raise task_called_error(self.fn.__name__)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Durable[Handle[R]]:
        """Store an execution and return its handle.

        Inside a task, the execution is a child, which is stored only once even if the task runs again.
        """
        return submit.submit(self, args, kwargs)

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Durable[R]:
        """Store an execution and wait for its result, like `submit` followed by an await of the handle."""
        return submit.run(self, args, kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Return the call without submitting it, for `app.submit_many`."""
        return submit.make_call(self, args, kwargs)

    def continue_with(self, *args: P.args, **kwargs: P.kwargs) -> NoReturn:
        """End this run and restart the same execution with new arguments and an empty journal."""
        from flowfabric.runtime.run import continue_with

        continue_with(self, args, kwargs)

    def handle(self, id: UUID | str) -> Handle[R]:
        """Return the handle of an execution of this task that was submitted before."""
        return Handle(self.app, id, self)

    def by_key(self, key: str) -> Durable[Handle[R]]:
        """Return the handle of the execution that was submitted with this key.

        Raise `NotFound` if no execution of this task holds the key. The key of a child is scoped to its parent, so it
        is not found, unless the child is detached.
        """
        return submit.find_by_key(self, key)

    def options(
        self,
        *,
        key: str | None = None,
        key_window: Duration | None = None,
        id: UUID | str | None = None,
        name: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        deadline: Duration | None = None,
        lane: str | None = None,
        priority: int | None = None,
        retries: int | None = None,
        requires: Collection[str] | None = None,
        tags: Mapping[str, str] | None = None,
        detached: bool = False,
        connection: object = None,
        creator: str | None = None,
    ) -> Task[P, R]:
        """Return the same task with new call options. Options that you omit keep their values.

        With a `key`, a repeated submit returns the same execution as long as that execution is kept, and at least for
        `key_window` after the submit (24 hours). The key belongs to the namespace. The key of a child is scoped to its
        parent, unless the child is detached. With a `key_window` of 0, the key is not stored. A repeated submit with
        the `id` that an `Unavailable` error has in its fields also returns the same execution.

        `name` is for members of a flow. `connection` is a database connection with an open transaction, in which the
        execution is stored. A `detached` child is not cancelled with its parent. `creator` is the name of the person
        or program that submits; lists and `flowfabric show` show it.
        """
        options: dict[str, Any] = {
            "key": key, "key_window": key_window, "id": id, "name": name, "delay": delay, "at": at,
            "deadline": deadline, "lane": lane,
            "priority": priority, "retries": retries, "requires": requires, "tags": tags,
            "detached": None if detached is False else detached, "connection": connection, "creator": creator,
        }  # fmt: skip
        call_options = replace(self.call_options, **check_options(options))
        if call_options.delay is not None and call_options.at is not None:
            raise InvalidRequest("invalid_request", "give delay or at, not both")
        if call_options.key_window is not None and call_options.key is None:
            raise InvalidRequest("invalid_request", "key_window is how long a key holds; give a key too")
        changed: Task[P, R] = Task(self.app, self.base, self.fn, self._codecs, self.settings, call_options)
        changed.submission_of(b"")  # Report invalid options here, where they are written.
        return changed

    @property
    def sync(self) -> sync_client.Task[P, R]:
        """The methods of this task for plain (not async) code. Each returns a value instead of an awaitable."""
        from flowfabric.app import sync_client

        return sync_client.Task(self)

    @property
    def result_codec(self) -> ValueCodec[R]:
        """The codec of results."""
        return self._codecs.result

    @property
    def newest(self) -> Task[P, R]:
        """The newest version that the app has registered, with the same call options."""
        newest = self.app.registry.newest(self.base)
        if newest is None or newest.name == self.name:
            return self
        return Task(self.app, newest.base, newest.fn, newest._codecs, newest.settings, self.call_options)

    def submission(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Submission:
        """Return the submission of a call of the newest version, without an id or a key."""
        newest = self.newest
        return newest.submission_of(newest.inputs.pack(args, dict(kwargs)))

    def submission_of(self, payload: bytes, encoding: str = "json") -> Submission:
        """Return the submission for this input."""
        return self._common_submission.with_input(payload, encoding)

    @cached_property
    def _common_submission(self) -> Submission:
        """The part of a submission that is the same for all calls, so that it is validated only once."""
        settings, options = self.settings, self.call_options
        return Submission(
            kind=self.name,
            lane=settings.lane if options.lane is None else options.lane,
            priority=settings.priority if options.priority is None else options.priority,
            requires=settings.requires if options.requires is None else options.requires,
            policy=settings.policy(options),
            tags=_NO_TAGS if options.tags is None else options.tags,
            id=options.id,
            ready_at=options.at,
            delay=options.delay,
            creator=options.creator,
            signals={signal.name: signal.schema for signal in settings.signals} or (),
        )

    def __repr__(self) -> str:
        return f"<task {self.name}>"


class TaskCodecs:
    """The codecs with which the inputs and the result of a function are stored.

    Annotations are resolved on first use, so they may name classes that are defined later.
    """

    def __init__(self, inputs: Inputs, *, is_async: bool, result: Callable[[], ValueCodec[Any]]) -> None:
        self.inputs = inputs
        self.is_async = is_async
        self._make_codec = result

    @cached_property
    def result(self) -> ValueCodec[Any]:
        return self._make_codec()


class Registry:
    """The tasks of an app by kind, and the newest version of each task."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task[..., Any]] = {}
        self._newest: dict[str, Task[..., Any]] = {}
        self.tasks: Mapping[str, Task[..., Any]] = MappingProxyType(self._tasks)

    def add(self, task: Task[..., Any]) -> None:
        """Add a task. If another task has the same kind, raise an error that names the locations of both functions.

        A function of the same module and name replaces the former one, as when a cell of a notebook runs again.
        """
        other = self._tasks.get(task.name)
        if other is not None and _defining_name(other.fn) != _defining_name(task.fn):
            message = (
                f"two tasks of this app are named {task.name!r}, at {source_location(other.fn)} and "
                f"{source_location(task.fn)}; give one of them another name= or a higher version="
            )
            raise InvalidRequest("kind_taken", message, kind=task.name)
        self._tasks[task.name] = task
        newest = self._newest.get(task.base)
        if newest is None or newest.settings.version <= task.settings.version:
            self._newest[task.base] = task

    def newest(self, base: str) -> Task[..., Any] | None:
        """Return the newest version of the task with this name, or None."""
        return self._newest.get(base)


def codecs_for(fn: Callable[..., Any], names: Namespace | None) -> TaskCodecs:
    """Return the codecs of a function's inputs and result.

    `names` are the variables of the code that defines the function, in which annotations are resolved.
    """
    inputs = inputs_for(fn, names)
    outer = fn.__qualname__.rpartition(".")[0]
    if outer and not outer.endswith("<locals>"):
        # A worker has no instance on which to call a method.
        message = f"{fn.__qualname__} cannot be a task: it belongs to a class at {source_location(fn)}; use a function"
        raise InvalidRequest("invalid_task", message, function=fn.__qualname__)
    return TaskCodecs(inputs, is_async=inspect.iscoroutinefunction(fn), result=lambda: return_codec(fn, names))


def task_name(fn: Callable[..., Any], name: str | None) -> str:
    """Return the name of a task without its version. It defaults to the function's name."""
    base = validation.name(fn.__name__ if name is None else name, "name of the task")
    if "@" in base:
        message = f"{base!r} holds an @, which separates name and version; use version="
        raise InvalidRequest("invalid_name", message, field="name")
    return base


def source_location(fn: Callable[..., Any]) -> str:
    """Return where a function is defined, as file:line."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(fn)


def _defining_name(fn: Callable[..., Any]) -> tuple[str, str]:
    return fn.__module__, fn.__qualname__
