"""Tasks: durable functions, and how each of them is to be run.

A `Task` is not callable. It is stored with `submit`, or stored and awaited with `run`; `options` answers the same task
with other circumstances for what is called through it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NoReturn
from uuid import UUID
from weakref import WeakKeyDictionary

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.policy import DEFAULT_POLICY, Backoff, Policy
from flowfabric.core.requests import Submission
from flowfabric.sdk import retrying, submitting
from flowfabric.sdk.aliases import Durable, Duration, P, R, R_co
from flowfabric.sdk.handles import Handle
from flowfabric.sdk.signals import Signal
from flowfabric.sdk.values import Form, Inputs

if TYPE_CHECKING:
    from flowfabric.sdk import sync_client
    from flowfabric.sdk.app import App
    from flowfabric.sdk.step_policies import Plan

_NO_TAGS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """What `@app.task(…)` says about every execution of the task."""

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
    retry_on: tuple[retrying.Retryable, ...] = ()

    def policy(self, called: CallOptions) -> Policy:
        """What the engine is to apply to an execution that is called so."""
        return Policy(
            max_retries=self.retries if called.retries is None else called.retries, backoff=self.backoff,
            attempt_timeout=self.timeout, deadline=self.deadline if called.deadline is None else called.deadline,
            retention=DEFAULT_POLICY.retention if self.retention is None else self.retention,
            retryable_categories=retrying.categories(self.retry_on),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """What `.options(…)` says about one execution; what is absent is as the task has it."""

    key: str | None = None
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
    within: object = None


@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """A call that is described and checked, but not made."""

    task: Task[..., R_co]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    submission: Submission


class Task(Generic[P, R]):
    """A durable function. `fn` is the function itself, for tests and for calling it as it is."""

    def __init__(
        self, app: App, base: str, fn: Callable[..., Any], forms: TaskForms, settings: TaskSettings,
        called: CallOptions | None = None,
    ) -> None:  # fmt: skip
        self.app = app
        self.base = base
        self.name = kind_of(base, settings.version)
        self.fn = fn
        self.is_async = forms.is_async
        self.inputs = forms.inputs
        self._forms = forms
        self.settings = settings
        self.called = CallOptions() if called is None else called
        self.plans: WeakKeyDictionary[Callable[..., Any], Plan] = WeakKeyDictionary()

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Durable[Handle[R]]:
        """Stores an execution and answers its handle. Inside a task it is a child, stored once however often the
        task runs again."""
        return submitting.submit(self, args, kwargs)

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Durable[R]:
        """Stores an execution and waits for its result, as `submit` and awaiting the handle do."""
        return submitting.run(self, args, kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The call described, for `app.submit_many`."""
        return submitting.described(self, args, kwargs)

    def continue_with(self, *args: P.args, **kwargs: P.kwargs) -> NoReturn:
        """Ends this run and starts the same execution over with other arguments and nothing recorded."""
        from flowfabric.sdk.run import continue_with

        continue_with(self, args, kwargs)

    def handle(self, id: UUID | str) -> Handle[R]:
        """The handle of an execution of this task that was submitted before."""
        return Handle(self.app, id, self)

    def options(
        self, *, key: str | None = None, name: str | None = None, delay: Duration | None = None,
        at: datetime | None = None, deadline: Duration | None = None, lane: str | None = None,
        priority: int | None = None, retries: int | None = None, requires: Collection[str] | None = None,
        tags: Mapping[str, str] | None = None, detached: bool = False, within: object = None,
    ) -> Task[P, R]:  # fmt: skip
        """The same task, called under other circumstances; what was said before and is not said again stays.

        `key` makes repeating the submit harmless. `name` is that of a flow's member. `within` is a connection with an
        open transaction, that the execution is stored in. A `detached` child is not cancelled with its parent.
        """
        moment = None if at is None else limits.moment(at, "at")
        given: dict[str, Any] = {
            "key": key, "name": name, "delay": delay, "at": moment, "deadline": deadline, "lane": lane,
            "priority": priority, "retries": retries, "requires": requires, "tags": tags,
            "detached": detached or None, "within": within,
        }  # fmt: skip
        called = replace(self.called, **{word: value for word, value in given.items() if value is not None})
        if called.delay is not None and called.at is not None:
            raise InvalidRequest("invalid_request", "give delay or at, not both")
        changed: Task[P, R] = Task(self.app, self.base, self.fn, self._forms, self.settings, called)
        changed.submission_of(b"")  # Whatever is wrong with the options is said where they are written.
        return changed

    @property
    def sync(self) -> sync_client.Task[P, R]:
        """The same verbs for plain code: each answers the value instead of something to await."""
        from flowfabric.sdk import sync_client

        return sync_client.Task(self)

    @property
    def result_form(self) -> Form[R]:
        """How results are stored and restored."""
        return self._forms.result

    @property
    def newest(self) -> Task[P, R]:
        """The newest version that the app has registered, under the same options."""
        newest = self.app.registry.newest(self.base)
        if newest is None or newest.name == self.name:
            return self
        return Task(self.app, newest.base, newest.fn, newest._forms, newest.settings, self.called)

    def submission(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Submission:
        """What is stored for a call of the newest version, all but the id and the key."""
        newest = self.newest
        return newest.submission_of(newest.inputs.pack(args, dict(kwargs)))

    def submission_of(self, payload: bytes, encoding: str = "json") -> Submission:
        """What is stored with these inputs."""
        return self._circumstances.with_input(payload, encoding)

    @cached_property
    def _circumstances(self) -> Submission:
        """All of it that every call has in common, checked once."""
        settings, called = self.settings, self.called
        return Submission(
            kind=self.name, lane=settings.lane if called.lane is None else called.lane,
            priority=settings.priority if called.priority is None else called.priority,
            requires=settings.requires if called.requires is None else called.requires,
            policy=settings.policy(called), tags=_NO_TAGS if called.tags is None else called.tags,
            ready_at=called.at, delay=called.delay, signals=tuple(signal.name for signal in settings.signals),
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<task {self.name}>"


class TaskForms:
    """How the inputs and the result of a function are stored. Annotations are resolved when they are first needed, so
    that they may name what is defined later."""

    def __init__(self, inputs: Inputs, *, is_async: bool, result: Callable[[], Form[Any]]) -> None:
        self.inputs = inputs
        self.is_async = is_async
        self._make_result = result

    @cached_property
    def result(self) -> Form[Any]:
        return self._make_result()


def kind_of(base: str, version: int) -> str:
    """The kind of a version of a task: its name, and from the second version on the number."""
    limits.whole(version, "version", 1, limits.COUNT_MOST)
    return base if version == 1 else f"{base}@{version}"
