"""The inputs of a flow's members: drawn with holes when the flow is built, filled with results when they run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flowfabric.core.flow_outcomes import Input
from flowfabric.core.outcomes import Lease
from flowfabric.core.requests import StepStatus
from flowfabric.core.states import State
from flowfabric.sdk.errors import InputMismatch
from flowfabric.sdk.journal import KEYED, Record
from flowfabric.sdk.references import ENCODING, Hole, Reference, fill, read_inputs, references_in, write_inputs
from flowfabric.sdk.values import form_of

if TYPE_CHECKING:
    from flowfabric.engine.engine import Engine
    from flowfabric.sdk.run import Run
    from flowfabric.sdk.tasks import Task

RECORDED = "@inputs"
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def drawn_inputs(
    task: Task[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[bytes, str, list[Reference]]:
    """The stored input of a call, its encoding, and the references in it. Arguments without references are checked as
    those of any call; of the others, all that is there already."""
    bound = task.inputs.bind(args, kwargs)
    found = list(references_in(bound))
    if not found:
        return task.inputs.pack(args, kwargs), "json", []
    holes = [Hole(at, reference.of, reference.how, reference.needed) for at, reference in found]
    with_holes = {hole.at[0] for hole in holes}
    inputs = {
        name: _written(value, name) if name in with_holes else json.loads(task.inputs.form(name).store(value))
        for name, value in bound.items()
    }
    return write_inputs(inputs, holes), ENCODING, [reference for _, reference in found]


async def resolve_inputs(run: Run) -> Arguments:
    """The arguments of an execution. A flow's member reads the results of its upstreams once, and then has them
    recorded, so that it never sees others. Raises `InputMismatch` if they do not fit the function."""
    if run.lease.encoding != ENCODING:
        return run.task.inputs.unpack(run.lease.payload)
    record = run.calls.journal.get(RECORDED)
    if record is None:
        value = await filled_inputs(run.engine, run.lease)
        record = Record(path=RECORDED, scope="", index=KEYED, kind="inputs", status=StepStatus.OK, value=value)
        await run.commits.write(record)
    return run.task.inputs.unpack(record.value)


def _written(value: object, name: str) -> Any:
    """A value with holes as JSON: lists and dicts as they are, everything in them by its own type."""
    if isinstance(value, Reference):
        return None
    if isinstance(value, list | tuple):
        return [_written(item, name) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _written(item, name) for key, item in value.items()}
    return json.loads(form_of(type(value), what=f"what stands beside a result in {name}").store(value))


async def filled_inputs(engine: Engine, lease: Lease) -> bytes:
    """The stored input of a member with the results of its upstreams in their places."""
    inputs, holes = read_inputs(lease.payload)
    found = await engine.flows.inputs(lease.execution_id)
    for hole in holes:
        fill(inputs, hole, _value(hole, found))
    return json.dumps(inputs).encode()


def _value(hole: Hole, found: Mapping[str, Input]) -> Any:
    completed = [found[name] for name in hole.of if name in found and found[name].outcome is State.COMPLETED]
    if len(completed) < hole.needed:
        message = f"the results of {', '.join(hole.of)} are not there any more; replay the flow from there"
        raise InputMismatch(message, members=hole.of)
    if len(completed) > 1:
        # In the order in which they ended.
        completed.sort(key=lambda item: (item.ended_at, item.execution_id))
    values = [json.loads(item.result or b"null") for item in completed[: hole.needed]]
    return values if hole.how == "quorum" else values[0]
