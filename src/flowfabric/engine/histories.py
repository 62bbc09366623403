"""The whole history of an execution, its children among it."""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

from flowfabric.core.errors import NotFound
from flowfabric.core.histories import with_children
from flowfabric.core.records import Event
from flowfabric.core.views import Summary
from flowfabric.engine.engine import Engine

_PAGE = 1000


async def whole_history(engine: Engine, id_: UUID | str) -> list[Event]:
    """All events of an execution, and of its children when they were submitted and how they ended."""
    events: list[Event] = []
    while page := await engine.executions.history(id_, after=(events[-1].version or 0) if events else 0, limit=_PAGE):
        events += page
        if len(page) < _PAGE:
            break
    return with_children(events, await _children(engine, id_))


async def _children(engine: Engine, id_: UUID | str) -> list[Summary]:
    found: list[Summary] = []
    with suppress(NotFound):  # Its retention has passed; only its events are left.
        while page := await engine.executions.children(id_, after=found[-1].id if found else None, limit=_PAGE):
            found += page
            if len(page) < _PAGE:
                break
    return found
