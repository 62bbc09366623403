"""`flowfabric submit`: submit an execution, and optionally wait for its result."""

from __future__ import annotations

import argparse
import asyncio
import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from flowfabric.cli import exit_codes
from flowfabric.cli.inputs import parse_tags, read_json_argument
from flowfabric.cli.output import format_json, print_hint, print_result, to_json
from flowfabric.cli.targets import open_for_writing
from flowfabric.cli.terminal import ProgressBar
from flowfabric.core import validation
from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.engine import Created, Engine, Outcome, State, Submission

if TYPE_CHECKING:
    from flowfabric.app.app import App
    from flowfabric.app.task import Task

_POLL_S = 0.5


async def submit(arguments: argparse.Namespace) -> int:
    """Submit an execution and print its id, or its result with --wait. Return 1 if it does not complete."""
    if arguments.timeout is not None and not arguments.wait:
        raise InvalidRequest("invalid_request", "--timeout needs --wait; add it or leave out --timeout")
    timeout = None if arguments.timeout is None else validation.duration(arguments.timeout, "--timeout")
    app = _load_app(arguments)
    submission = _make_submission(arguments, app)
    # With --app, submit to the app's store. Like `open_for_writing`, this does not create the store.
    opener = open_for_writing(arguments) if app is None else app.engines.opener(app.store, migrate=False, pool_size=2)
    async with opener as engine:
        submitted = await engine.executions.submit(submission)
        is_new = isinstance(submitted, Created)
        if not arguments.wait:
            sentence = str(submitted.id) if is_new else f"{submitted.id} (already submitted)"
            print_result(arguments, sentence, {"id": submitted.id, "created": is_new})
            return exit_codes.OK
        outcome = await _wait_for_end(engine, submitted.id, None if timeout is None else timeout.total_seconds())
        return _print_outcome(arguments, submitted.id, outcome)


def _load_app(arguments: argparse.Namespace) -> App | None:
    if not arguments.app:
        return None
    from flowfabric.cli.targets import load_app_with_options

    return load_app_with_options(arguments)


def _make_submission(arguments: argparse.Namespace, app: App | None) -> Submission:
    kind, payload = arguments.kind, read_json_argument(arguments.input, "INPUT")
    base = Submission(kind=kind, payload=payload) if app is None else _task_submission(arguments, app, payload)
    options: dict[str, Any] = {
        "lane": arguments.lane, "priority": arguments.priority, "key": arguments.key, "id": arguments.id,
        "delay": arguments.delay, "requires": tuple(arguments.requires) or None,
        "creator": arguments.creator,
        "signals": dict.fromkeys((*base.signals, *arguments.signal)) | _declared(base) or None,
        "tags": {**base.tags, **parse_tags(arguments.tag)},
    }  # fmt: skip
    policy = {"max_retries": arguments.retries, "deadline": arguments.deadline}
    return replace(base, policy=replace(base.policy, **_without_none(policy)), **_without_none(options))


def _declared(submission: Submission) -> dict[str, Any]:
    """Return the signals that the task declares, with their schemas."""
    signals = submission.signals
    return dict(signals) if isinstance(signals, Mapping) else dict.fromkeys(signals)


def _without_none(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _task_submission(arguments: argparse.Namespace, app: App, payload: bytes) -> Submission:
    """Return the submission that `task.submit` would store. The input must match the task's parameters."""
    from flowfabric.values.errors import InputMismatch

    kind = arguments.kind
    newest = app.registry.newest(kind)
    task = app.tasks.get(kind) if newest is None else newest
    if task is None:
        names = ", ".join(sorted(app.tasks)) or "none"
        message = f"{arguments.app} has no task {validation.preview(kind)}; its tasks are {names}"
        raise InvalidRequest("unknown_kind", message)
    try:
        args, kwargs = task.inputs.unpack(payload)
    except InputMismatch as error:
        raise _input_error(task, str(error.fields["reason"])) from None
    return task.submission(args, kwargs)


def _input_error(task: Task[..., Any], why: str) -> InvalidRequest:
    """Return the error for an input that does not fit the parameters of the task."""
    signature = inspect.signature(task.fn)
    names = [name for name, each in signature.parameters.items() if each.default is inspect.Parameter.empty]
    example = ", ".join(f'"{name}": …' for name in names or list(signature.parameters)[:1])
    advice = f"pass the parameters by name as JSON, such as '{{{example}}}'"
    return InvalidRequest("invalid_input", f"INPUT does not fit {task.base}{signature}: {why}; {advice}")


async def _wait_for_end(engine: Engine, id_: UUID, timeout_s: float | None) -> Outcome | None:
    """Show the progress until the execution ends, and return the outcome, or None after the timeout."""
    with ProgressBar(str(id_), 100) as bar:
        progress = asyncio.create_task(_show_progress(engine, id_, bar))
        try:
            return await engine.executions.wait(id_, timeout_s)
        finally:
            progress.cancel()
            await asyncio.gather(progress, return_exceptions=True)


async def _show_progress(engine: Engine, id_: UUID, bar: ProgressBar) -> None:
    while True:
        with suppress(FlowFabricError):
            execution = await engine.executions.describe(id_)
            note = execution.progress_message or execution.vector.public_state.value
            bar.update(execution.progress_percent or 0, note)
        await asyncio.sleep(_POLL_S)


def _print_outcome(arguments: argparse.Namespace, id_: UUID, outcome: Outcome | None) -> int:
    if outcome is None:
        if arguments.json:
            print(format_json({"id": id_, "state": None}))
        print_hint(f"{id_} has not ended yet; it continues.")
        return exit_codes.TIMED_OUT
    if arguments.json:
        print(format_json({"id": id_, **to_json(outcome)}))
    elif outcome.state is State.COMPLETED:
        # The result is JSON, so it is never wrapped.
        print(format_json(outcome.result))
    else:
        print_hint(_describe_end(id_, outcome))
    return exit_codes.OK if outcome.state is State.COMPLETED else exit_codes.FAILED


def _describe_end(id_: UUID, outcome: Outcome) -> str:
    why = outcome.failure.message if outcome.failure else outcome.cancel_reason
    verb = f"was {outcome.state}" if outcome.state in (State.CANCELLED, State.SKIPPED) else outcome.state
    return f"{id_} {verb}" + (f": {why}" if why else "")
