"""Looks and journals that are asked for at the same time: read together, and answered each for itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowfabric.engine import Engine, Lease, NotFound, Step, Unavailable
from tests.scenarios import leased


@pytest.fixture
def reads(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The reads that the engine has made since."""
    made: list[Any] = []
    read_single = engine._context.store.read_single

    async def noted(body: Any) -> Any:
        made.append(body)
        return await read_single(body)

    monkeypatch.setattr(engine._context.store, "read_single", noted)
    return made


async def with_signals(engine: Engine, number: int) -> list[Lease]:
    """Leases on executions with as many signals as their place in the list."""
    leases = [await leased(engine, signals=["go"]) for _ in range(number)]
    for place, lease in enumerate(leases):
        for count in range(place):
            await engine.signals.send(lease.execution_id, "go", b"%d-%d" % (place, count))
    return leases


async def test_looks_at_once_share_reads_and_each_sees_its_own(engine: Engine, reads: list[Any]) -> None:
    leases = await with_signals(engine, 12)
    ended = [await leased(engine) for _ in range(3)]
    await engine.leases.complete_many([(lease.fence, b"%d" % place) for place, lease in enumerate(ended)])
    children = [lease.execution_id for lease in ended]
    reads.clear()
    looks = await asyncio.gather(
        *(engine.leases.look(lease.fence, {"go": 0}, children[place % 4 :]) for place, lease in enumerate(leases))
    )
    assert len(reads) <= 2
    for place, look in enumerate(looks):
        assert [signal.payload for signal in look.signals] == [b"%d-%d" % (place, count) for count in range(place)]
        assert set(look.children) == set(children[place % 4 :])


async def test_two_looks_of_one_worker_at_once_do_not_mix(engine: Engine) -> None:
    lease = await leased(engine, signals=["a", "b"])
    child = await leased(engine)
    await engine.leases.complete(child.fence, b"done")
    for name in ("a", "b", "a"):
        await engine.signals.send(lease.execution_id, name)
    first, second, third, fourth = await asyncio.gather(
        engine.leases.look(lease.fence, {"a": 0}),
        engine.leases.look(lease.fence, {"b": 0}),
        engine.leases.look(lease.fence, {"a": 1}, [child.execution_id]),
        engine.leases.look(lease.fence, {"a": 0}),
    )
    assert [[signal.seq for signal in look.signals] for look in (first, second, third, fourth)] == [
        [1, 3], [2], [3], [1, 3],
    ]  # fmt: skip
    assert [len(look.children) for look in (first, second, third)] == [0, 0, 1]


async def test_what_is_not_there_is_not_found_and_its_neighbours_are_answered(engine: Engine) -> None:
    here, gone = await leased(engine, signals=["go"]), await leased(engine.within("other"), signals=["go"])
    await engine.leases.checkpoint(here.fence, [Step("one", b"1")])
    await engine.within("other").leases.checkpoint(gone.fence, [Step("hidden")])
    look, no_look, journal, no_journal = await asyncio.gather(
        engine.leases.look(here.fence, {"go": 0}),
        engine.leases.look(gone.fence, {"go": 0}, [gone.execution_id]),
        engine.leases.recorded(here.fence),
        engine.leases.recorded(gone.fence),
        return_exceptions=True,
    )
    assert isinstance(no_look, NotFound) and isinstance(no_journal, NotFound)
    assert not isinstance(look, BaseException) and look.signals == ()
    assert not isinstance(journal, BaseException)
    assert [(step.name, step.payload) for step in journal] == [("one", b"1")]


async def test_journals_at_once_share_reads_and_each_has_its_own_steps(engine: Engine, reads: list[Any]) -> None:
    leases = [await leased(engine) for _ in range(12)]
    for place, lease in enumerate(leases[1:], start=1):
        await engine.leases.checkpoint(lease.fence, [Step(f"{place}-{count}") for count in range(place)])
    reads.clear()
    journals = await asyncio.gather(*(engine.leases.recorded(lease.fence) for lease in leases))
    assert len(reads) <= 2
    for place, journal in enumerate(journals):
        assert [step.name for step in journal] == [f"{place}-{count}" for count in range(place)]
        assert [step.seq for step in journal] == list(range(1, place + 1))
    fence = leases[-1].fence
    few, first, second = await asyncio.gather(
        engine.leases.recorded(fence, 2), engine.leases.recorded(fence), engine.leases.recorded(fence)
    )
    first.clear()
    assert (len(few), len(second)) == (2, 11), "every caller has a list of its own"


async def test_a_look_is_not_overtaken_for_ever_by_others_of_the_same_execution(engine: Engine) -> None:
    lease = await leased(engine, signals=["a", "b"])
    is_over = False

    async def insisting() -> int:
        times = 0
        while not is_over:
            await engine.leases.look(lease.fence, {"b": times})
            times += 1
        return times

    others = [asyncio.create_task(insisting()) for _ in range(3)]
    await asyncio.sleep(0.01)
    await asyncio.wait_for(engine.leases.look(lease.fence, {"a": 0}), 10)
    is_over = True
    assert min(await asyncio.gather(*others)) > 0


async def test_callers_that_cannot_be_answered_have_an_error_each(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = [await leased(engine) for _ in range(3)]

    async def gone(body: Any) -> Any:
        raise Unavailable("storage_unreachable", "gone")

    monkeypatch.setattr(engine._context.store, "read_single", gone)
    errors = await asyncio.gather(*(engine.leases.recorded(lease.fence) for lease in leases), return_exceptions=True)
    assert {type(error) for error in errors} == {Unavailable}
    assert len({id(error) for error in errors}) == 3
