"""The complete history of an execution, including its children."""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

from flowfabric.core.errors import NotFound
from flowfabric.core.executions.records import Event
from flowfabric.core.executions.views import Summary, with_children
from flowfabric.engine.engine import Engine

_PAGE = 1000


async def whole_history(engine: Engine, id_: UUID | str) -> list[Event]:
    """Return all events of an execution, together with the submission and the end of each of its children."""
    events: list[Event] = []
    while page := await engine.executions.history(id_, after=(events[-1].version or 0) if events else 0, limit=_PAGE):
        events += page
        if len(page) < _PAGE:
            break
    return with_children(events, await _children(engine, id_))


async def _children(engine: Engine, id_: UUID | str) -> list[Summary]:
    children: list[Summary] = []
    with suppress(NotFound):  # After its retention, an execution is removed, but its events remain.
        while page := await engine.executions.children(id_, after=children[-1].id if children else None, limit=_PAGE):
            children += page
            if len(page) < _PAGE:
                break
    return children
