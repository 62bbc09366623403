"""How a run ends: what its body came to is told to the store, with every record that is still to be written."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.core.requests import Step, StepStatus
from flowfabric.core.retry import FailureClass
from flowfabric.sdk import failures
from flowfabric.sdk.bodies import Ending
from flowfabric.sdk.commits import insist
from flowfabric.sdk.errors import Unwind
from flowfabric.sdk.journal import KEYED, Record
from flowfabric.sdk.retrying import retried_as
from flowfabric.sdk.tracebacks import leaves

if TYPE_CHECKING:
    from flowfabric.sdk.run import Run

LOG = logging.getLogger("flowfabric")
_PAUSE_S = 5
FINAL_MARK = "_flowfabric_final"
_CONSUMED = "@signals"


async def end(run: Run, ending: Ending) -> None:
    """Ends the lease as the body was left; nothing if the lease is gone already."""
    if run.is_given_up or run.loss is not None:
        if run.calls.has_told and not isinstance(ending.error, Unwind | asyncio.CancelledError):
            run.calls.note_swallowed()
        return
    await run.commits.drained()
    if run.divergence is not None:
        await _hold(run, "diverged", run.divergence)
    elif run.mismatch is not None:
        await _hold(run, "input_mismatch", str(run.mismatch))
    elif run.continuation is not None:
        await _continue(run, run.continuation)
    elif run.is_draining and (run.is_over or run.calls.has_told):
        await _release(run)
    elif ending.error is None:
        await _complete(run, ending)
    else:
        await _fail(run, ending.error)


async def put_off(run: Run, error: FlowFabricError) -> None:
    """Ends a lease that the store refuses to end as it should: what can never work fails, anything else is tried again
    later, so that nothing turns in a circle."""
    leases, fence = run.engine.leases, run.lease.fence
    try:
        if isinstance(error, InvalidRequest):
            await leases.fail(fence, error.message, failure_class=FailureClass.PERMANENT, category=error.code)
        else:
            await leases.delay(fence, after=_PAUSE_S)
    except FlowFabricError as refused:
        LOG.info("%s could not be given back: %s", run.lease.execution_id, refused)


def is_final(error: BaseException, raises: Collection[type[Exception]] = ()) -> bool:
    """True if running the body again would come to the same: what failed is recorded, or can never work."""
    return bool(getattr(error, FINAL_MARK, False)) or all(_is_final(leaf, raises) for leaf in leaves(error))


def _is_final(error: BaseException, raises: Collection[type[Exception]]) -> bool:
    is_marked = isinstance(error, InvalidRequest) or bool(getattr(error, FINAL_MARK, False))
    return is_marked or failures.is_final(error, raises)


async def _hold(run: Run, reason: str, report: str) -> None:
    await run.commits.carry(lambda steps: run.engine.leases.hold(run.lease.fence, reason, report, steps=steps))


async def _continue(run: Run, payload: bytes) -> None:
    """The journal starts empty but for the account of the signals that were used."""
    used, steps, fence = run.calls.consumed, list[Step](), run.lease.fence
    if used:
        facts = {"used": used}
        record = Record(path=_CONSUMED, scope="", index=KEYED, kind="signals", status=StepStatus.OK, facts=facts)
        steps.append(record.to_step())
    await insist(run, lambda: run.engine.leases.continue_with(fence, payload, steps=steps))


async def _release(run: Run) -> None:
    await run.commits.flushed()
    await insist(run, lambda: run.engine.leases.release(run.lease.fence))


async def _complete(run: Run, ending: Ending) -> None:
    try:
        result = run.task.result_form.store(ending.value)
    except FlowFabricError as error:
        await _fail(run, error)
        return
    await run.commits.finish(lambda steps: run.engine.leases.complete(run.lease.fence, result, steps=steps))


async def _fail(run: Run, error: BaseException) -> None:
    if run.calls.cancel_delivered:
        await _cancel(run)
        return
    raises = run.task.settings.raises
    info = failures.error_info(_ordinary(error))
    kind = FailureClass.PERMANENT if is_final(error, raises) or info.permanent else FailureClass.TRANSIENT
    document = failures.to_json(info) | (failures.declared(error, raises) or {})
    fence, detail = run.lease.fence, json.dumps(document).encode()
    message = f"{info.type}: {info.message}"[:1000]
    # The engine knows categories only, so a failure of a class that is retried is told under that class's name.
    category = retried_as(error, info.category, run.task.settings.retry_on) or info.category or kind.value
    await run.commits.carry(
        lambda steps: run.engine.leases.fail(
            fence, message, failure_class=kind, category=category, detail=detail, steps=steps
        )
    )


async def _cancel(run: Run) -> None:
    await run.commits.carry(lambda steps: run.engine.leases.cancel(run.lease.fence, steps=steps))


def _ordinary(error: BaseException) -> BaseException:
    """A cancellation that nobody asked for is a failure like any other."""
    if isinstance(error, asyncio.CancelledError):
        failure = RuntimeError("the function was cancelled by its own code")
        failure.__cause__ = error
        return failure
    return error
