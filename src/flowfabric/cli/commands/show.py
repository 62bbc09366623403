"""`flowfabric show`, `list`, `stats` and `explain`: print executions."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from flowfabric.cli.commands.lanes import lane_views, lanes_table, read_lanes, read_workers
from flowfabric.cli.commands.signals import prompt_lines, waitpoints_table
from flowfabric.cli.inputs import filter_args, page_args
from flowfabric.cli.output import (
    format_age,
    format_count,
    format_duration,
    format_json,
    format_time,
    print_hint,
    print_lines,
    print_next,
    print_result,
    stdout_screen,
    to_json,
)
from flowfabric.cli.targets import find_execution, find_flow, open_for_reading
from flowfabric.cli.terminal import Column, Screen, escape_lines, format_facts, format_table
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.validation import escape
from flowfabric.core.waits.records import AFTER_TIMEOUT
from flowfabric.engine import (
    ApproximateCount,
    Description,
    Outcome,
    Page,
    State,
    StepStatus,
    StepView,
    Summary,
    SuspendedView,
    view_step,
)

_MAX_VALUE_CHARACTERS = 600
_MAX_STEPS = 10_000
_MAX_TRACEBACKS = 3
_ENDED_BADLY = frozenset({State.FAILED, State.EXPIRED, State.SKIPPED})
_PAST_FAILURES = frozenset({State.COMPLETED, State.SUSPENDED})
_ATTEMPT_COLUMNS = (
    Column("ATTEMPT", align_right=True), Column("ORIGIN", is_optional=True), Column("OUTCOME"), Column("STARTED"),
    Column("TOOK", align_right=True, is_optional=True), Column("WORKER", 8, is_optional=True), Column("FAILURE", 12),
)  # fmt: skip
_STEP_COLUMNS = (
    Column("STEP", align_right=True), Column("NAME", 12), Column("STATUS"), Column("TRIES", align_right=True),
    Column("STARTED", is_optional=True), Column("TOOK", align_right=True), Column("VALUE", 16),
    Column("LAST ERROR", 16),
)  # fmt: skip


async def show(arguments: argparse.Namespace) -> None:
    """Print one execution as lines for people, or as one JSON document with --json."""
    if (arguments.id is None) == (arguments.key is None):
        raise InvalidRequest("invalid_request", "give an ID or --key, one of the two")
    async with open_for_reading(arguments) as engine:
        if arguments.key is None:
            execution = await engine.executions.describe(await find_execution(engine, arguments.id))
        else:
            execution = await engine.executions.find(key=arguments.key)
        outcome = await engine.executions.result(execution.id)
        records = await engine.executions.steps(execution.id, limit=_MAX_STEPS) if arguments.steps else []
        steps = [_without_next_try(view_step(record), execution) for record in records]
        now = engine.now()
    if arguments.json:
        more = {"steps": steps} if arguments.steps else {}
        print(format_json({**to_json(execution), "outcome": outcome, **more}))
    else:
        print_lines(format_execution(execution, outcome, steps, now, stdout_screen()))


def _without_next_try(step: StepView, execution: Description) -> StepView:
    """Return the step without a next try if the execution has ended."""
    return replace(step, next_try_at=None) if execution.state.is_terminal else step


def format_execution(
    execution: Description, outcome: Outcome | None, steps: Sequence[StepView], now: datetime, screen: Screen
) -> list[str]:
    """Return the execution as lines for people."""
    lines = format_facts(_facts(execution, outcome, now, screen), screen)
    if execution.attempts:
        attempts = [
            (
                attempt.attempt_index,
                attempt.origin,
                attempt.outcome,
                format_time(attempt.started_at),
                format_age(attempt.started_at, attempt.ended_at),
                attempt.worker.name if attempt.worker else "",
                attempt.failure_message,
            )
            for attempt in execution.attempts
        ]
        lines += ["", *format_table(_ATTEMPT_COLUMNS, attempts, screen)]
    if execution.waitpoints:
        lines += ["", *waitpoints_table(execution.waitpoints, now, screen)]
        lines += prompt_lines(execution.waitpoints, screen)
    if steps:
        lines += ["", *_format_steps(steps, screen)]
    if execution.hold_report:
        report = escape_lines(execution.hold_report)
        lines += ["", *(screen.cut(line, screen.width or len(line)) for line in report)]
    if traceback := _last_traceback(execution):
        lines += ["", *escape_lines(traceback)]
    return lines


def _format_steps(steps: Sequence[StepView], screen: Screen) -> list[str]:
    """Return the steps as a table, and the tracebacks of the newest steps that failed or wait for their next try."""
    rows = [
        (
            step.seq,
            step.name,
            step.status,
            "" if step.tries is None else step.tries,
            format_time(step.started_at or step.recorded_at),
            format_duration(step.took),
            "" if step.status is not StepStatus.OK else _preview(step.value),
            step.error or "",
        )
        for step in steps
    ]
    lines = format_table(_STEP_COLUMNS, rows, screen)
    unsuccessful = [step for step in steps if step.error is not None and step.status is not StepStatus.OK]
    for step in unsuccessful[-_MAX_TRACEBACKS:]:
        next_try = f"; next try at {format_time(step.next_try_at)}" if step.next_try_at else ""
        lines += ["", f"{escape(step.name)}: {step.status}{next_try}"]
        lines += escape_lines(step.error.traceback if step.error else "")
    return lines


def _last_traceback(execution: Description) -> str:
    """Return the traceback of the last failed attempt, unless the execution completed after it."""
    if execution.state is State.COMPLETED:
        return ""
    return next((attempt.traceback for attempt in reversed(execution.attempts) if attempt.failure_message), "")


def _facts(execution: Description, outcome: Outcome | None, now: datetime, screen: Screen) -> list[tuple[str, object]]:
    vector, lease, wait = execution.vector, execution.lease, execution.suspension
    state = (
        execution.state
        if vector.public_state == execution.state.value
        else f"{execution.state} ({vector.public_state})"
    )
    failure, result = execution.last_failure, outcome.result if outcome else None
    failure_label = "failure" if execution.state in _ENDED_BADLY else "last failure"
    return [
        ("id", execution.id),
        ("kind", execution.kind),
        ("key", execution.key),
        ("state", state),
        ("why", "" if vector.blocking_reason == "none" else vector.blocking_reason),
        ("lane", execution.lane),
        ("priority", execution.priority or ""),
        ("requires", ", ".join(execution.requires)),
        ("tags", ", ".join(f"{key}={value}" for key, value in sorted(execution.tags.items()))),
        ("flow", execution.flow_id),
        ("member", execution.member_name),
        ("parent", execution.parent_id),
        ("creator", execution.creator),
        ("created", _when(execution.created_at, now)),
        ("started", _when(execution.started_at, now)),
        ("changed", _when(execution.changed_at, now)),
        ("ready", _when(execution.ready_at, now)),
        ("deadline", _when(execution.deadline_at, now)),
        ("ended", _when(execution.ended_at, now)),
        ("attempt", f"{execution.attempt_index}, generation {execution.generation}, epoch {execution.epoch}"),
        ("counts", _counts(execution)),
        ("worker", "" if lease is None else f"{lease.worker.name} ({lease.worker.instance})"),
        ("lease", "" if lease is None else f"until {format_time(lease.expires_at)}"),
        ("progress", _progress(execution)),
        ("waits for", " and ".join(wait.missing) if wait else ""),
        ("times out", _timeout(wait, now)),
        ("held", execution.hold_reason),
        (failure_label, f"{failure.message} ({failure.category})" if failure else ""),
        (
            "cancelled",
            execution.cancelled_by and f"by {execution.cancelled_by} ({execution.cancel_reason or 'no reason given'})",
        ),
        ("input", _preview(execution.payload, _MAX_VALUE_CHARACTERS, screen)),
        ("result", _preview(result, _MAX_VALUE_CHARACTERS, screen) if result is not None else ""),
    ]


def _when(time: datetime | None, now: datetime) -> str:
    if time is None:
        return ""
    age = format_age(time, now)
    return f"{format_time(time)} ({age})" if age.startswith("in ") else f"{format_time(time)} ({age} ago)"


def _timeout(wait: SuspendedView | None, now: datetime) -> str:
    if wait is None or wait.timeout_at is None:
        return ""
    return f"{_when(wait.timeout_at, now)}, then {AFTER_TIMEOUT[wait.on_timeout]}"


def _counts(execution: Description) -> str:
    pairs = (
        ("retries", execution.retry_count),
        ("reclaims", execution.reclaim_count),
        ("replays", execution.replay_count),
    )
    return ", ".join(f"{number} {name}" for name, number in pairs if number)


def _progress(execution: Description) -> str:
    percent = "" if execution.progress_percent is None else f"{execution.progress_percent}%"
    return f"{percent} {execution.progress_message or ''}".strip()


def _preview(data: bytes, limit: int = 200, screen: Screen | None = None) -> str:
    text = format_json(data[: 64 * limit] if len(data) > 64 * limit else data)
    return (screen or Screen()).cut(text, limit)


# `flowfabric list`

_PAGE_SIZE, _PAGE_SIZE_FOR_ALL = 50, 500
_COLUMNS = (
    Column("ID"), Column("STATE"), Column("KIND", 8), Column("LANE", 6, is_optional=True),
    Column("AGE", align_right=True), Column("DETAIL", 12, is_optional=True),
)  # fmt: skip


_LEASE_COLUMNS = (
    Column("ID"), Column("KIND", 8), Column("INSTANCE", 8), Column("EXPIRED", align_right=True)
)  # fmt: skip


async def list_executions(arguments: argparse.Namespace) -> None:
    """Print one page of executions, or all pages with --all."""
    if arguments.all and arguments.limit is not None:
        raise InvalidRequest("invalid_request", "--all lists every execution; leave out --limit")
    page_size = _PAGE_SIZE_FOR_ALL if arguments.all else _PAGE_SIZE
    # A cursor is valid only for the same filters. So convert an age such as `2h` to a time only once, not for each
    # page.
    filters = filter_args(arguments)
    async with open_for_reading(arguments) as engine:
        flow = None if arguments.flow is None else await find_flow(engine, arguments.flow)
        cursor = arguments.cursor
        while True:
            page = await engine.executions.list(
                **filters,
                key=arguments.key,
                flow=flow,
                limit=page_size if arguments.limit is None else arguments.limit,
                cursor=cursor,
            )
            _print_page(arguments, page, engine.now())
            cursor = page.next_cursor
            if cursor is None or not arguments.all:
                break
    print_next(cursor)


def _print_page(arguments: argparse.Namespace, page: Page, now: datetime) -> None:
    if arguments.json:
        print_lines(format_json(execution) for execution in page.items)
    elif page.items:
        print_lines(executions_table(page.items, now, stdout_screen()))
    else:
        print_hint("No executions match.")


def executions_table(executions: Sequence[Summary], now: datetime, screen: Screen) -> list[str]:
    """Return the executions as a table."""
    rows = [
        (execution.id, execution.state, execution.kind, execution.lane, age, detail(execution))
        for execution in executions
        for age in [format_age(execution.created_at, now)]
    ]
    return format_table(_COLUMNS, rows, screen)


def detail(execution: Summary) -> str:
    """Return the most useful fact about an execution besides its state."""
    if execution.hold_reason is not None:
        return f"held: {execution.hold_reason}"
    if execution.lease is not None:
        percent = "" if execution.progress_percent is None else f"{execution.progress_percent}% "
        failure = _last_failure(execution)
        return f"{percent}by {execution.lease.worker.name}{failure and f'; {failure}'}"
    if execution.cancelled_by is not None:
        return execution.cancel_reason or f"by {execution.cancelled_by}"
    return _last_failure(execution) or execution.member_name or ""


def _last_failure(execution: Summary) -> str:
    """Return the failure that ended the execution, or the last failure of one that still runs or runs again.

    While the execution waits for something else, and after it completed, an earlier failure is only history.
    """
    if execution.last_failure is None or execution.state in _PAST_FAILURES:
        return ""
    message = execution.last_failure.message
    return message if execution.state in _ENDED_BADLY else f"last failure: {message}"


# `flowfabric stats`

_BAR_CELLS = 20


async def show_stats(arguments: argparse.Namespace) -> None:
    """Print counts of executions, lanes and workers."""
    async with open_for_reading(arguments) as engine:
        counts, lanes = await engine.executions.count(), await read_lanes(engine)
        backlog, workers = await engine.backlog(), await read_workers(engine)
        status = await engine.events.status()
    busy, slots = sum(worker.busy for worker in workers), sum(worker.slots for worker in workers)
    if arguments.json:
        figures = {"namespace": arguments.namespace, "executions": counts, "lanes": lanes, "backlog": backlog}
        worker_figures = {"live": len(workers), "slots": slots, "busy": busy}
        print(format_json({**figures, "workers": worker_figures, "events_held_back_since": status.held_back_since}))
        return
    screen = stdout_screen()
    print_lines(counts_table(counts, screen))
    if lanes:
        print_lines(["", *lanes_table(lane_views(lanes, backlog, workers), screen)])
    print(f"\n{format_count(len(workers), 'live worker')}, {busy} of {format_count(slots, 'slot')} busy")


def counts_table(counts: Mapping[State, ApproximateCount], screen: Screen) -> list[str]:
    """Return the number of executions by state, with bars; `~` marks an estimate."""
    highest = max((count.value for count in counts.values()), default=0)
    total = sum(count.value for count in counts.values())
    rows = [
        (str(state), f"{'' if count.is_exact else '~'}{count.value}", "#" * -(-count.value * _BAR_CELLS // highest))
        for state, count in counts.items()
        if count.value
    ]
    mark = "" if all(count.is_exact for count in counts.values()) else "~"
    rows.append(("all", f"{mark}{total}", ""))
    return format_table(
        (Column("STATE"), Column("EXECUTIONS", align_right=True), Column("", 4, is_optional=True)), rows, screen
    )


async def list_expired_leases(arguments: argparse.Namespace) -> None:
    """Print one page of executions whose lease is past its time."""
    async with open_for_reading(arguments) as engine:
        page = await engine.leases.expired(**page_args(arguments))
        now = engine.now()
    if arguments.json:
        print_lines(format_json(execution) for execution in page.items)
    elif page.items:
        print_lines(leases_table(page.items, now, stdout_screen()))
    else:
        print_hint("No lease is past its time.")
    print_next(page.next_cursor)


def leases_table(executions: Sequence[Summary], now: datetime, screen: Screen) -> list[str]:
    """Return the leases of executions as a table."""
    rows = [
        (execution.id, execution.kind, lease.worker.instance, format_age(lease.expires_at, now))
        for execution in executions
        if (lease := execution.lease) is not None
    ]
    return format_table(_LEASE_COLUMNS, rows, screen)


async def explain(arguments: argparse.Namespace) -> None:
    """Print one sentence that explains why an execution is not running. With --json, also print the facts behind it."""
    async with open_for_reading(arguments) as engine:
        explanation = await engine.operator.explain(await find_execution(engine, arguments.id))
    print_result(arguments, explanation.sentence, explanation)
