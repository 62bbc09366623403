"""Steps that waited for their next try when their group ended without them are recorded as abandoned."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from flowfabric import App, Backoff, PermanentError, gather, race, sleep, step
from flowfabric.engine import StepStatus
from tests.end_to_end.durable.kits import kit_on, statuses
from tests.stores import TestStore

APP = App("ended-retries.db")


def refuse() -> None:
    raise ConnectionError("refused")


async def refuse_in_branch() -> None:
    await step(refuse)


async def quick() -> int:
    await sleep("1s")
    return 5


async def fail() -> None:
    await sleep("1s")
    raise PermanentError("no")


async def race_in_branch() -> None:
    await race(step(refuse), refuse_in_branch())


MEMBERS: dict[str, Any] = {
    "a call": lambda: step(refuse),
    "a branch": refuse_in_branch,
    "a group": lambda: gather(step(refuse), quick()),
    "a group of branches": lambda: race(refuse_in_branch(), sleep("9h")),
    "a branch with a group": race_in_branch,
}


@APP.task(backoff=Backoff(initial="1h", jitter=False))
async def race_with_retry(member: str) -> str:
    await race(MEMBERS[member](), quick())
    await sleep("5h")
    return "done"


@APP.task(backoff=Backoff(initial="1h", jitter=False))
async def gather_with_retry(member: str) -> str:
    with suppress(PermanentError):
        await gather(MEMBERS[member](), fail())
    await sleep("5h")
    return "done"


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("task", [race_with_retry, gather_with_retry], ids=["race", "gather"])
async def test_retry_of_an_ended_member_is_abandoned(store: TestStore, task: Any, member: str) -> None:
    async with kit_on(store, APP) as kit:
        handle = await kit.start(task, member)
        assert "refuse" in await handle.explain()
        await kit.advance("2s")
        found = {path: status for path, status in (await statuses(kit, handle)).items() if "refuse" in path}
        assert set(found.values()) == {StepStatus.ABANDONED}
        assert "refuse" not in await handle.explain()
        assert await kit.finish(handle) == "done"
