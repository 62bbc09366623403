"""The inputs of a flow's members, stored with placeholders that upstream results replace when a member runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flowfabric.core.executions.outcomes import Lease
from flowfabric.core.executions.requests import StepStatus
from flowfabric.core.executions.states import State
from flowfabric.core.flows.outcomes import Input
from flowfabric.runtime.journal import KEYED, Record
from flowfabric.values import codec_for
from flowfabric.values.errors import InputMismatch
from flowfabric.values.placeholders import (
    ENCODING,
    Placeholder,
    ResultReference,
    decode_inputs,
    encode_inputs,
    fill,
    find_references,
)

if TYPE_CHECKING:
    from flowfabric.engine.engine import Engine
    from flowfabric.runtime.run import TaskRun
    from flowfabric.runtime.runner import TaskSpec

INPUTS_PATH = "@inputs"
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def build_inputs(
    task: TaskSpec, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[bytes, str, list[ResultReference]]:
    """Return the input to store for a call, its encoding, and the references to upstream results in its arguments.

    Arguments without references are validated like those of any call. In an argument with references, each of the other
    values is validated only by its own type, not by the annotation of the argument.
    """
    bound = task.inputs.bind(args, kwargs)
    references = list(find_references(bound))
    if not references:
        return task.inputs.pack(args, kwargs), "json", []
    holes = [Placeholder(at, reference.members, reference.mode, reference.needed) for at, reference in references]
    with_holes = {hole.path[0] for hole in holes}
    inputs = {
        name: _encode_value(value, name)
        if name in with_holes
        else json.loads(task.inputs.parameter_codec(name).store(value))
        for name, value in bound.items()
    }
    return encode_inputs(inputs, holes), ENCODING, [reference for _, reference in references]


async def resolve_inputs(run: TaskRun) -> Arguments:
    """Return the arguments of a flow's member. Raise `InputMismatch` if they do not fit the member's function.

    The first run reads the results of the upstream members and records them, so that later runs get the same arguments.
    """
    record = run.calls.journal.get(INPUTS_PATH)
    if record is None:
        value = await fill_inputs(run.engine, run.lease)
        record = Record(path=INPUTS_PATH, scope="", index=KEYED, kind="inputs", status=StepStatus.OK, value=value)
        await run.record_writer.write(record)
    return run.task.inputs.unpack(record.value)


def _encode_value(value: object, name: str) -> Any:
    """Return a value that contains references as JSON, with null for each reference.

    Lists and dicts keep their structure, and every other value in them is encoded by its own type.
    """
    if isinstance(value, ResultReference):
        return None
    if isinstance(value, list | tuple):
        return [_encode_value(element, name) for element in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _encode_value(element, name) for key, element in value.items()}
    return json.loads(codec_for(type(value), what=f"a value next to a result in {name}").store(value))


async def fill_inputs(engine: Engine, lease: Lease) -> bytes:
    """Return the stored input of a member with the upstream results filled in."""
    inputs, placeholders = decode_inputs(lease.payload)
    results = await engine.flows.inputs(lease.execution_id)
    for placeholder in placeholders:
        fill(inputs, placeholder, _find_value(placeholder, results))
    return json.dumps(inputs).encode()


def _find_value(placeholder: Placeholder, results: Mapping[str, Input]) -> Any:
    completed = [
        results[name] for name in placeholder.members if name in results and results[name].outcome is State.COMPLETED
    ]
    if len(completed) < placeholder.needed:
        message = f"the results of {', '.join(placeholder.members)} no longer exist; replay the flow from there"
        raise InputMismatch(message, members=placeholder.members)
    if len(completed) > 1:
        # The function gets the results in the order in which the members ended.
        completed.sort(key=lambda upstream: (upstream.ended_at, upstream.execution_id))
    values = [json.loads(upstream.result or b"null") for upstream in completed[: placeholder.needed]]
    return values if placeholder.mode == "quorum" else values[0]
