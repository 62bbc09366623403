"""Tests that concurrent reads of waits and journals share statements and return separate results."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowfabric.engine import Engine, Lease, NotFound, Step, Unavailable
from tests.scenarios import leased


@pytest.fixture
def reads(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list to which every later read of the engine is added."""
    calls: list[Any] = []
    read_single = engine._context.store.read_single

    async def record_read(body: Any) -> Any:
        calls.append(body)
        return await read_single(body)

    monkeypatch.setattr(engine._context.store, "read_single", record_read)
    return calls


async def lease_with_signals(engine: Engine, number: int) -> list[Lease]:
    """Return `number` leases. The execution of the lease at index n has received n signals."""
    leases = [await leased(engine, signals=["go"]) for _ in range(number)]
    for index, lease in enumerate(leases):
        for count in range(index):
            await engine.signals.send(lease.execution_id, "go", b"%d-%d" % (index, count))
    return leases


async def test_concurrent_wait_reads_share_statements_and_return_their_own_rows(
    engine: Engine, reads: list[Any]
) -> None:
    leases = await lease_with_signals(engine, 12)
    ended_leases = [await leased(engine) for _ in range(3)]
    await engine.leases.complete_many([(lease.fence, b"%d" % index) for index, lease in enumerate(ended_leases)])
    children = [lease.execution_id for lease in ended_leases]
    reads.clear()
    snapshots = await asyncio.gather(
        *(engine.leases.read_waits(lease.fence, {"go": 0}, children[index % 4 :]) for index, lease in enumerate(leases))
    )
    assert len(reads) <= 2
    for index, snapshot in enumerate(snapshots):
        assert [signal.payload for signal in snapshot.signals] == [b"%d-%d" % (index, count) for count in range(index)]
        assert set(snapshot.children) == set(children[index % 4 :])


async def test_concurrent_wait_reads_of_one_worker_do_not_mix(engine: Engine) -> None:
    lease = await leased(engine, signals=["a", "b"])
    child = await leased(engine)
    await engine.leases.complete(child.fence, b"done")
    for name in ("a", "b", "a"):
        await engine.signals.send(lease.execution_id, name)
    first, second, third, fourth = await asyncio.gather(
        engine.leases.read_waits(lease.fence, {"a": 0}),
        engine.leases.read_waits(lease.fence, {"b": 0}),
        engine.leases.read_waits(lease.fence, {"a": 1}, [child.execution_id]),
        engine.leases.read_waits(lease.fence, {"a": 0}),
    )
    assert [[signal.seq for signal in snapshot.signals] for snapshot in (first, second, third, fourth)] == [
        [1, 3],
        [2],
        [3],
        [1, 3],
    ]
    assert [len(snapshot.children) for snapshot in (first, second, third)] == [0, 0, 1]


async def test_missing_execution_does_not_affect_the_other_reads_of_its_batch(engine: Engine) -> None:
    lease, foreign_lease = (
        await leased(engine, signals=["go"]),
        await leased(engine.for_namespace("other"), signals=["go"]),
    )
    await engine.leases.checkpoint(lease.fence, [Step("one", b"1")])
    await engine.for_namespace("other").leases.checkpoint(foreign_lease.fence, [Step("hidden")])
    waits, waits_error, journal, journal_error = await asyncio.gather(
        engine.leases.read_waits(lease.fence, {"go": 0}),
        engine.leases.read_waits(foreign_lease.fence, {"go": 0}, [foreign_lease.execution_id]),
        engine.leases.journal(lease.fence),
        engine.leases.journal(foreign_lease.fence),
        return_exceptions=True,
    )
    assert isinstance(waits_error, NotFound) and isinstance(journal_error, NotFound)
    assert not isinstance(waits, BaseException) and waits.signals == ()
    assert not isinstance(journal, BaseException)
    assert [(step.name, step.payload) for step in journal] == [("one", b"1")]


async def test_concurrent_journal_reads_share_statements_and_return_their_own_steps(
    engine: Engine, reads: list[Any]
) -> None:
    leases = [await leased(engine) for _ in range(12)]
    for index, lease in enumerate(leases[1:], start=1):
        await engine.leases.checkpoint(lease.fence, [Step(f"{index}-{count}") for count in range(index)])
    reads.clear()
    journals = await asyncio.gather(*(engine.leases.journal(lease.fence) for lease in leases))
    assert len(reads) <= 2
    for index, journal in enumerate(journals):
        assert [step.name for step in journal] == [f"{index}-{count}" for count in range(index)]
        assert [step.seq for step in journal] == list(range(1, index + 1))
    fence = leases[-1].fence
    few, first, second = await asyncio.gather(
        engine.leases.journal(fence, 2), engine.leases.journal(fence), engine.leases.journal(fence)
    )
    first.clear()
    assert (len(few), len(second)) == (2, 11), "each caller receives its own list"


async def test_wait_read_is_not_starved_by_others_of_the_same_execution(engine: Engine) -> None:
    lease = await leased(engine, signals=["a", "b"])
    is_stopped = False

    async def read_repeatedly() -> int:
        reads = 0
        while not is_stopped:
            await engine.leases.read_waits(lease.fence, {"b": reads})
            reads += 1
        return reads

    readers = [asyncio.create_task(read_repeatedly()) for _ in range(3)]
    await asyncio.sleep(0.01)
    await asyncio.wait_for(engine.leases.read_waits(lease.fence, {"a": 0}), 10)
    is_stopped = True
    assert min(await asyncio.gather(*readers)) > 0


async def test_each_caller_receives_its_own_error(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    leases = [await leased(engine) for _ in range(3)]

    async def raise_unavailable(body: Any) -> Any:
        raise Unavailable("storage_unreachable", "gone")

    monkeypatch.setattr(engine._context.store, "read_single", raise_unavailable)
    errors = await asyncio.gather(*(engine.leases.journal(lease.fence) for lease in leases), return_exceptions=True)
    assert {type(error) for error in errors} == {Unavailable}
    assert len({id(error) for error in errors}) == 3
