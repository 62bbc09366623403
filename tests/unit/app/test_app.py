"""Tests for registering tasks in an app, their kinds, and the app's settings."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowfabric import App, InvalidRequest, Signal, Task
from flowfabric.app.loader import import_all, load_app


def test_task_is_named_after_its_function() -> None:
    app = App()

    @app.task
    async def refund(order: str) -> str:
        return order

    @app.task(name="pay-back")
    def other() -> None: ...

    assert list(app.tasks) == ["refund", "pay-back"]
    assert refund.is_async
    assert not other.is_async


@pytest.mark.parametrize("store", ["", "  "])
def test_app_with_an_empty_store_is_refused(store: str) -> None:
    with pytest.raises(InvalidRequest, match="store is empty; give a path or a URL, or leave it out"):
        App(store)


def test_kind_has_a_number_from_version_2() -> None:
    app = App()

    @app.task(name="refund")
    def first() -> None: ...

    @app.task(name="refund", version=2)
    def second() -> None: ...

    assert list(app.tasks) == ["refund", "refund@2"]
    assert first.newest is not first
    assert first.newest.name == "refund@2"
    assert first.submission((), {}).kind == "refund@2"


def test_duplicate_kind_error_names_both_places() -> None:
    app = App()

    @app.task
    def job() -> None: ...

    line = job.fn.__code__.co_firstlineno
    with pytest.raises(InvalidRequest, match=rf"test_app.py:{line} and .*test_app.py:\d+") as refused:

        @app.task(name="job")
        def other() -> None: ...

    assert refused.value.code == "kind_taken"


def test_generators_and_methods_are_rejected_as_tasks() -> None:
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
def test_decorator_rejects_invalid_settings(settings: dict[str, Any]) -> None:
    app = App()
    with pytest.raises(InvalidRequest):

        @app.task(**settings)
        def job() -> None: ...

    assert not app.tasks


def test_calling_a_task_is_refused_with_what_to_use_instead() -> None:
    app = App()

    @app.task
    def job() -> int:
        return 1

    with pytest.raises(InvalidRequest) as refused:
        job()  # type: ignore[operator]
    assert refused.value.message == (
        "`job` is a task: use await job.run(…), job.submit(…), or job.fn(…) for the plain function"
    )
    assert job.fn() == 1


def test_run_of_anything_but_a_task_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"app\.run takes a task and its arguments"):
        App().run(print)  # type: ignore[call-overload]


def test_a_task_keeps_the_name_the_docstring_and_the_signature_of_its_function() -> None:
    app = App()

    @app.task(name="renamed")
    async def refund(order: str, *, fast: bool = False) -> str:
        """Pay the money back."""
        return order

    assert (refund.__name__, refund.__doc__, refund.__module__) == ("refund", "Pay the money back.", __name__)
    assert refund.__qualname__ == refund.fn.__qualname__
    assert inspect.signature(refund) == inspect.signature(refund.fn)  # type: ignore[arg-type]
    assert inspect.unwrap(refund) is refund.fn  # type: ignore[arg-type]
    assert inspect.signature(refund.options(priority=1)) == inspect.signature(refund.fn)  # type: ignore[arg-type]
    assert Task.__doc__ is not None and Task.__doc__.startswith("A durable function.")


def test_redefinition_of_the_same_task_replaces_it() -> None:
    """Run the same definition twice, as a cell of a notebook or a reload does."""
    app = App()

    def define(number: int) -> Task[[], int]:
        @app.task
        def job() -> int:
            return number

        return job

    former = define(1)
    latest = define(2)
    assert app.tasks["job"] is latest and latest.fn() == 2
    assert latest.newest is latest and former.newest is former
    assert app.registry.newest("job") is latest


def test_store_is_the_argument_else_the_environment_variable_else_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOWFABRIC_STORE", raising=False)
    assert App().store == str(Path("flowfabric.db").absolute())
    monkeypatch.setenv("FLOWFABRIC_STORE", "postgresql://db/shop")
    assert App().store == "postgresql://db/shop"
    assert App("mine.db").store == str(Path("mine.db").absolute())


def test_base_of_links_must_be_a_url() -> None:
    with pytest.raises(InvalidRequest, match="base of links"):
        App(url="shop.example")


def test_check_resolves_every_annotation() -> None:
    app = App()

    @app.task
    async def job(order: Unknown) -> str:  # type: ignore[name-defined] # noqa: F821
        return "x"

    with pytest.raises(InvalidRequest, match="Unknown"):
        app.check()


def test_check_covers_results_and_signals() -> None:
    class NotSerializable:
        def __init__(self, connection: object) -> None: ...

    app = App()

    @app.task(signals=[Signal("go", NotSerializable)])
    async def job() -> None: ...

    with pytest.raises(InvalidRequest, match="signal 'go'"):
        app.check()


def test_annotations_may_name_local_classes() -> None:
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


def test_run_during_import_by_a_worker_suggests_a_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unguarded.py").write_text("from flowfabric import App\napp = App()\napp.run()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidRequest, match="guard it with `if __name__ == '__main__'`"):
        import_all(["unguarded"])


async def test_run_on_an_event_loop_suggests_a_worker() -> None:
    app = App()

    @app.task
    async def job() -> None: ...

    with pytest.raises(InvalidRequest, match=r"async with app\.worker"):
        app.run(job)
    with pytest.raises(InvalidRequest, match=r"async with app\.worker"):
        app.run()


def test_load_app_finds_an_app_by_module_and_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shopping.py").write_text("from flowfabric import App\nmine = App('a.db')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert load_app("shopping:mine").store == str(tmp_path / "a.db")
    assert load_app("shopping") is load_app("shopping:mine")
    with pytest.raises(InvalidRequest, match="no App named 'other'"):
        load_app("shopping:other")


def test_sync_verb_on_a_running_loop_suggests_await() -> None:
    app = App()

    @app.task
    async def job() -> None: ...

    async def call_sync_verb() -> None:
        job.sync.submit()

    with pytest.raises(InvalidRequest, match="await the async method"):
        asyncio.run(call_sync_verb())
