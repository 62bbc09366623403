"""How tests of durable calls come by their kits, and what they ask again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flowfabric import App, Handle, current
from flowfabric.engine import State, WorkerId
from flowfabric.sdk.run import Run, Runner
from flowfabric.sdk.threads import ThreadPools
from flowfabric.testing import Kit


@dataclass(frozen=True)
class NewKit:
    """Makes kits on one store."""

    store: str = ":memory:"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, app: App, **settings: Any) -> Kit:
        return Kit(app, self.store, **self.options, **settings)


async def statuses(kit: Kit, handle: Handle[Any]) -> dict[str, str]:
    """How each recorded call of an execution stands, by its path."""
    return {step.name: step.status for step in await kit.engine.executions.steps(handle.id)}


async def until_recorded(kit: Kit, path: str) -> None:
    """For a step: returns when another call of the same execution is recorded."""
    id_ = current().execution_id
    while path not in {step.name for step in await kit.engine.executions.steps(id_)}:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def children_of(kit: Kit, kind: str) -> list[State]:
    """The states of all executions of a kind, oldest first."""
    page = await kit.engine.executions.list(kind=kind)
    return [item.state for item in sorted(page.items, key=lambda item: item.created_at)]


async def begin(kit: Kit) -> Run:
    """A lease of the oldest execution that can go on, about to be performed; for what a worker tells it meanwhile."""
    [lease] = await kit.engine.leases.claim(["default"], WorkerId("by-hand", "by-hand"), limit=1, lease_ttl=60)
    return Runner(kit.app, ThreadPools(4)).begin(kit.engine, lease)
