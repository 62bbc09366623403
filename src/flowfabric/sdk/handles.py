"""Handles: an execution that was submitted, to wait for and to act on."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, get_args, overload
from uuid import UUID

from pydantic_core import core_schema

from flowfabric.core.ids import parse_id
from flowfabric.core.records import Event
from flowfabric.core.views import Description
from flowfabric.sdk import acting
from flowfabric.sdk.aliases import Durable, Duration, R_co, T
from flowfabric.sdk.records import Cancelled, Completed, Expired, Failed, Skipped, TimedOut
from flowfabric.sdk.signals import Delivery, Signal

if TYPE_CHECKING:
    from flowfabric.sdk import sync_client
    from flowfabric.sdk.app import App
    from flowfabric.sdk.tasks import Task

Status: TypeAlias = Description


class Handle(Generic[R_co]):
    """An execution by its id. Awaiting it gives its result. It is stored as the id, so it may be an argument, a result
    or a field; restored, it belongs to the app whose task it is restored in, or to the only one there is."""

    __slots__ = ("_app", "annotation", "id", "task")

    def __init__(
        self, app: App | None, id: UUID | str, task: Task[..., R_co] | None = None, *, annotation: Any = None
    ) -> None:
        self._app = app
        self.id = parse_id(id)
        self.task = task
        self.annotation = annotation

    @property
    def app(self) -> App:
        """The app that the execution belongs to."""
        if self._app is None:
            from flowfabric.sdk.app import app_of_here

            self._app = app_of_here()
        return self._app

    def __await__(self) -> Generator[None, None, R_co]:
        return self.result().__await__()

    def result(self, timeout: Duration | None = None) -> Durable[R_co]:
        """Waits for the result. Raises `ExecutionFailed`, `ExecutionCancelled`, `ExecutionExpired` or
        `ExecutionSkipped` if it ended otherwise, a class that the task declares in `raises=` as that class, and
        `TimeoutError` if it has not ended by then."""
        return acting.result(self, timeout)

    @overload
    def outcome(self, timeout: None = None) -> Durable[Completed[R_co] | Failed | Cancelled | Expired | Skipped]: ...
    @overload
    def outcome(
        self, timeout: Duration
    ) -> Durable[Completed[R_co] | Failed | Cancelled | Expired | Skipped | TimedOut]: ...
    def outcome(
        self, timeout: Duration | None = None
    ) -> Durable[Completed[R_co] | Failed | Cancelled | Expired | Skipped | TimedOut]:
        """Waits for the end and answers how it came about, whatever it is."""
        return acting.outcome(self, timeout)

    def signal(self, signal: Signal[T], value: T, *, key: str | None = None) -> Durable[Delivery]:
        """Sends a signal: kept until it is awaited if the task declares it, otherwise for the wait that is open now.
        With a `key`, repeating it is harmless."""
        return acting.signal(self, signal, value, key)

    def cancel(self, reason: str = "", *, grace: Duration | None = None) -> Durable[None]:
        """Cancels the execution with its children. With `grace`, or the task's `cancel_grace`, it is asked first and
        has that long to clean up."""
        return acting.cancel(self, reason, grace)

    def status(self) -> Durable[Status]:
        """Everything about the execution as it is now."""
        return acting.status(self)

    def replay(self, *, from_step: str | None = None) -> Durable[None]:
        """Runs an execution that has ended again: from the start, or from a recorded step with what came before it."""
        return acting.replay(self, from_step)

    def unhold(self) -> Durable[None]:
        """Lets an execution go on that is held, because its code diverged or because an operator holds it."""
        return acting.unhold(self)

    def history(self) -> Durable[list[Event]]:
        """What happened to the execution, in order, and when its children were submitted and how they ended."""
        return acting.history(self)

    def explain(self) -> Durable[str]:
        """Why it is not running, or that it is, in one sentence."""
        return acting.explain(self)

    @property
    def sync(self) -> sync_client.Handle[R_co]:
        """The same verbs for plain code."""
        from flowfabric.sdk import sync_client

        return sync_client.Handle(self)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        annotation = next(iter(get_args(source)), None)

        def restored(value: Any) -> Handle[Any]:
            return value if isinstance(value, Handle) else Handle(None, value, annotation=annotation)

        written = core_schema.plain_serializer_function_ser_schema(lambda handle: str(handle.id))
        return core_schema.no_info_plain_validator_function(restored, serialization=written)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<handle of {self.task.name if self.task else 'execution'} {self.id}>"
