"""run: stores an execution and waits for it; the process that ends it tells how, and nobody has to look."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric.core.views import Glance
from flowfabric.engine import Engine, Lease, State, Submission, Unavailable
from flowfabric.engine.shared_reads import SharedRead
from flowfabric.ops import complete
from tests.stores import TestStore, opened


async def test_whoever_waits_is_told_what_is_stored_and_does_not_look(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing_new(*_: object) -> Glance:
        return Glance(State.ACTIVE, None, None)

    monkeypatch.setattr(SharedRead, "of", nothing_new)
    running = asyncio.create_task(engine.executions.run(Submission(kind="job"), _never))
    await engine.leases.complete((await _claimed(engine)).fence, b"7", encoding="text")
    id_, told = await asyncio.wait_for(running, 10)
    monkeypatch.undo()
    assert told == await engine.executions.glance(id_)
    assert told.outcome == await engine.executions.result(id_)


async def test_the_end_of_a_member_and_of_one_with_a_wait_is_told_too(engine: Engine) -> None:
    running = asyncio.create_task(engine.executions.run(Submission(kind="job", signals=["go"]), _never))
    await engine.leases.complete((await _claimed(engine)).fence, b"7")
    id_, told = await running
    assert told == await engine.executions.glance(id_)


async def test_any_other_end_is_looked_at(engine: Engine) -> None:
    running = asyncio.create_task(engine.executions.run(Submission(kind="job"), _never))
    await engine.leases.fail((await _claimed(engine)).fence, "broken", failure_class="permanent")
    id_, found = await running
    assert found.state is State.FAILED
    assert found == await engine.executions.glance(id_)


async def test_a_repeated_submission_waits_for_the_first_one(engine: Engine) -> None:
    first = await engine.executions.submit("job", key="once")
    running = asyncio.create_task(engine.executions.run(Submission(kind="job", key="once"), _never))
    await engine.leases.complete((await _claimed(engine)).fence, b"7")
    id_, found = await running
    assert (id_, found.state) == (first.id, State.COMPLETED)
    assert (await engine.executions.run(Submission(kind="job", key="once"), _never))[1] == found


async def test_what_is_enough_ends_the_wait(engine: Engine) -> None:
    _, found = await engine.executions.run(Submission(kind="job"), lambda glance: glance.state is State.WAITING)
    assert found == Glance(State.WAITING, None, None)


async def test_an_end_by_another_process_is_noticed(store: TestStore) -> None:
    async with opened(store) as here, opened(store) as there:
        running = asyncio.create_task(here.executions.run(Submission(kind="job"), _never))
        await there.leases.complete((await _claimed(there)).fence, b"7")
        id_, found = await asyncio.wait_for(running, 10)
        assert found == await there.executions.glance(id_)


async def test_nobody_is_told_of_an_end_that_was_taken_back(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise Unavailable("storage_busy", "the store did not answer")

    running = asyncio.create_task(engine.executions.run(Submission(kind="job", signals=["go"]), _never))
    lease = await _claimed(engine)
    monkeypatch.setattr(complete, "signal_waiting", broken)
    with pytest.raises(Unavailable):
        await engine.leases.complete(lease.fence, b"7")
    monkeypatch.undo()
    await asyncio.sleep(0.1)
    assert not running.done()
    await engine.leases.complete(lease.fence, b"8")
    _, told = await running
    assert told.outcome is not None and told.outcome.result == b"8"


def _never(_: Glance) -> bool:
    return False


async def _claimed(engine: Engine) -> Lease:
    while True:
        leases = await engine.leases.claim(["default"], "worker-1")
        if leases:
            return leases[0]
        await asyncio.sleep(0.01)
