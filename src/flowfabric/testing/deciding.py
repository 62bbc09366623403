"""Decisions of people in tests, by the name of what they decide."""

from __future__ import annotations

import json
from uuid import UUID

from flowfabric.core.errors import NotFound
from flowfabric.core.views import WaitpointView
from flowfabric.core.waits import WaitpointState
from flowfabric.engine.engine import Engine
from flowfabric.sdk.deciding import DECISION_KEY, Word
from flowfabric.sdk.signals import Delivery


async def decide(engine: Engine, waitpoint: WaitpointView, by: str, word: Word, comment: str) -> Delivery:
    """Delivers a decision to an approval; a second one of the same approver answers as a duplicate."""
    payload = json.dumps({"comment": comment}).encode()
    return await engine.signals.approve(
        waitpoint.execution_id, waitpoint.key, word, payload, suffix=DECISION_KEY, principal=by
    )


async def open_approval(engine: Engine, id_: UUID, name: str, by: str) -> WaitpointView:
    """The oldest approval of this name that is open for this approver."""
    asked: list[str] = []
    after: UUID | None = None
    while page := await engine.waitpoints.list(id_, after=after):
        for waitpoint in page:
            if waitpoint.state is not WaitpointState.CLOSED and "approval:" in waitpoint.key:
                if _is_for(waitpoint.key, name, by):
                    return waitpoint
                asked.append(waitpoint.key)
        after = page[-1].id
    message = f"nobody asks {by} for {name!r} now; open are {', '.join(asked) or 'no approvals at all'}"
    raise NotFound("approval_not_open", message, execution_id=id_)


def _is_for(key: str, name: str, by: str) -> bool:
    """True for `approval:NAME`, `approval:NAME#2`, and those with the approver in brackets, in any scope."""
    label = key.rpartition("approval:")[2]
    asked, bracket, who = label.partition("[")
    return asked.partition("#")[0] == name and (not bracket or who == f"{by}]")
