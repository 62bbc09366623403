"""Python's warning about a forgotten `await` names the method that the user called."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

import pytest

from flowfabric import App, Signal

app = App(":memory:")
paid = Signal("paid", int)


@app.task
def job() -> None: ...


handle = job.handle(uuid4())
flow = app.flow("etl")
flow.add(job)
CALLS: dict[str, Callable[[], Coroutine[None, None, Any]]] = {
    "Task.submit": job.submit,
    "Task.run": job.run,
    "Task.by_key": lambda: job.by_key("order-17"),
    "App.submit_many": lambda: app.submit_many([job.call()]),
    "App.signal": lambda: app.signal("token", "paid"),
    "App.approve or App.reject": lambda: app.approve("token"),
    "App.close": app.close,
    "Handle.result": handle.result,
    "Handle.outcome": handle.outcome,
    "Handle.signal": lambda: handle.signal(paid, 1),
    "Handle.cancel": handle.cancel,
    "Handle.status": handle.status,
    "Handle.replay": handle.replay,
    "Handle.unhold": handle.unhold,
    "Handle.history": handle.history,
    "Handle.explain": handle.explain,
    "Flow.submit": flow.submit,
}


@pytest.mark.parametrize("name", CALLS)
def test_forgotten_await_names_the_method(name: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _ = CALLS[name]()
        del _
        gc.collect()
    assert f"coroutine '{name}' was never awaited" in [str(warning.message) for warning in caught]
