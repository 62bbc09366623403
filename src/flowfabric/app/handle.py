"""Handles: submitted executions, to wait for and to act on.

Inside a task's function, waiting is a durable call, and so are signals and cancellations, which run as steps. Anywhere
else a handle calls the engine directly.
"""

from __future__ import annotations

from collections.abc import Generator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, get_args, overload
from uuid import UUID

from pydantic_core import core_schema

from flowfabric.core.errors import InvalidRequest
from flowfabric.core.executions.records import Event
from flowfabric.core.executions.views import Description
from flowfabric.core.ids import parse_id
from flowfabric.runtime import results
from flowfabric.runtime.branch import current_branch
from flowfabric.runtime.signals import Delivery, Signal, idempotency_key, is_in_task, send
from flowfabric.values import ValueCodec, codec_for
from flowfabric.values.aliases import Durable, Duration, R_co, T, awaited_as
from flowfabric.values.records import Cancelled, Completed, Expired, Failed, Skipped, TimedOut

if TYPE_CHECKING:
    from flowfabric.app import sync_client
    from flowfabric.app.app import App
    from flowfabric.app.task import Task
    from flowfabric.engine.engine import Engine
    from flowfabric.runtime.durable_call import DurableCall

Status: TypeAlias = Description
_PRINCIPAL = "program"
# With this mark, pytest leaves out the frames of this module, so that a failed test shows the lines of the user.
__tracebackhide__ = True


