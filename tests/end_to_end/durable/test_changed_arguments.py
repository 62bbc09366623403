"""A step that changes its arguments is reported in production, once per function."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import pytest

from flowfabric import App, step
from flowfabric.runtime.calls import step as step_calls
from flowfabric.values import inputs
from flowfabric.values.inputs import ChangedArguments
from tests.stores import TestStore, opened


@dataclass
class Basket:
    items: list[str] = field(default_factory=list)


async def add_item(basket: Basket) -> int:
    basket.items.append("apple")
    return len(basket.items)


def add_item_in_thread(basket: Basket) -> int:
    basket.items.append("apple")
    return len(basket.items)


async def test_step_that_changes_its_arguments_warns_once_with_its_path(
    store: TestStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_calls, "_changed", ChangedArguments())
    async with opened(store) as engine:
        app = App("never-opened.db")
        app.engines.adopt(engine)

        @app.task
        async def shop() -> int:
            basket = Basket()
            for _ in range(3):
                await step(add_item, basket)
                await step(add_item_in_thread, basket)
                await step(len, [basket])
            return len(basket.items)

        async with app.worker():
            handle = await shop.submit()
            assert await handle == 6
            assert await shop.run() == 6
    warnings = [record.getMessage() for record in caplog.records if "changed its arguments" in record.getMessage()]
    assert {record.levelno for record in caplog.records if "changed its" in record.getMessage()} == {logging.WARNING}
    assert warnings == [
        f"shop {handle.id}: {path} changed its arguments, which a later run would not see; return the new value instead"
        for path in ("add_item", "add_item_in_thread")
    ]


def test_calls_are_compared_at_powers_of_two_only_if_an_argument_can_change(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Any] = []

    def digest(args: Any, kwargs: Any) -> str:
        compared.append(args)
        return "before"

    monkeypatch.setattr(inputs, "digest_arguments", digest)
    changed = ChangedArguments()
    for number in range(100):
        assert not changed.found(("task", "step"), "before", (["data", number],), {})
        assert not changed.found(("task", "plain"), "before", ("text", number, None), {"at": 1.5})
        assert not changed.found(("task", "off"), None, ([],), {})
    assert [args[0][1] + 1 for args in compared] == [1, 2, 4, 8, 16, 32, 64]


def test_function_that_was_found_is_not_compared_again() -> None:
    changed = ChangedArguments()
    assert changed.found(("task", "step"), "another digest", ([],), {})
    assert not any(changed.found(("task", "step"), "another digest", ([],), {}) for _ in range(20))
    assert changed.found(("task", "other"), "another digest", ([],), {})
