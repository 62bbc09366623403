"""A factory of kits and helper functions for tests of durable calls."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flowfabric import App, Handle, current
from flowfabric.engine import State, WorkerId
from flowfabric.runtime.run import TaskRun, TaskRunner
from flowfabric.runtime.threads import ThreadPools
from flowfabric.testing import Kit
from tests.stores import TestStore


@dataclass(frozen=True)
class KitFactory:
    """Creates kits on one store."""

    store: str = ":memory:"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, app: App, **settings: Any) -> Kit:
        return Kit(app, self.store, **self.options, **settings)


async def statuses(kit: Kit, handle: Handle[Any]) -> dict[str, str]:
    """Return a dict from the path of each recorded call of an execution to the status of the call."""
    return {step.name: step.status for step in await kit.engine.executions.steps(handle.id)}


async def until_recorded(kit: Kit, path: str) -> None:
    """Wait, inside a step, until the same execution has recorded the call with this path."""
    id_ = current().execution_id
    while path not in {step.name for step in await kit.engine.executions.steps(id_)}:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def children_of(kit: Kit, kind: str) -> list[State]:
    """Return the states of all executions of a kind, oldest first."""
    page = await kit.engine.executions.list(kind=kind)
    return [execution.state for execution in sorted(page.items, key=lambda execution: execution.created_at)]


async def begin(kit: Kit) -> TaskRun:
    """Claim the oldest runnable execution and return a run of it, so that a test can act as the worker."""
    [lease] = await kit.engine.leases.claim(["default"], WorkerId("by-hand", "by-hand"), limit=1, lease_ttl=60)
    return TaskRunner(kit.app, ThreadPools(4)).begin(kit.engine, lease)


def kit_on(store: TestStore, app: App) -> Kit:
    """Return a kit that runs the app's tasks on this store."""
    schema: Any = getattr(store, "schema", None)
    return Kit(app, store.url, durable=False, **({} if schema is None else {"schema": schema}))
