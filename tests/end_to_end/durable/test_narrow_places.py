"""Places where a run could easily do a recorded thing again, lose a record, or turn in a circle."""

from __future__ import annotations

import pytest

from flowfabric import (
    App,
    Ask,
    ExecutionFailed,
    Failed,
    InvalidRequest,
    PermanentError,
    Received,
    Signal,
    Single,
    StepFailed,
    TimedOut,
    approval,
    changed,
    gather,
    race,
    settle,
    sleep,
    step,
    wait_for,
    wait_signal,
)
from flowfabric.testing import Kit

paid = Signal("paid", int)


def same(number: int) -> int:
    return number


async def test_a_branch_that_has_an_accident_is_tried_again_with_all_others(app: App, kit: Kit) -> None:
    accidents = ["a blip in plain code"]

    async def sound() -> int:
        return await step(same, 1)

    async def unlucky() -> int:
        await step(same, 2)
        if accidents:
            raise OSError(accidents.pop())
        return 2

    @app.task
    async def both() -> list[int]:
        return list(await gather(sound(), unlucky()))

    assert await kit.run(both) == [1, 2]


async def test_what_cannot_be_stored_fails_alone_and_its_neighbour_stays_recorded(app: App, kit: Kit) -> None:
    charged: list[int] = []

    async def too_large() -> str:
        return "x" * (1024 * 1024 - 2)

    async def charge() -> int:
        charged.append(1)
        return 1

    @app.task
    async def both() -> list[str]:
        large, small = await settle(step(too_large), step(charge))
        await sleep("1m")
        return [type(large).__name__, type(small).__name__]

    assert await kit.run(both) == ["Failed", "Completed"]
    assert charged == [1]


async def test_a_path_that_is_too_long_fails_the_execution_at_once(app: App, kit: Kit) -> None:
    runs: list[int] = []

    @app.task
    async def named() -> int:
        runs.append(1)
        changed("x" * 250)
        return 1

    handle = await kit.start(named)
    with pytest.raises(ExecutionFailed, match="path of a durable call"):
        await kit.finish(handle)
    assert len(runs) == 1


async def test_the_loser_of_a_race_uses_up_no_signal(app: App, kit: Kit) -> None:
    @app.task(signals=[paid])
    async def late() -> str:
        first = await race(sleep("1m"), wait_signal(paid))
        match await wait_signal(paid, timeout="1h"):
            case Received(value=value):
                return f"{first.index}, then {value}"
            case TimedOut():
                return "the signal is gone"

    handle = await kit.start(late)
    await handle.signal(paid, 7)
    kit.clock.advance("2m")
    assert await kit.finish(handle) == "0, then 7"


async def test_a_second_wait_for_the_same_waitpoint_needs_a_second_signal(app: App, kit: Kit) -> None:
    @app.task
    async def gates() -> bool:
        await wait_for(Single("gate"))
        return isinstance(await wait_for(Single("gate"), timeout="1h"), TimedOut)

    handle = await kit.start(gates)
    await kit.engine.signals.approve(handle.id, "gate", "open")
    assert await kit.finish(handle)


async def test_a_letter_that_could_not_be_sent_fails_again_in_every_run(app: App, kit: Kit) -> None:
    done: list[str] = []

    def mail(ask: Ask) -> None:
        raise PermanentError("no post today")

    @app.task
    async def ask() -> str:
        try:
            await approval("x", by="ops", notify=mail)
        except StepFailed:
            await sleep("1m")
            await step(done.append, "told by phone")
            return "told"
        return "decided"

    assert await kit.run(ask) == "told"
    assert done == ["told by phone"]


@pytest.mark.parametrize("name", ["pay#2", "pay[x]", "gather[0]/pay"])
def test_a_name_that_looks_like_a_path_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="tell calls of the same name apart"):
        step.options(name=name)


def test_an_ask_does_not_show_its_token() -> None:
    ask = Ask("refund", "ops", "secret-token", "https://shop.example/secret-token", None)
    assert "secret" not in repr(ask)


@pytest.mark.long
async def test_more_children_than_one_commit_holds_are_all_stored(app: App, kit: Kit) -> None:
    @app.task
    async def child(number: int) -> int:
        return number

    @app.task
    async def parent(number: int) -> int:
        return sum(await gather(*(child.run(index) for index in range(number))))

    assert await kit.run(parent, 1_001) == sum(range(1_001))


async def test_settle_tells_a_failure_as_a_record(app: App, kit: Kit) -> None:
    async def broken() -> int:
        raise PermanentError("no")

    @app.task
    async def one() -> bool:
        [found] = await settle(step(broken))
        return isinstance(found, Failed)

    assert await kit.run(one)
