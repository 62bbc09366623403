"""How tests speak of refusals and writes: which refusal it was, that nothing changed, which events came."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from flowfabric import Engine, FlowFabricError, Refused
from tests.stores import TestStore, snapshot


async def refused(request: Awaitable[object], code: str, kind: type[FlowFabricError] = Refused) -> FlowFabricError:
    """The refusal of a request, which must be of this kind and carry this code."""
    with pytest.raises(kind) as caught:
        await request
    assert caught.value.code == code, str(caught.value)
    return caught.value


@asynccontextmanager
async def nothing_written(store: TestStore) -> AsyncIterator[None]:
    """What happens in the block leaves every row of the store as it was."""
    before = await snapshot(store)
    yield
    assert await snapshot(store) == before


async def event_names(engine: Engine, id_: UUID) -> list[str]:
    """The events of an execution in order, as `family.name`."""
    return [f"{event.family}.{event.name}" for event in await engine.executions.history(id_)]


async def stored_row(store: TestStore, id_: UUID) -> dict[str, Any]:
    """The execution's row as the database has it."""
    [row] = await store.query("SELECT * FROM ff.execution WHERE id = ?", id_)
    return row
