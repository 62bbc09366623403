"""Test that the fault tests cover every operation."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from flowfabric.engine import Engine
from flowfabric.testing import VirtualClock
from tests.faults.fault_runner import Call, opened_bench
from tests.faults.flow_operations import EVERY_OPERATION
from tests.stores import SqliteTestStore

GROUPS = (
    "executions", "leases", "waitpoints", "signals", "flows", "keys", "operator", "lanes", "workers", "events",
)  # fmt: skip
READS = {
    "executions": "children count describe find history list peek result steps wait wait_until",
    "leases": "expired held journal peek read_waits watch watch_held",
    "waitpoints": "describe list list_suspended tokens",
    "signals": "list",
    "flows": "describe inputs list members wait",
    "keys": "list",
    "operator": "explain",
    "lanes": "list",
    "workers": "list",
    "events": "cursor status subscribers",
}
ELSEWHERE = {
    "executions.submit_and_wait": "is made of submit and wait_until",
    "executions.submit_in_transaction": "is tested in tests/conformance/test_submit_in_transaction*.py",
    "executions.submit_in_transaction_sync": "likewise",
    "events.subscribe": "is made of the steps of a subscriber",
    "leases.report_locks_to": "calls a listener in this process",
}


async def test_every_writing_call_and_duty_is_in_the_fault_list(tmp_path: Path, clock: VirtualClock) -> None:
    seen: set[str] = set()
    async with opened_bench(SqliteTestStore(tmp_path), clock) as bench:
        facade = {f"{group}.{name}" for group in GROUPS for name in public(type(getattr(bench.engine, group)))}
        duties = {duty.name for duty in bench.engine.reconcilers._duties}
        for operation in EVERY_OPERATION.values():
            await bench.whole(operation, lambda call: watched(call, bench.engine, seen))
    reads = {f"{group}.{name}" for group, names in READS.items() for name in names.split()}
    assert facade - seen - reads - ELSEWHERE.keys() == set()
    assert duties - seen == set()
    assert (reads | ELSEWHERE.keys()) - facade == set(), "these names no longer exist"


async def test_tasks_of_other_tests_are_not_waited_for(tmp_path: Path, clock: VirtualClock) -> None:
    endless = asyncio.create_task(asyncio.Event().wait())
    async with opened_bench(SqliteTestStore(tmp_path), clock) as bench, asyncio.timeout(30):
        await bench.whole(EVERY_OPERATION["submit"], lambda call: call())
    assert endless.cancel()


async def watched(call: Call, engine: Engine, seen: set[str]) -> BaseException | None:
    """Return the result of a call and record its name."""
    with pytest.MonkeyPatch.context() as patch:
        watch(patch, engine, seen)
        return await call()


def public(kind: type) -> list[str]:
    return [name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")]


def watch(monkeypatch: pytest.MonkeyPatch, engine: Engine, seen: set[str]) -> None:
    """Record every call of the engine and every tick of a duty by name."""

    def noting(call: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(call)
        def noted(*arguments: Any, **options: Any) -> Any:
            seen.add(name)
            return call(*arguments, **options)

        return noted

    for group in GROUPS:
        kind = type(getattr(engine, group))
        for name in public(kind):
            monkeypatch.setattr(kind, name, noting(getattr(kind, name), f"{group}.{name}"))
    for duty in engine.reconcilers._duties:
        monkeypatch.setattr(duty, "tick", noting(duty.tick, duty.name))
