"""`flowfabric approve` and `reject`: decide approvals by token, by link, or as an operator of the store."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from uuid import UUID

from flowfabric.cli.inputs import is_token, principal, read_token
from flowfabric.cli.output import print_result
from flowfabric.cli.targets import find_execution, open_for_writing
from flowfabric.cli.terminal import Column, detect_screen, format_table
from flowfabric.core.errors import InvalidRequest, NotFound
from flowfabric.core.tokens.secret import Secret
from flowfabric.core.waits.decisions import APPROVAL, DecisionWord, approval_name, purpose_of
from flowfabric.engine import Engine, WaitpointState, WaitpointView

_OPEN_COLUMNS = (Column("WAITPOINT"), Column("APPROVAL", 8), Column("FOR", 8), Column("TITLE", 12, is_optional=True))


async def approve(arguments: argparse.Namespace) -> None:
    """Approve as an approver."""
    await _decide(arguments, "approve")


async def reject(arguments: argparse.Namespace) -> None:
    """Reject as an approver."""
    await _decide(arguments, "reject")


async def _decide(arguments: argparse.Namespace, word: DecisionWord) -> None:
    by, for_ = principal(arguments), arguments.approver
    token = Secret(read_token(arguments.target)) if is_token(arguments.target) else None
    async with open_for_writing(arguments) as engine:
        target = token or await _find_waitpoint(engine, await find_execution(engine, arguments.target), by, for_)
        decided = await engine.signals.decide(target, word, arguments.reason, principal=by, for_=for_)
    decision = decided.decision
    done = "approved" if decision.approve else "rejected"
    as_whom = "" if decision.by == by else f" as {decision.by}"
    sentence = f"{done.capitalize()}{as_whom}."
    if decided.repeated:
        sentence = f"Already {done}{as_whom}; the first decision counts."
    result = {
        "decision": "approve" if decision.approve else "reject",
        "repeated": decided.repeated,
        "approval": decided.approval,
        "by": decision.by,
        "comment": decision.comment,
        "at": decision.at,
        "execution_id": decided.execution_id,
        "waitpoint_id": decided.waitpoint_id,
    }
    print_result(arguments, sentence, result)


async def _find_waitpoint(engine: Engine, id_: UUID, by: str, for_: str | None) -> UUID:
    """Return the waitpoint to decide. `id_` may be its own id, or that of an execution with one open approval."""
    try:
        approvals = [view for view in await _list_waitpoints(engine, id_) if purpose_of(view.key) == APPROVAL]
    except NotFound as error:
        try:
            return (await engine.waitpoints.describe(id_)).id
        except NotFound:
            raise error from None
    named = [view for view in approvals if view.approver == (for_ or by)]
    open_to_all = [view for view in approvals if view.approver is None]
    own = named if for_ is not None and named else [*named, *open_to_all]
    candidates = [view for view in own if view.state is not WaitpointState.CLOSED]
    if len(candidates) > 1:
        raise _ambiguous(candidates)
    if not own:
        raise _not_open(id_, approvals, for_ or by)
    # If the approval is over, the engine returns the earlier decision, or raises an error with the reason.
    return candidates[0].id if candidates else own[-1].id


async def _list_waitpoints(engine: Engine, id_: UUID) -> list[WaitpointView]:
    views: list[WaitpointView] = []
    while page := await engine.waitpoints.list(id_, after=views[-1].id if views else None, limit=1000):
        views += page
    return views


def _ambiguous(candidates: Sequence[WaitpointView]) -> InvalidRequest:
    """Print the open approvals, and return the error."""
    rows = [
        (view.id, approval_name(view.key, view.approver), view.approver, view.prompt.title if view.prompt else "")
        for view in candidates
    ]
    for line in format_table(_OPEN_COLUMNS, rows, detect_screen(sys.stderr)):
        print(line, file=sys.stderr)
    message = f"{len(candidates)} approvals are open; pass the id of the waitpoint instead of the execution"
    return InvalidRequest("several_approvals", message, waitpoints=[view.id for view in candidates])


def _not_open(id_: UUID, approvals: Sequence[WaitpointView], wanted: str) -> NotFound:
    names = [
        f'"{approval_name(view.key, view.approver)}" as {view.approver}'
        for view in approvals
        if view.state is not WaitpointState.CLOSED
    ]
    advice = f"add --as NAME; open: {', '.join(names)}" if names else "it has no open approval"
    return NotFound(
        "approval_not_open", f'execution {id_} waits for no decision of "{wanted}"; {advice}', execution_id=id_
    )
