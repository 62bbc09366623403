"""The verbs of the client for plain code. Written by tools/generate_sync.py; change what it reads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Generic, Literal, NoReturn, overload
from uuid import UUID

from flowfabric.core.flow_outcomes import FlowDescription
from flowfabric.core.flows import FlowState
from flowfabric.core.records import Event
from flowfabric.sdk import bridge
from flowfabric.sdk.aliases import Duration, P, R, R_co, T
from flowfabric.sdk.app import App as AsyncApp
from flowfabric.sdk.client_thread import wait_for
from flowfabric.sdk.flows import Flow as AsyncFlow
from flowfabric.sdk.flows import FlowHandle as AsyncFlowHandle
from flowfabric.sdk.flows import Node
from flowfabric.sdk.handles import Handle as AsyncHandle
from flowfabric.sdk.handles import Status
from flowfabric.sdk.records import Cancelled, Completed, Expired, Failed, Skipped, TimedOut
from flowfabric.sdk.signals import Delivery, Signal
from flowfabric.sdk.submitting import submit_here
from flowfabric.sdk.tasks import Call
from flowfabric.sdk.tasks import Task as AsyncTask


class Handle(Generic[R_co]):
    """What `.sync` of a handle is: the same verbs, each of which waits and answers the value."""

    def __init__(self, inner: AsyncHandle[R_co]) -> None:
        self._inner = inner

    @property
    def id(self) -> UUID:
        """The id."""
        return self._inner.id

    def result(self, timeout: Duration | None = None) -> R_co:
        """Waits for the result. Raises `ExecutionFailed`, `ExecutionCancelled`, `ExecutionExpired` or
        `ExecutionSkipped` if it ended otherwise, a class that the task declares in `raises=` as that class, and
        `TimeoutError` if it has not ended by then."""
        return wait_for(lambda: self._inner.result(timeout))

    @overload
    def outcome(self, timeout: None = None) -> Completed[R_co] | Failed | Cancelled | Expired | Skipped: ...

    @overload
    def outcome(self, timeout: Duration) -> Completed[R_co] | Failed | Cancelled | Expired | Skipped | TimedOut: ...

    def outcome(
        self, timeout: Duration | None = None
    ) -> Completed[R_co] | Failed | Cancelled | Expired | Skipped | TimedOut:
        """Waits for the end and answers how it came about, whatever it is."""
        return wait_for(lambda: self._inner.outcome(timeout))

    def signal(self, signal: Signal[T], value: T, *, key: str | None = None) -> Delivery:
        """Sends a signal: kept until it is awaited if the task declares it, otherwise for the wait that is open now.
        With a `key`, repeating it is harmless."""
        return wait_for(lambda: self._inner.signal(signal, value, key=key))

    def cancel(self, reason: str = "", *, grace: Duration | None = None) -> None:
        """Cancels the execution with its children. With `grace`, or the task's `cancel_grace`, it is asked first and
        has that long to clean up."""
        return wait_for(lambda: self._inner.cancel(reason, grace=grace))

    def status(self) -> Status:
        """Everything about the execution as it is now."""
        return wait_for(self._inner.status)

    def replay(self, *, from_step: str | None = None) -> None:
        """Runs an execution that has ended again: from the start, or from a recorded step with what came before it."""
        return wait_for(lambda: self._inner.replay(from_step=from_step))

    def unhold(self) -> None:
        """Lets an execution go on that is held, because its code diverged or because an operator holds it."""
        return wait_for(self._inner.unhold)

    def history(self) -> list[Event]:
        """What happened to the execution, in order, and when its children were submitted and how they ended."""
        return wait_for(self._inner.history)

    def explain(self) -> str:
        """Why it is not running, or that it is, in one sentence."""
        return wait_for(self._inner.explain)

    def __repr__(self) -> str:
        return repr(self._inner)


class Task(Generic[P, R]):
    """What `.sync` of a task is: the same verbs, each of which waits and answers the value."""

    def __init__(self, inner: AsyncTask[P, R]) -> None:
        self._inner = inner

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Stores an execution and answers its handle. Inside a task it is a child, stored once however often the
        task runs again."""
        return Handle(submit_here(self._inner, args, kwargs))

    def run(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Stores an execution and waits for its result, as `submit` and awaiting the handle do."""
        return wait_for(lambda: self._inner.run(*args, **kwargs))

    def continue_with(self, *args: P.args, **kwargs: P.kwargs) -> NoReturn:
        """Ends this run and starts the same execution over with other arguments and nothing recorded."""
        bridge.answer(lambda: self._inner.continue_with(*args, **kwargs))

    def handle(self, id: UUID | str) -> Handle[R]:
        """The handle of an execution of this task that was submitted before."""
        return Handle(self._inner.handle(id))

    def options(
        self,
        *,
        key: str | None = None,
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
        within: object = None,
    ) -> Task[P, R]:
        """The same task, called under other circumstances; what was said before and is not said again stays.

        `key` makes repeating the submit harmless. `name` is that of a flow's member. `within` is a connection with an
        open transaction, that the execution is stored in. A `detached` child is not cancelled with its parent.
        """
        return Task(
            self._inner.options(
                key=key,
                name=name,
                delay=delay,
                at=at,
                deadline=deadline,
                lane=lane,
                priority=priority,
                retries=retries,
                requires=requires,
                tags=tags,
                detached=detached,
                within=within,
            )
        )

    def __repr__(self) -> str:
        return repr(self._inner)


class FlowHandle:
    """What `.sync` of the handle of a flow is: the same verbs, each of which waits and answers the value."""

    def __init__(self, inner: AsyncFlowHandle) -> None:
        self._inner = inner

    @property
    def id(self) -> UUID:
        """The id."""
        return self._inner.id

    def __getitem__(self, node: Node[R]) -> Handle[R]:
        return Handle(self._inner[node])

    def cancel(self, policy: Literal["cancel_all", "cancel_pending", "flow_only"] = "cancel_all") -> None:
        """Cancels the flow: all members that have not ended, only those that have not started, or none of them."""
        return wait_for(lambda: self._inner.cancel(policy))

    def wait(self, timeout: Duration | None = None) -> FlowState | None:
        """Waits until all members have ended; None if the timeout passes first. Not for the function of a task, which
        awaits members instead."""
        return wait_for(lambda: self._inner.wait(timeout))

    def status(self) -> FlowDescription:
        """The flow as it is now, with its graph."""
        return wait_for(self._inner.status)

    def __repr__(self) -> str:
        return repr(self._inner)


class Flow:
    """What `.sync` of a flow is: the same verbs, each of which waits and answers the value."""

    def __init__(self, inner: AsyncFlow) -> None:
        self._inner = inner

    def submit(self) -> FlowHandle:
        """Stores all members and edges at once, or nothing."""
        return FlowHandle(wait_for(self._inner.submit))


class App:
    """What `.sync` of an app is: the same verbs, each of which waits and answers the value."""

    def __init__(self, inner: AsyncApp) -> None:
        self._inner = inner

    def submit_many(self, calls: Iterable[Call[R]]) -> list[Handle[R]]:
        """Stores many calls, described by `task.call(…)`, in few statements; the handles are in their order."""
        return [Handle(item) for item in wait_for(lambda: self._inner.submit_many(calls))]

    def handle(self, id: UUID | str) -> Handle[Any]:
        """The handle of any execution; `task.handle(id)` knows the type of its result."""
        return Handle(self._inner.handle(id))

    def signal(self, token: str, name: str, payload: object = None) -> Delivery:
        """Delivers plain JSON under a name to the wait that the token is for."""
        return wait_for(lambda: self._inner.signal(token, name, payload))

    def approve(self, token: str, comment: str = "") -> Delivery:
        """The approval of whoever the token was made for. The first decision counts."""
        return wait_for(lambda: self._inner.approve(token, comment))

    def reject(self, token: str, reason: str = "") -> Delivery:
        """The rejection of whoever the token was made for. The first decision counts."""
        return wait_for(lambda: self._inner.reject(token, reason))

    def close(self) -> None:
        """Closes the engine of the running loop, as `async with app` does; the next use opens another."""
        return wait_for(self._inner.close)

    def __repr__(self) -> str:
        return repr(self._inner)
