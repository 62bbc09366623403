"""`flowfabric cancel --all`, `replay --all` and `hold --all`: act on every execution that matches the filters."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flowfabric.cli import exit_codes
from flowfabric.cli.commands.show import executions_table
from flowfabric.cli.inputs import audit_args, confirm, filter_args, require_confirmation
from flowfabric.cli.output import format_count, print_hint, print_lines, print_result, stdout_screen
from flowfabric.cli.targets import open_for_writing
from flowfabric.core.errors import FlowFabricError, InvalidRequest, Unavailable
from flowfabric.engine import Engine, State, Summary

_MAX_EXECUTIONS = 100_000
_MAX_SHOWN = 50
_PAGE_SIZE = 1000
_CONCURRENCY = 50


@dataclass(frozen=True, slots=True)
class BulkAction:
    """What to do with every execution that matches. Without --state, the states are `states`.

    With `excludes_children`, the command excludes children, because the next run of a parent submits them again.
    """

    verb: str
    participle: str
    states: tuple[State, ...]
    act: Callable[[Engine, Summary, argparse.Namespace], Awaitable[object]]
    excludes_children: bool = False


@dataclass(frozen=True, slots=True)
class Selection:
    """The executions to act on, oldest first, and the number of children that match but are excluded."""

    executions: Sequence[Summary]
    children: int = 0

    @property
    def note(self) -> str:
        """A sentence about the excluded children, or an empty text."""
        if not self.children:
            return ""
        excluded = "1 child was" if self.children == 1 else f"{self.children} children were"
        return f" {excluded} excluded, because a replay of the parent submits children again."


def _cancel(engine: Engine, execution: Summary, arguments: argparse.Namespace) -> Awaitable[object]:
    return engine.operator.cancel(
        execution.id, children=arguments.children, grace=arguments.grace, **audit_args(arguments)
    )


def _replay(engine: Engine, execution: Summary, arguments: argparse.Namespace) -> Awaitable[object]:
    # The listed generation makes the call safe to repeat, and leaves alone what another operator has just replayed.
    return engine.operator.replay(
        execution.id,
        from_step=arguments.from_step,
        expected_generation=execution.generation,
        downstream=not arguments.no_downstream,
        **audit_args(arguments),
    )


def _hold(engine: Engine, execution: Summary, arguments: argparse.Namespace) -> Awaitable[object]:
    return engine.operator.hold(execution.id, **audit_args(arguments))


CANCEL = BulkAction("Cancel", "cancelled", tuple(state for state in State if not state.is_terminal), _cancel)
REPLAY = BulkAction("Replay", "replayed", (State.FAILED,), _replay, excludes_children=True)
HOLD = BulkAction("Hold", "held", (State.WAITING, State.DELAYED), _hold)


def takes_all(arguments: argparse.Namespace) -> bool:
    """Return True with --all. Raise `InvalidRequest` unless the command has either an ID, or --all with its filters."""
    if (arguments.id is None) is not arguments.all:
        raise InvalidRequest("invalid_request", "name an execution, or use --all")
    if arguments.all and getattr(arguments, "generation", None) is not None:
        raise InvalidRequest("invalid_request", "--generation is for one execution; leave out --all")
    if not arguments.all and (arguments.dry_run or any(filter_args(arguments).values())):
        raise InvalidRequest("invalid_request", "filters and --dry-run need --all; leave out the execution")
    return bool(arguments.all)


async def run_bulk(arguments: argparse.Namespace, action: BulkAction) -> int:
    """Act on the executions that match, oldest first, and print how many. With --dry-run, only list them."""
    if not arguments.dry_run:
        require_confirmation(arguments)
    async with open_for_writing(arguments) as engine:
        selection = _select(await _matching(engine, arguments, action), arguments, action)
        executions = selection.executions
        if arguments.dry_run:
            _print_dry_run(arguments, action, selection, engine)
            return exit_codes.OK
        if executions:
            confirm(arguments, f"{action.verb} {format_count(len(executions), 'execution')}?")
        refused = await _act(engine, arguments, action, executions)
    return _print_outcome(arguments, action, selection, refused)


def _select(executions: Sequence[Summary], arguments: argparse.Namespace, action: BulkAction) -> Selection:
    """Exclude the children that a replay of their parents would submit again.

    --kind selects children on purpose, except those whose parent is selected too.
    """
    if not action.excludes_children:
        return Selection(executions)
    parents = {execution.id for execution in executions}
    selected = [
        execution
        for execution in executions
        if execution.parent_id is None or (arguments.kind and execution.parent_id not in parents)
    ]
    return Selection(selected, len(executions) - len(selected))


async def _matching(engine: Engine, arguments: argparse.Namespace, action: BulkAction) -> Sequence[Summary]:
    """Return the executions that match the filters, oldest first. If there are too many, leave out the oldest."""
    filters = filter_args(arguments)
    filters["state"] = filters["state"] or action.states
    executions: list[Summary] = []
    cursor: str | None = None
    while len(executions) < _MAX_EXECUTIONS:
        page = await engine.executions.list(**filters, limit=_PAGE_SIZE, cursor=cursor)
        executions += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    else:
        print_hint(f"These are the newest {_MAX_EXECUTIONS} executions; repeat the command for the others.")
    return executions[::-1]


async def _act(
    engine: Engine, arguments: argparse.Namespace, action: BulkAction, executions: Sequence[Summary]
) -> list[tuple[Summary, FlowFabricError]]:
    """Act on the executions, and return those for which the engine refused it, with the error."""
    refused: list[tuple[Summary, FlowFabricError]] = []
    for start in range(0, len(executions), _CONCURRENCY):
        some = executions[start : start + _CONCURRENCY]
        calls = (action.act(engine, execution, arguments) for execution in some)
        for execution, outcome in zip(some, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(outcome, FlowFabricError) and not isinstance(outcome, Unavailable):
                refused.append((execution, outcome))
            elif isinstance(outcome, BaseException):
                raise outcome
    return refused


def _print_dry_run(arguments: argparse.Namespace, action: BulkAction, selection: Selection, engine: Engine) -> None:
    executions = selection.executions
    shown = executions[:_MAX_SHOWN]
    if shown and not arguments.json:
        print_lines(executions_table(shown, engine.now(), stdout_screen()))
    more = len(executions) - len(shown)
    rest = f" ({more} more are not shown)" if more else ""
    sentence = f"{format_count(len(executions), 'execution')} would be {action.participle}{rest}.{selection.note}"
    ids = [execution.id for execution in executions]
    result = {"dry_run": True, "matched": len(ids), "ids": ids, **_count_excluded(action, selection)}
    print_result(arguments, sentence, result)


def _print_outcome(
    arguments: argparse.Namespace,
    action: BulkAction,
    selection: Selection,
    refused: Sequence[tuple[Summary, FlowFabricError]],
) -> int:
    matched = len(selection.executions)
    done = matched - len(refused)
    sentence = f"{format_count(done, 'execution')} {action.participle}.{selection.note}"
    if refused:
        execution, error = refused[0]
        sentence += f" {format_count(len(refused), 'execution')} could not be; the first is {execution.id}: {error}."
    errors: list[dict[str, Any]] = [
        {"id": execution.id, "code": error.code, "message": str(error)} for execution, error in refused
    ]
    result = {"dry_run": False, "matched": matched, action.participle: done, "refused": errors}
    print_result(arguments, sentence, result | _count_excluded(action, selection))
    return exit_codes.REFUSED if refused else exit_codes.OK


def _count_excluded(action: BulkAction, selection: Selection) -> dict[str, int]:
    return {"excluded_children": selection.children} if action.excludes_children else {}
