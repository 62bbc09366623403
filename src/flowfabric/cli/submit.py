"""`flowfabric submit`: stores an execution, and waits for it if asked."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from flowfabric.cli import exit_codes
from flowfabric.cli.bar import Bar
from flowfabric.cli.documents import document, plain
from flowfabric.cli.opening import writing
from flowfabric.cli.reading import json_bytes, tags_of
from flowfabric.cli.saying import hint, say
from flowfabric.core import limits
from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.engine import Created, Engine, Outcome, State, Submission

if TYPE_CHECKING:
    from flowfabric.sdk.app import App

_LOOK_S = 0.5


async def submit(arguments: argparse.Namespace) -> int:
    """Prints the id, or with --wait the result; a bad end is told by the exit code."""
    if arguments.timeout is not None and not arguments.wait:
        raise InvalidRequest("invalid_request", "--timeout says how long to --wait; give both")
    span = None if arguments.timeout is None else limits.duration(arguments.timeout, "--timeout")
    app = _app(arguments)
    submission = _submission(arguments, app)
    # It is the app's store, if there is one; a store is not made here either.
    opening = writing(arguments) if app is None else app.engines.connecting(app.store, migrate=False, pool_size=2)
    async with opening as engine:
        answer = await engine.executions.submit(submission)
        is_new = isinstance(answer, Created)
        if not arguments.wait:
            said = str(answer.id) if is_new else f"{answer.id} (it was stored before)"
            say(arguments, said, {"id": answer.id, "created": is_new})
            return exit_codes.OK
        outcome = await _ended(engine, answer.id, None if span is None else span.total_seconds())
        return _tell(arguments, answer.id, outcome)


def _app(arguments: argparse.Namespace) -> App | None:
    if not arguments.app:
        return None
    from flowfabric.cli.apps import app_of

    return app_of(arguments)


def _submission(arguments: argparse.Namespace, app: App | None) -> Submission:
    kind, payload = arguments.kind, json_bytes(arguments.input, "INPUT")
    base = Submission(kind=kind, payload=payload) if app is None else _of_app(arguments.app, app, kind, payload)
    given: dict[str, Any] = {
        "lane": arguments.lane, "priority": arguments.priority, "key": arguments.key, "id": arguments.id,
        "delay": arguments.delay, "requires": tuple(arguments.requires) or None,
        "signals": tuple(dict.fromkeys((*base.signals, *arguments.signal))) or None,
        "tags": {**base.tags, **tags_of(arguments.tag)},
    }  # fmt: skip
    policy = {"max_retries": arguments.retries, "deadline": arguments.deadline}
    changed = {name: value for name, value in policy.items() if value is not None}
    return replace(
        base, policy=replace(base.policy, **changed), **{name: item for name, item in given.items() if item is not None}
    )


def _of_app(address: str, app: App, kind: str, payload: bytes) -> Submission:
    """The submission that the task itself would make; its input must fit the parameters."""
    from flowfabric.sdk.errors import InputMismatch

    newest = app.registry.newest(kind)
    task = app.tasks.get(kind) if newest is None else newest
    if task is None:
        known = ", ".join(sorted(app.tasks)) or "none"
        raise InvalidRequest("unknown_kind", f"{address} has no task {limits.shown(kind)}; it has {known}")
    try:
        args, kwargs = task.inputs.unpack(payload)
    except InputMismatch as error:
        raise InvalidRequest("invalid_input", error.message) from None
    return task.submission(args, kwargs)


async def _ended(engine: Engine, id_: UUID, timeout_s: float | None) -> Outcome | None:
    """How it ended, with its progress shown meanwhile; None if the time passes first."""
    with Bar(str(id_), 100) as bar:
        watching = asyncio.create_task(_watch(engine, id_, bar))
        try:
            return await engine.executions.wait(id_, timeout_s)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


async def _watch(engine: Engine, id_: UUID, bar: Bar) -> None:
    while True:
        with suppress(FlowFabricError):
            found = await engine.executions.describe(id_)
            note = found.progress_message or found.vector.public_state.value
            bar.to(found.progress_percent or 0, note)
        await asyncio.sleep(_LOOK_S)


def _tell(arguments: argparse.Namespace, id_: UUID, outcome: Outcome | None) -> int:
    if outcome is None:
        if arguments.json:
            print(document({"id": id_, "state": None}))
        hint(f"{id_} has not ended yet; it goes on")
        return exit_codes.TIMED_OUT
    if arguments.json:
        print(document({"id": id_, **plain(outcome)}))
    elif outcome.state is State.COMPLETED:
        # Never folded, however wide the terminal is: it is a document too.
        print(document(outcome.result))
    else:
        hint(_bad_end(id_, outcome))
    return exit_codes.OK if outcome.state is State.COMPLETED else exit_codes.FAILED


def _bad_end(id_: UUID, outcome: Outcome) -> str:
    why = outcome.failure.message if outcome.failure else outcome.cancel_reason
    return f"{id_} ended {outcome.state}" + (f": {why}" if why else "")
