"""`flowfabric signal` and `waitpoints`: deliver signals, and list waits."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime

from flowfabric.cli.inputs import is_token, principal, read_json_argument, read_token
from flowfabric.cli.output import format_age, format_json, print_hint, print_lines, print_result, stdout_screen
from flowfabric.cli.targets import find_execution, open_for_reading, open_for_writing
from flowfabric.cli.terminal import Column, Screen, format_facts, format_table, wrap_text
from flowfabric.core.waits.decisions import approval_name
from flowfabric.engine import Accepted, DuplicateSignal, Engine, SuspendedView, WaitpointView


async def signal(arguments: argparse.Namespace) -> None:
    """Deliver a signal and print its effect."""
    payload = read_json_argument(arguments.payload, "PAYLOAD")
    async with open_for_writing(arguments) as engine:
        outcome = await _deliver(engine, arguments, payload)
    effect = outcome.effect.value if isinstance(outcome, Accepted) else None
    if effect:
        sentence = f"Delivered as signal {outcome.signal_id}: {effect.replace('_', ' ')}."
    else:
        sentence = f"Already delivered as signal {outcome.signal_id}."
    print_result(arguments, sentence, {"signal_id": outcome.signal_id, "repeated": effect is None, "effect": effect})


async def _deliver(engine: Engine, arguments: argparse.Namespace, payload: bytes) -> Accepted | DuplicateSignal:
    from flowfabric.runtime.signals import send

    by = principal(arguments)
    if not is_token(arguments.target):
        id_, signal_id = await find_execution(engine, arguments.target), arguments.signal_id
        return await send(engine, id_, arguments.name, payload, arguments.key, by=by, signal_id=signal_id)
    return await engine.signals.deliver(
        read_token(arguments.target),
        arguments.name,
        payload,
        source_type="operator",
        source_identity=by,
        signal_id=arguments.signal_id,
        key=arguments.key,
    )


# `flowfabric waitpoints`

_WAIT_COLUMNS = (
    Column("EXECUTION"), Column("REASON", 10, is_optional=True), Column("SINCE", align_right=True),
    Column("TIMEOUT", align_right=True), Column("WAITS FOR", 16),
)  # fmt: skip
_WAITPOINT_COLUMNS = (
    Column("KEY", 12), Column("STATE"), Column("KIND", is_optional=True), Column("APPROVER", 8, is_optional=True),
    Column("SIGNALS", 8, is_optional=True), Column("AGE", align_right=True),
    Column("EXPIRES", align_right=True, is_optional=True), Column("WAITPOINT"),
)  # fmt: skip


async def show_waits(arguments: argparse.Namespace) -> None:
    """Print one page of suspended executions, or of the waitpoints of one execution, including closed waitpoints."""
    async with open_for_reading(arguments) as engine:
        views: Sequence[SuspendedView | WaitpointView]
        if arguments.id is None:
            views = await engine.waitpoints.list_suspended(limit=arguments.limit)
        else:
            id_ = await find_execution(engine, arguments.id)
            await engine.executions.peek(id_)
            views = await engine.waitpoints.list(id_, limit=arguments.limit)
        now = engine.now()
    if arguments.json:
        print_lines(format_json(view) for view in views)
    elif not views:
        print_hint("No execution is suspended." if arguments.id is None else "The execution has no waitpoints.")
    else:
        waits = [view for view in views if isinstance(view, SuspendedView)]
        waitpoints = [view for view in views if isinstance(view, WaitpointView)]
        screen = stdout_screen()
        print_lines(waits_table(waits, now, screen) if waits else waitpoints_table(waitpoints, now, screen))
        print_lines(prompt_lines(waitpoints, screen))
    if len(views) == arguments.limit:
        print_hint(f"There may be more than these {arguments.limit}; --limit accepts up to 1000.")


def waits_table(waits: Sequence[SuspendedView], now: datetime, screen: Screen) -> list[str]:
    """Return the suspended executions as a table."""
    rows = [
        (
            wait.execution_id,
            wait.reason.value.removeprefix("waiting_for_"),
            format_age(wait.opened_at, now),
            format_age(wait.timeout_at, now),
            " and ".join(wait.missing),
        )
        for wait in waits
    ]
    return format_table(_WAIT_COLUMNS, rows, screen)


def waitpoints_table(waitpoints: Sequence[WaitpointView], now: datetime, screen: Screen) -> list[str]:
    """Return the waitpoints as a table."""
    rows = [
        (
            waitpoint.key,
            waitpoint.state,
            waitpoint.kind,
            waitpoint.approver,
            "any" if waitpoint.names is None else ", ".join(waitpoint.names),
            format_age(waitpoint.created_at, now),
            format_age(waitpoint.expires_at, now),
            waitpoint.id,
        )
        for waitpoint in waitpoints
    ]
    return format_table(_WAITPOINT_COLUMNS, rows, screen)


def prompt_lines(waitpoints: Sequence[WaitpointView], screen: Screen) -> list[str]:
    """Return the lines that the approvers of these waitpoints see, once for each approval."""
    prompts = {
        (approval_name(waitpoint.key, waitpoint.approver), waitpoint.prompt): waitpoint.prompt
        for waitpoint in waitpoints
        if waitpoint.prompt is not None
    }
    lines: list[str] = []
    for (name, _), prompt in prompts.items():
        values = {key: value if isinstance(value, str) else format_json(value) for key, value in prompt.show.items()}
        lines += ["", *wrap_text(f'Approval "{name}"{f": {prompt.title}" if prompt.title else ""}', screen)]
        lines += [line for part in (prompt.details or "").splitlines() for line in wrap_text(part, screen)]
        lines += format_facts(list(values.items()), screen)
    return lines
