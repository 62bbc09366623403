"""What an app takes as a task, under which kind, and where it keeps things."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowfabric import App, InvalidRequest, Signal
from flowfabric.sdk.importing import import_all, load_app


def test_a_task_is_known_by_the_name_of_its_function() -> None:
    app = App()

    @app.task
    async def refund(order: str) -> str:
        return order

    @app.task(name="pay-back")
    def other() -> None: ...

    assert list(app.tasks) == ["refund", "pay-back"]
    assert refund.is_async
    assert not other.is_async


def test_from_the_second_version_on_the_kind_has_a_number() -> None:
    app = App()

    @app.task(name="refund")
    def first() -> None: ...

    @app.task(name="refund", version=2)
    def second() -> None: ...

    assert list(app.tasks) == ["refund", "refund@2"]
    assert first.newest is not first
    assert first.newest.name == "refund@2"
    assert first.submission((), {}).kind == "refund@2"


def test_a_kind_that_is_taken_is_refused_with_both_places() -> None:
    app = App()

    @app.task
    def job() -> None: ...

    line = job.fn.__code__.co_firstlineno
    with pytest.raises(InvalidRequest, match=rf"test_app.py:{line} and .*test_app.py:\d+") as refused:

        @app.task(name="job")
        def other() -> None: ...

    assert refused.value.code == "kind_taken"


def test_generators_and_methods_are_no_tasks() -> None:
    app = App()

    def numbers() -> Iterator[int]:
        yield 1

    async def async_numbers() -> AsyncIterator[int]:
        yield 1

    class Shop:
        def sell(self: Any) -> None: ...

        @staticmethod
        def close() -> None: ...

    def free(self) -> None:  # type: ignore[no-untyped-def]
        ...

    for fn in (numbers, async_numbers, Shop.sell, Shop().sell, Shop.close, free, len, Shop):
        with pytest.raises(InvalidRequest, match="cannot be a task"):
            app.task(fn)
    assert not app.tasks


@pytest.mark.parametrize(
    "settings",
    [
        {"retries": -1},
        {"timeout": "soon"},
        {"lane": ""},
        {"requires": "gpu"},
        {"version": 0},
        {"raises": ["OSError"]},
        {"backoff": 3},
        {"name": "refund@2"},
    ],
)
def test_wrong_settings_are_refused_where_they_are_written(settings: dict[str, Any]) -> None:
    app = App()
    with pytest.raises(InvalidRequest):

        @app.task(**settings)
        def job() -> None: ...

    assert not app.tasks


def test_a_task_is_not_callable() -> None:
    app = App()

    @app.task
    def job() -> int:
        return 1

    assert not callable(job)
    assert job.fn() == 1


def test_the_store_is_what_is_given_else_what_the_environment_says_else_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOWFABRIC_STORE", raising=False)
    assert App().store == "flowfabric.db"
    monkeypatch.setenv("FLOWFABRIC_STORE", "postgresql://db/shop")
    assert App().store == "postgresql://db/shop"
    assert App("mine.db").store == "mine.db"


def test_the_base_of_links_must_be_an_address() -> None:
    with pytest.raises(InvalidRequest, match="base of links"):
        App(url="shop.example")


def test_check_resolves_every_annotation() -> None:
    app = App()

    @app.task
    async def job(order: Unknown) -> str:  # type: ignore[name-defined] # noqa: F821
        return "x"

    with pytest.raises(InvalidRequest, match="Unknown"):
        app.check()


def test_check_looks_at_results_and_signals_too() -> None:
    class NoData:
        def __init__(self, connection: object) -> None: ...

    app = App()

    @app.task(signals=[Signal("go", NoData)])
    async def job() -> None: ...

    with pytest.raises(InvalidRequest, match="signal 'go'"):
        app.check()


def test_classes_of_the_decorating_function_are_found() -> None:
    from dataclasses import dataclass

    app = App()

    @dataclass
    class Order:
        id: str

    @app.task
    async def job(order: Order) -> Order:
        return order

    app.check()
    assert job.submission((Order("a"),), {}).payload == b'{"order":{"id":"a"}}'


def test_run_while_a_worker_imports_says_to_guard_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unguarded.py").write_text("from flowfabric import App\napp = App()\napp.run()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidRequest, match="guard it with `if __name__ == '__main__'`"):
        import_all(["unguarded"])


async def test_run_within_a_loop_says_to_use_a_worker() -> None:
    app = App()

    @app.task
    async def job() -> None: ...

    with pytest.raises(InvalidRequest, match=r"async with app\.worker"):
        app.run(job)
    with pytest.raises(InvalidRequest, match=r"async with app\.worker"):
        app.run()


def test_an_app_is_found_by_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shopping.py").write_text("from flowfabric import App\nmine = App('a.db')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert load_app("shopping:mine").store == "a.db"
    assert load_app("shopping") is load_app("shopping:mine")
    with pytest.raises(InvalidRequest, match="no App named 'other'"):
        load_app("shopping:other")


def test_a_sync_verb_on_a_running_loop_says_to_await() -> None:
    app = App()

    @app.task
    async def job() -> None: ...

    async def blocked() -> None:
        job.sync.submit()

    with pytest.raises(InvalidRequest, match="await the async verb"):
        asyncio.run(blocked())
