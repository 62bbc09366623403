"""What a handle does. Inside a task waiting is a durable call, and so are signals and cancels, as steps; everywhere
else the store is asked directly."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from flowfabric.core.errors import InvalidRequest
from flowfabric.core.records import Event
from flowfabric.core.views import Description
from flowfabric.sdk import effects, results, signals, units
from flowfabric.sdk.aliases import Durable, Duration, T
from flowfabric.sdk.records import TimedOut
from flowfabric.sdk.values import Form, form_of

if TYPE_CHECKING:
    from flowfabric.engine.engine import Engine
    from flowfabric.sdk.app import App
    from flowfabric.sdk.handles import Handle
    from flowfabric.sdk.tasks import Task

_PROGRAM = "program"


def result(handle: Handle[T], timeout: Duration | None) -> Durable[T]:
    """The result of an execution, or the error that stands for how it ended."""
    if units.unit() is not None:
        from flowfabric.sdk.children import await_result

        return await_result(handle, timeout)
    return result_of(handle, timeout)


def outcome(handle: Handle[Any], timeout: Duration | None) -> Durable[Any]:
    """How an execution ended."""
    if units.unit() is not None:
        from flowfabric.sdk.children import await_outcome

        return await_outcome(handle, timeout)
    return _outcome(handle, timeout)


def signal(handle: Handle[Any], signal: signals.Signal[T], value: T, key: str | None) -> Durable[signals.Delivery]:
    """Sends a signal, once."""
    if not isinstance(signal, signals.Signal):
        raise InvalidRequest("invalid_type", f"signal must be a Signal, not {type(signal).__name__}", field="signal")
    payload = signal.form.store(value)
    if effects.is_in_task():
        return effects.as_step(f"send:{signal.name}", _send, handle.app, handle.id, signal.name, payload, key)
    return _send_keyed(handle.app, handle.id, signal.name, payload, effects.keyed("signal", key))


def cancel(handle: Handle[Any], reason: str, grace: Duration | None) -> Durable[None]:
    """Cancels an execution, or asks it to end."""
    known = handle.task.settings.cancel_grace if handle.task and grace is None else grace
    look_up = handle.task is None and grace is None
    if effects.is_in_task():
        return effects.as_step("cancel", _cancel, handle.app, handle.id, reason, known, look_up)
    return _cancel(handle.app, handle.id, reason, known, look_up)


async def status(handle: Handle[Any]) -> Description:
    """Everything about an execution."""
    engine = await handle.app.engine()
    return await engine.executions.describe(handle.id)


async def replay(handle: Handle[Any], from_step: str | None) -> None:
    """Runs an execution again."""
    engine = await handle.app.engine()
    await engine.operator.replay(handle.id, from_step=from_step, principal=_PROGRAM)


async def unhold(handle: Handle[Any]) -> None:
    """Lets a held execution go on."""
    engine = await handle.app.engine()
    await engine.operator.unhold(handle.id, principal=_PROGRAM)


async def history(handle: Handle[Any]) -> list[Event]:
    """All events of an execution, and of its children when they were submitted and how they ended."""
    from flowfabric.engine.histories import whole_history

    return await whole_history(await handle.app.engine(), handle.id)


async def explain(handle: Handle[Any]) -> str:
    """Why an execution is not running."""
    engine = await handle.app.engine()
    return (await engine.operator.explain(handle.id)).sentence


async def result_of(handle: Handle[T], limit: Duration | None = None) -> T:
    """Waits for the result of an execution that nobody knows to have ended."""
    end = await _end(handle, limit)
    if end is None:
        raise TimeoutError(f"execution {handle.id} has not ended within {limit}")
    value: T = end.value()
    return value


async def _outcome(handle: Handle[Any], limit: Duration | None) -> Any:
    end = await _end(handle, limit)
    return TimedOut(datetime.now(UTC)) if end is None else end.outcome


async def _end(handle: Handle[Any], limit: Duration | None) -> results.End | None:
    engine = await handle.app.engine()
    found = await results.wait_for_end(engine, handle.id, limit)
    if found is None:
        return None
    task, form = await _known(handle, engine)
    return await results.read_end(engine, handle.id, found, task, form)


async def _known(handle: Handle[Any], engine: Engine) -> tuple[Task[..., Any] | None, Form[Any]]:
    """The task of the execution, if it is known here, and the form of its result."""
    task = handle.task
    if task is None:
        kind = (await engine.executions.describe(handle.id)).kind
        task = handle.app.tasks.get(kind)
    if task is not None:
        return task, task.result_form
    if handle.annotation is not None:
        return None, form_of(handle.annotation, what="the result")
    return None, results.untyped_form()


async def _send(app: App, id_: UUID, name: str, payload: bytes, key: str | None) -> signals.Delivery:
    return await _send_keyed(app, id_, name, payload, effects.keyed("signal", key))


async def _send_keyed(app: App, id_: UUID, name: str, payload: bytes, key: str | None) -> signals.Delivery:
    return await signals.send(await app.engine(), id_, name, payload, key)


async def _cancel(app: App, id_: UUID, reason: str, grace: Duration | None, look_up: bool) -> None:
    engine = await app.engine()
    if look_up:
        task = app.tasks.get((await engine.executions.describe(id_)).kind)
        grace = task.settings.cancel_grace if task else None
    await engine.operator.cancel(id_, reason, children=True, grace=grace, principal=_PROGRAM)
