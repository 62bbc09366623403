"""Task names, code that changes while executions sleep, and which worker runs which version."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flowfabric import App, Diverged, InvalidRequest, changed, gather, sleep, step
from flowfabric.engine import Engine, State
from flowfabric.testing import Kit
from tests.end_to_end.outcomes.conftest import KitFactory


async def test_kind_is_the_function_name_unless_a_name_is_set(app: App, kit: Kit) -> None:
    @app.task
    async def refund() -> None: ...

    @app.task(name="pay-back")
    async def other() -> None: ...

    kinds = [(await (await kit.start(task)).status()).kind for task in (refund, other)]

    assert kinds == ["refund", "pay-back"]


async def test_duplicate_task_name_is_rejected_with_both_locations(app: App) -> None:
    @app.task(name="refund")
    async def one() -> None: ...

    with pytest.raises(InvalidRequest) as error:

        @app.task(name="refund")
        async def two() -> None: ...

    assert str(error.value).count(f"{__file__}:") == 2


async def test_kind_without_a_matching_worker_stays_waiting(real_app: App, real_engine: Engine) -> None:
    other = App("never-opened.db")
    other.engines.adopt(real_engine)

    @other.task
    async def refund() -> None: ...

    @real_app.task
    async def hello() -> str:
        return "hello"

    handle = await refund.submit()
    async with real_app.worker():
        assert await (await hello.submit()).result(timeout=20) == "hello"
        assert (await handle.status()).state is State.WAITING


async def test_modules_named_by_an_app_are_imported_when_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_app.py").write_text("from flowfabric import App\napp = App('x.db', imports=['shop_tasks'])\n")
    (tmp_path / "shop_tasks.py").write_text(
        "from shop_app import app\n@app.task\nasync def greet(name: str) -> str:\n    return f'hello {name}'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import shop_app  # type: ignore[import-not-found]

    try:
        async with Kit(shop_app.app) as kit:
            assert await kit.run(shop_app.app.tasks["greet"], "world") == "hello world"
    finally:
        for name in ("shop_app", "shop_tasks"):
            sys.modules.pop(name, None)


async def test_submit_uses_the_newest_version(app: App, kit: Kit) -> None:
    @app.task(name="refund")
    async def first() -> int:
        return 1

    @app.task(name="refund", version=2)
    async def second() -> int:
        return 2

    handle = await kit.start(first)

    assert (await handle.status()).kind == "refund@2"
    assert await handle == 2
    assert await kit.run(second) == 2


async def test_child_uses_the_newest_version_and_keeps_its_path(app: App, kit: Kit) -> None:
    @app.task(name="refund")
    async def first() -> int:
        return 1

    @app.task(name="refund", version=2)
    async def second() -> int:
        return 2

    @app.task
    async def parent() -> int:
        return await first.run()

    handle = await kit.start(parent)

    assert await kit.finish(handle) == 2
    assert await kit.steps(handle) == ["run:refund"]


async def test_sleeping_execution_of_an_old_version_waits_for_a_matching_worker(new_kit: KitFactory) -> None:
    old, new, both = App("x.db"), App("x.db"), App("x.db")

    def first(app: App) -> None:
        @app.task(name="refund")
        async def version_1() -> str:
            await sleep("1h")
            return "the old way"

    def second(app: App) -> None:
        @app.task(name="refund", version=2)
        async def version_2() -> str:
            await step(str)
            return "the new way"

    first(old)
    second(new)
    first(both)
    second(both)
    async with new_kit(old) as kit:
        handle = await kit.start(old.tasks["refund"])
    async with new_kit(new) as kit:
        await kit.advance("2h")
        assert (await new.handle(handle.id).status()).state is State.WAITING
        assert await kit.run(new.tasks["refund@2"]) == "the new way"
    async with new_kit(both) as kit:
        assert await kit.finish(both.handle(handle.id)) == "the old way"


async def test_changed_is_true_only_for_executions_that_have_not_reached_it(new_kit: KitFactory) -> None:
    old, new = App("x.db"), App("x.db")
    audited: list[str] = []

    def audit(who: str) -> None:
        audited.append(who)

    @old.task(name="refund")
    async def before(who: str, delay: str) -> str:
        await sleep(delay)
        await step(str.upper, who)
        await sleep("1h")
        return who

    @new.task(name="refund")
    async def after(who: str, delay: str) -> str:
        await sleep(delay)
        if changed("audit"):
            await step(audit, who)
        await step(str.upper, who)
        await sleep("1h")
        return who

    async with new_kit(old) as kit:
        passed, not_yet = await kit.start(before, "passed", "1m"), await kit.start(before, "not yet", "1h")
        await kit.advance("2m")
    async with new_kit(new) as kit:
        assert await kit.finish(after.handle(passed.id)) == "passed"
        assert await kit.finish(after.handle(not_yet.id)) == "not yet"
        assert await kit.run(after, "new", "1m") == "new"
        assert "changed[audit]" in await kit.steps(after.handle(not_yet.id))
    assert audited == ["not yet", "new"]


async def test_changed_returns_the_same_value_under_forced_replay(app: App) -> None:
    @app.task
    async def task() -> list[bool]:
        async def branch() -> bool:
            is_changed = changed("inner")
            await sleep("1h")
            return is_changed

        first = changed("outer")
        return [first, *await gather(branch(), branch())]

    async with Kit(app, replay="every record") as kit:
        assert await kit.run(task) == [True, True, True]


async def test_unguarded_code_change_is_held_and_continues_after_a_rollback(new_kit: KitFactory) -> None:
    old, new = App("x.db"), App("x.db")

    @old.task(name="refund")
    async def before() -> str:
        await sleep("1h")
        return "old result"

    @new.task(name="refund")
    async def after() -> str:
        await step(str, "audit")
        await sleep("1h")
        return "new result"

    async with new_kit(old) as kit:
        handle = await kit.start(before)
    async with new_kit(new) as kit:
        with pytest.raises(Diverged, match=r"> 0 sleep +str"):
            await kit.finish(after.handle(handle.id))
        status = await after.handle(handle.id).status()
        assert (status.hold_reason, status.attempt_index) == ("diverged", 0)
        await after.handle(handle.id).unhold()
    async with new_kit(old) as kit:
        assert await kit.finish(before.handle(handle.id)) == "old result"
