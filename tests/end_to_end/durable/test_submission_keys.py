"""Keys of submits: `options(key=, key_window=)`, `by_key`, and the keys of children."""

from __future__ import annotations

import pytest

from flowfabric import (
    App,
    ExecutionCancelled,
    ExecutionFailed,
    Handle,
    InvalidRequest,
    NotFound,
    RaceResult,
    race,
    sleep,
    step,
)
from flowfabric.engine import State
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import children_of


async def test_key_holds_as_long_as_its_execution_is_kept(app: App, kit: Kit) -> None:
    @app.task
    async def refund(order: str) -> str:
        return order

    keyed = refund.options(key="refund-17")
    first = await kit.start(keyed, "o-17")
    await kit.advance("29d")
    assert await kit.start(keyed, "o-17") == first
    await kit.advance("2d")
    assert await kit.start(keyed, "o-17") != first


async def test_key_window_outlasts_the_execution(app: App, kit: Kit) -> None:
    @app.task(retention="1h")
    async def refund() -> None: ...

    keyed = refund.options(key="refund-17", key_window="40d")
    first = await kit.start(keyed)
    await kit.advance("39d")
    assert await keyed.submit() == first
    with pytest.raises(NotFound, match="purged"):
        _ = await refund.by_key("refund-17")
    await kit.advance("2d")
    assert await keyed.submit() != first


async def test_key_window_of_zero_stores_no_key(app: App, kit: Kit) -> None:
    @app.task
    async def refund() -> None: ...

    keyed = refund.options(key="refund-17", key_window=0)
    assert await keyed.submit() != await keyed.submit()


async def test_key_window_without_a_key_is_refused(app: App) -> None:
    @app.task
    async def refund() -> None: ...

    with pytest.raises(InvalidRequest, match="give a key"):
        refund.options(key_window="1h")
    with pytest.raises(InvalidRequest, match="key"):
        refund.options(key="")


async def test_by_key_returns_the_handle_of_the_execution_that_holds_the_key(app: App, kit: Kit) -> None:
    @app.task
    async def refund(order: str) -> str:
        return order

    @app.task(name="refund", version=2)
    async def refund_2(order: str) -> str:
        return order

    @app.task
    async def other() -> None: ...

    handle = await kit.start(refund.options(key="refund-17"), "o-17")
    assert await refund.by_key("refund-17") == handle
    assert await refund_2.by_key("refund-17") == handle
    assert await (await refund.by_key("refund-17")) == "o-17"
    with pytest.raises(NotFound, match="not of 'other'"):
        _ = await other.by_key("refund-17")
    with pytest.raises(NotFound, match="refund-18"):
        _ = await refund.by_key("refund-18")


async def test_by_key_inside_a_task_is_recorded(app: App, kit: Kit) -> None:
    seen: list[Handle[None]] = []

    @app.task
    async def refund() -> None: ...

    @app.task
    async def parent() -> None:
        seen.append(await refund.by_key("refund-17"))
        await sleep("40d")

    first = await kit.start(refund.options(key="refund-17", key_window="1d"))
    handle = await kit.start(parent)
    await kit.finish(handle)
    assert seen == [first, first]
    assert await kit.steps(handle) == ["by_key:refund", "sleep"]


async def test_key_of_a_child_is_scoped_to_its_parent(app: App, kit: Kit) -> None:
    @app.task
    async def refund(order: str) -> str:
        return order

    @app.task
    async def parent(order: str) -> str:
        return await refund.options(key="same").run(order)

    assert await kit.run(parent, "o-17") == "o-17"
    assert await kit.run(parent, "o-18") == "o-18"
    with pytest.raises(NotFound):
        _ = await refund.by_key("same")


async def test_window_of_a_childs_key_is_refused(app: App, kit: Kit) -> None:
    seen: list[str] = []

    @app.task
    async def refund() -> None: ...

    @app.task
    async def parent() -> None:
        try:
            _ = await refund.options(key="same", key_window="1h").submit()
        except InvalidRequest as error:
            seen.append(str(error))

    await kit.run(parent)
    assert "scoped to its parent" in seen[0]


@pytest.mark.parametrize("verb", ["submit", "run"])
async def test_key_of_a_detached_child_is_scoped_to_the_namespace(app: App, kit: Kit, verb: str) -> None:
    @app.task
    async def refund(order: str) -> str:
        return order

    @app.task
    async def parent(order: str) -> str:
        child = refund.options(key="refund-17", detached=True)
        return await child.run(order) if verb == "run" else await (await child.submit(order))

    first, second = await kit.start(parent, "o-17"), await kit.start(parent, "o-17")
    assert [await kit.finish(first), await kit.finish(second)] == ["o-17", "o-17"]
    assert await children_of(kit, "refund") == [State.COMPLETED]
    assert await (await refund.by_key("refund-17")) == "o-17"
    await first.replay()
    assert await kit.finish(first) == "o-17"
    assert await children_of(kit, "refund") == [State.COMPLETED]
    other_order = await kit.start(parent, "o-18")
    with pytest.raises(ExecutionFailed, match="another body"):
        await kit.finish(other_order)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("verb", ["submit", "run"])
async def test_crash_around_the_submit_of_a_detached_child_with_a_key_leaves_one_child(
    app: App, kit: Kit, moment: str, verb: str
) -> None:
    @app.task
    async def refund() -> str:
        return "done"

    @app.task
    async def parent() -> str:
        child = refund.options(key="refund-17", detached=True)
        return await child.run() if verb == "run" else await (await child.submit())

    path = f"{verb}:refund[refund-17]"
    (kit.crash_before if moment == "before" else kit.crash_after)(path)
    handle = await kit.start(parent)
    assert await kit.finish(handle) == "done"
    assert await children_of(kit, "refund") == [State.COMPLETED]


async def test_lost_race_does_not_cancel_the_execution_of_another_submitter(app: App, kit: Kit) -> None:
    @app.task
    async def slow() -> str:
        await sleep("2h")
        return "slow"

    @app.task
    async def parent() -> RaceResult[str]:
        return await race(slow.options(key="shared", detached=True).run(), step(str, "quick"))

    theirs = await kit.start(slow.options(key="shared"))
    assert (await kit.run(parent)).value == "quick"
    assert await kit.finish(theirs) == "slow"
    await kit.advance("40d")
    assert (await kit.run(parent)).value == "quick"
    own = await slow.by_key("shared")
    with pytest.raises(ExecutionCancelled):
        await own


def test_plain_code_finds_an_execution_by_its_key() -> None:
    app = App(":memory:")

    @app.task
    async def refund() -> str:
        return "done"

    first = refund.sync.options(key="refund-17").submit()
    assert refund.sync.by_key("refund-17").id == first.id
    app.sync.close()
