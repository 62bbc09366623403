"""Cases where a run could repeat recorded work, lose a record or loop forever."""

from __future__ import annotations

import pytest

from flowfabric import (
    App,
    ApprovalRequest,
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


def identity(number: int) -> int:
    return number


async def test_branch_with_an_unrecorded_failure_is_retried_with_all_others(app: App, kit: Kit) -> None:
    failures = ["a blip in plain code"]

    async def healthy() -> int:
        return await step(identity, 1)

    async def failing() -> int:
        await step(identity, 2)
        if failures:
            raise OSError(failures.pop())
        return 2

    @app.task
    async def both() -> list[int]:
        return list(await gather(healthy(), failing()))

    assert await kit.run(both) == [1, 2]


async def test_step_with_a_too_large_result_fails_alone(app: App, kit: Kit) -> None:
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


async def test_too_long_path_fails_the_execution_immediately(app: App, kit: Kit) -> None:
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


async def test_loser_of_a_race_consumes_no_signal(app: App, kit: Kit) -> None:
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


async def test_second_wait_for_a_waitpoint_needs_a_second_signal(app: App, kit: Kit) -> None:
    @app.task
    async def gates() -> bool:
        await wait_for(Single("gate"))
        return isinstance(await wait_for(Single("gate"), timeout="1h"), TimedOut)

    handle = await kit.start(gates)
    await kit.engine.signals.approve(handle.id, "gate", "open")
    assert await kit.finish(handle)


async def test_failed_notification_of_an_approver_fails_in_every_run(app: App, kit: Kit) -> None:
    done: list[str] = []

    def mail(ask: ApprovalRequest) -> None:
        raise PermanentError("no post today")

    @app.task
    async def ask() -> str:
        try:
            await approval("x", by="ops", notify=mail)
        except StepFailed:
            await sleep("1m")
            await step(done.append, "notified by phone")
            return "notified"
        return "decided"

    assert await kit.run(ask) == "notified"
    assert done == ["notified by phone"]


@pytest.mark.parametrize("name", ["pay#2", "pay[x]", "gather[0]/pay"])
def test_step_name_that_looks_like_a_path_is_rejected(name: str) -> None:
    with pytest.raises(InvalidRequest, match="number calls of the same name"):
        step.options(name=name)


def test_repr_of_an_approval_request_hides_its_token() -> None:
    ask = ApprovalRequest("refund", "ops", "secret-token", "https://shop.example/secret-token", None)
    assert "secret" not in repr(ask)


@pytest.mark.long
async def test_more_children_than_fit_in_one_commit_are_all_stored(app: App, kit: Kit) -> None:
    @app.task
    async def child(number: int) -> int:
        return number

    @app.task
    async def parent(number: int) -> int:
        return sum(await gather(*(child.run(index) for index in range(number))))

    assert await kit.run(parent, 1_001) == sum(range(1_001))


async def test_settle_returns_a_failure_as_a_record(app: App, kit: Kit) -> None:
    async def broken() -> int:
        raise PermanentError("no")

    @app.task
    async def one() -> bool:
        [outcome] = await settle(step(broken))
        return isinstance(outcome, Failed)

    assert await kit.run(one)