class Handle(Generic[R_co]):
    """An execution by its id. Awaiting the handle returns the result of the execution.

    A handle is stored as its id, so it can be an argument, a result or a field. A restored handle belongs to the app
    whose task restored it, or else to the only app of the process.
    """

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
        """The app of the execution."""
        if self._app is None:
            from flowfabric.app.app import current_app

            self._app = current_app()
        return self._app

    def __await__(self) -> Generator[None, None, R_co]:
        return self.result().__await__()

    def __durable_call__(self) -> DurableCall[R_co]:
        """Return a durable call that waits for the result. Groups such as `gather` call this method."""
        from flowfabric.runtime.calls.children import await_result

        return await_result(self.id, self.task)

    def result(self, timeout: Duration | None = None) -> Durable[R_co]:
        """Wait for the result.

        Raise `ExecutionFailed`, `ExecutionCancelled`, `ExecutionExpired` or `ExecutionSkipped` if the execution did not
        complete. A failure whose class the task declares in `raises=` is raised as that class. Raise `TimeoutError` if
        the execution has not ended within `timeout`.
        """
        if current_branch() is not None:
            from flowfabric.runtime.calls.children import await_result

            return await_result(self.id, self.task, timeout)
        return _result(self, timeout)

    @overload
    def outcome(self, timeout: None = None) -> Durable[Completed[R_co] | Failed | Cancelled | Expired | Skipped]: ...
    @overload
    def outcome(
        self, timeout: Duration
    ) -> Durable[Completed[R_co] | Failed | Cancelled | Expired | Skipped | TimedOut]: ...
    def outcome(
        self, timeout: Duration | None = None
    ) -> Durable[Completed[R_co] | Failed | Cancelled | Expired | Skipped | TimedOut]:
        """Wait until the execution has ended. Return whether it completed, failed, was cancelled, expired or skipped.

        Return `TimedOut` if `timeout` passes first.
        """
        if current_branch() is not None:
            from flowfabric.runtime.calls.children import await_outcome

            return await_outcome(self.id, self.task, timeout)
        return _outcome(self, timeout)

    def signal(
        self, signal: Signal[T], value: T, *, key: str | None = None, signal_id: UUID | str | None = None
    ) -> Durable[Delivery]:
        """Send a signal.

        If the task declares the signal, the store keeps the signal until the task awaits it. Otherwise a wait for this
        signal must be open now. A second signal with the same `key` is reported as a duplicate. So is one with the
        `signal_id` that an `Unavailable` error has in its fields.
        """
        if not isinstance(signal, Signal):
            message = f"signal must be a Signal, not {type(signal).__name__}"
            raise InvalidRequest("invalid_type", message, field="signal")
        payload = signal.payload_type.store(value)
        if is_in_task():
            from flowfabric.runtime.calls.step import as_step

            # A step has the same key in every try, so it needs no id.
            return as_step(f"send:{signal.name}", _send_in_step, self.app, self.id, signal.name, payload, key)
        return _send(self.app, self.id, signal.name, payload, idempotency_key("signal", key), signal_id)

    def cancel(self, reason: str = "", *, grace: Duration | None = None) -> Durable[None]:
        """Cancel the execution and its children.

        With `grace`, or the task's `cancel_grace`, the execution first gets a request to cancel and has that long to
        clean up.
        """
        if grace is None and self.task is not None:
            grace = self.task.settings.cancel_grace
        look_up = self.task is None and grace is None
        if is_in_task():
            from flowfabric.runtime.calls.step import as_step

            return as_step("cancel", _cancel, self.app, self.id, reason, grace, look_up)
        return _cancel(self.app, self.id, reason, grace, look_up)

    def status(self) -> Durable[Status]:
        """Return the full description of the execution as it is now."""
        return _status(self)

    def replay(self, *, from_step: str | None = None, downstream: bool = True) -> Durable[None]:
        """Run an ended execution again, from its start or from a recorded step.

        The records before that step stay. That step and all later ones are performed again. If the execution is a
        member of a flow, the members that were skipped because of it come back, unless `downstream` is False.
        """
        return _replay(self, from_step, downstream)

    def unhold(self) -> Durable[None]:
        """Let a held execution continue, whether its code diverged or an operator held it."""
        return _unhold(self)

    def history(self) -> Durable[list[Event]]:
        """Return the events of the execution in order, including those for submitted and ended children."""
        return _history(self)

    def explain(self) -> Durable[str]:
        """Return one sentence about whether the execution is running, and if it is not, why."""
        return _explain(self)

    @property
    def sync(self) -> sync_client.Handle[R_co]:
        """The methods of this handle for plain (not async) code."""
        from flowfabric.app import sync_client

        return sync_client.Handle(self)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        annotation = next(iter(get_args(source)), None)

        def restore(value: Any) -> Handle[Any]:
            return value if isinstance(value, Handle) else Handle(None, value, annotation=annotation)

        to_id = core_schema.plain_serializer_function_ser_schema(lambda handle: str(handle.id))
        return core_schema.no_info_plain_validator_function(restore, serialization=to_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<handle of {self.task.name if self.task else 'execution'} {self.id}>"


@awaited_as("Handle.result")
async def _result(handle: Handle[T], timeout: Duration | None) -> T:  # noqa: ASYNC109
    value: T = (await wait_for_end(handle, timeout)).value()
    return value


@awaited_as("Handle.outcome")
async def _outcome(handle: Handle[Any], timeout: Duration | None) -> Any:  # noqa: ASYNC109
    end = await _find_end(handle, timeout)
    return TimedOut(datetime.now(UTC)) if end is None else end.outcome


async def wait_for_end(handle: Handle[Any], timeout: Duration | None = None) -> results.FinalOutcome:  # noqa: ASYNC109
    """Return how the execution ended. Raise `TimeoutError` if it has not ended within `timeout`."""
    end = await _find_end(handle, timeout)
    if end is None:
        raise TimeoutError(f"execution {handle.id} has not ended within {timeout}")
    return end


async def _find_end(handle: Handle[Any], timeout: Duration | None) -> results.FinalOutcome | None:  # noqa: ASYNC109
    engine = await handle.app.engine()
    outcome = await results.wait_for_end(engine, handle.id, timeout)
    if outcome is None:
        return None
    task = handle.task or await _find_task(handle.app, engine, handle.id)
    return await results.read_end(engine, handle.id, outcome, task, _result_codec(handle, task))


async def _find_task(app: App, engine: Engine, id_: UUID) -> Task[..., Any] | None:
    """Return the task of an execution, or None if the app has no such task."""
    return app.tasks.get((await engine.executions.describe(id_)).kind)


def _result_codec(handle: Handle[Any], task: Task[..., Any] | None) -> ValueCodec[Any]:
    if task is not None:
        return task.result_codec
    if handle.annotation is not None:
        return codec_for(handle.annotation, what="the result")
    return results.untyped_codec()


async def _send_in_step(app: App, id_: UUID, name: str, payload: bytes, key: str | None) -> Delivery:
    return await _send(app, id_, name, payload, idempotency_key("signal", key))


@awaited_as("Handle.signal")
async def _send(
    app: App, id_: UUID, name: str, payload: bytes, key: str | None, signal_id: UUID | str | None = None
) -> Delivery:
    return await send(await app.engine(), id_, name, payload, key, signal_id=signal_id)


@awaited_as("Handle.cancel")
async def _cancel(app: App, id_: UUID, reason: str, grace: Duration | None, look_up: bool) -> None:
    engine = await app.engine()
    if look_up:
        task = await _find_task(app, engine, id_)
        grace = task.settings.cancel_grace if task else None
    await engine.operator.cancel(id_, reason, children=True, grace=grace, principal=_PRINCIPAL)


@awaited_as("Handle.status")
async def _status(handle: Handle[Any]) -> Status:
    engine = await handle.app.engine()
    return await engine.executions.describe(handle.id)


@awaited_as("Handle.replay")
async def _replay(handle: Handle[Any], from_step: str | None, downstream: bool) -> None:
    engine = await handle.app.engine()
    await engine.operator.replay(handle.id, from_step=from_step, downstream=downstream, principal=_PRINCIPAL)


@awaited_as("Handle.unhold")
async def _unhold(handle: Handle[Any]) -> None:
    engine = await handle.app.engine()
    await engine.operator.unhold(handle.id, principal=_PRINCIPAL)


@awaited_as("Handle.history")
async def _history(handle: Handle[Any]) -> list[Event]:
    from flowfabric.engine.history import whole_history

    return await whole_history(await handle.app.engine(), handle.id)


@awaited_as("Handle.explain")
async def _explain(handle: Handle[Any]) -> str:
    engine = await handle.app.engine()
    return (await engine.operator.explain(handle.id)).sentence
