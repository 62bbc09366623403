"""`flowfabric show`: everything about one execution."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime

from flowfabric.cli.documents import document, plain
from flowfabric.cli.opening import looking
from flowfabric.cli.saying import age, moment, on_screen, say_lines
from flowfabric.cli.screen import Screen
from flowfabric.cli.tables import Column, facts, table
from flowfabric.cli.waitpoints import waitpoints_table
from flowfabric.engine import Description, Engine, Outcome, RecordedStep

_MOST_SHOWN = 600
_MOST_STEPS = 10_000
_ATTEMPTS = (
    Column("ATTEMPT", right=True), Column("ORIGIN", spare=True), Column("OUTCOME"), Column("STARTED"),
    Column("TOOK", right=True, spare=True), Column("WORKER", 8, spare=True), Column("FAILURE", 12),
)  # fmt: skip
_STEPS = (
    Column("STEP", right=True), Column("NAME", 12), Column("STATUS"), Column("RECORDED", spare=True),
    Column("VALUE", 16),
)  # fmt: skip


async def show(arguments: argparse.Namespace) -> None:
    """Prints it for people, or as one document."""
    async with looking(arguments) as engine:
        found = await engine.executions.describe(arguments.id)
        outcome = await engine.executions.result(arguments.id)
        steps = await _steps(engine, arguments.id) if arguments.steps else []
        now = engine.now()
    if arguments.json:
        more = {"steps": steps} if arguments.steps else {}
        print(document({**plain(found), "outcome": outcome, **more}))
    else:
        say_lines(described(found, outcome, steps, now, on_screen()))


async def _steps(engine: Engine, id_: str) -> list[RecordedStep]:
    return await engine.executions.steps(id_, limit=_MOST_STEPS)


def described(
    found: Description, outcome: Outcome | None, steps: Sequence[RecordedStep], now: datetime, screen: Screen
) -> list[str]:
    """The lines for people."""
    lines = facts(_facts(found, outcome, now, screen), screen)
    if found.attempts:
        rows = [
            (item.attempt_index, item.origin, item.outcome, moment(item.started_at),
             age(item.started_at, item.ended_at), item.worker.name if item.worker else "", item.failure_message)
            for item in found.attempts
        ]  # fmt: skip
        lines += ["", *table(_ATTEMPTS, rows, screen)]
    if found.waitpoints:
        lines += ["", *waitpoints_table(found.waitpoints, now, screen)]
    if steps:
        shown = [(item.seq, item.name, item.status, moment(item.recorded_at), _value(item.payload)) for item in steps]
        lines += ["", *table(_STEPS, shown, screen)]
    if found.hold_report:
        lines += ["", *(screen.cut(line, screen.width or len(line)) for line in _lines(found.hold_report))]
    return lines


def _facts(
    found: Description, outcome: Outcome | None, now: datetime, screen: Screen
) -> list[tuple[str, object]]:  # fmt: skip
    vector, lease, wait = found.vector, found.lease, found.suspension
    state = found.state if vector.public_state == found.state.value else f"{found.state} ({vector.public_state})"
    failure = found.last_failure
    return [
        ("id", found.id), ("kind", found.kind), ("state", state),
        ("why", "" if vector.blocking_reason == "none" else vector.blocking_reason),
        ("lane", found.lane), ("priority", found.priority or ""), ("requires", ", ".join(found.requires)),
        ("tags", ", ".join(f"{key}={value}" for key, value in sorted(found.tags.items()))),
        ("flow", found.flow_id), ("member", found.member_name), ("parent", found.parent_id),
        ("created", _when(found.created_at, now)), ("started", _when(found.started_at, now)),
        ("changed", _when(found.changed_at, now)), ("ready", _when(found.ready_at, now)),
        ("deadline", _when(found.deadline_at, now)), ("ended", _when(found.ended_at, now)),
        ("attempt", f"{found.attempt_index}, generation {found.generation}, epoch {found.epoch}"),
        ("counts", _counts(found)),
        ("worker", "" if lease is None else f"{lease.worker.name} ({lease.worker.instance})"),
        ("lease", "" if lease is None else f"until {moment(lease.expires_at)}"),
        ("progress", _progress(found)),
        ("waits for", " and ".join(wait.missing) if wait else ""),
        ("times out", f"{_when(wait.timeout_at, now)}, then {wait.on_timeout}" if wait and wait.timeout_at else ""),
        ("held", found.hold_reason), ("failure", f"{failure.message} ({failure.category})" if failure else ""),
        ("cancelled", found.cancelled_by and f"by {found.cancelled_by} ({found.cancel_reason or 'no reason given'})"),
        ("input", _value(found.payload, _MOST_SHOWN, screen)),
        ("result", _value(outcome.result, _MOST_SHOWN, screen) if outcome and outcome.result is not None else ""),
    ]  # fmt: skip


def _when(time: datetime | None, now: datetime) -> str:
    if time is None:
        return ""
    far = age(time, now)
    return f"{moment(time)} ({far})" if far.startswith("in ") else f"{moment(time)} ({far} ago)"


def _counts(found: Description) -> str:
    pairs = (("retries", found.retry_count), ("reclaims", found.reclaim_count), ("replays", found.replay_count))
    return ", ".join(f"{number} {name}" for name, number in pairs if number)


def _progress(found: Description) -> str:
    percent = "" if found.progress_percent is None else f"{found.progress_percent}%"
    return f"{percent} {found.progress_message or ''}".strip()


def _value(data: bytes, most: int = 200, screen: Screen | None = None) -> str:
    text = document(data[: 64 * most] if len(data) > 64 * most else data)
    return (screen or Screen()).cut(text, most)


def _lines(text: str) -> list[str]:
    from flowfabric.cli.screen import escaped

    return [escaped(line) for line in text.strip().split("\n")]
