"""Whichever statement of an operation fails, all of the operation happens or nothing, and the engine stays usable."""

from __future__ import annotations

import pytest

from flowfabric.testing import VirtualClock
from tests.faults.bench import Call, Fault, check, opened_bench
from tests.faults.fuses import FAILURES, Fuse, fit_fuse
from tests.faults.operations import OPERATIONS
from tests.stores import TestStore

RETRIED = ("serialization", "deadlock")


async def test_all_or_nothing_at_every_statement_of_every_operation(
    store: TestStore, clock: VirtualClock, run_all: bool
) -> None:
    points = 0
    async with opened_bench(store, clock) as bench:
        fuse = fit_fuse(bench.engine)
        for name, operation in OPERATIONS.items():
            whole = await bench.whole(operation, blowing(fuse, 0))
            statements = list(fuse.statements)
            for at in range(1, len(statements) + 1):
                for kind, after in ways(at, run_all):
                    shots = await bench.disturbed(operation, blowing(fuse, at, store.name, kind, after=after))
                    point = f"{name}: {kind} {'after' if after else 'before'} {at}: {statements[at - 1][:60]}"
                    assert fuse.blown, f"{point}: was not reached"
                    check(point, whole, shots)
                    points += 1
    assert points > 300


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_a_conflict_at_any_statement_is_retried_and_never_seen(
    store: TestStore, clock: VirtualClock, run_all: bool
) -> None:
    async with opened_bench(store, clock) as bench:
        fuse = fit_fuse(bench.engine)
        for turn, (name, operation) in enumerate(OPERATIONS.items()):
            whole = await bench.whole(operation, blowing(fuse, 0))
            number = len(fuse.statements)
            for at in range(1, number + 1) if run_all else [1 + turn % number]:
                kind = RETRIED[at % 2]
                shots = await bench.disturbed(operation, blowing(fuse, at, store.name, kind))
                assert shots.error is None, f"{name}: {kind} at {at} was seen as {shots.error}"
                assert shots.after == whole.after, f"{name}: {kind} at {at}"


def blowing(fuse: Fuse, at: int, backend: str = "sqlite", kind: str = "outage", *, after: bool = False) -> Fault:
    """The fault of a driver that fails at this statement of the call."""

    async def fault(call: Call) -> BaseException | None:
        fuse.arm(at, FAILURES[backend][kind], after=after)
        try:
            return await call()
        finally:
            fuse.disarm()

    return fault


def ways(at: int, run_all: bool) -> list[tuple[str, bool]]:
    """How a statement fails: with everything, both kinds before and after; else each kind at every other one."""
    if run_all:
        return [(kind, after) for kind in ("outage", "refusal") for after in (False, True)]
    first, second = ("outage", "refusal") if at % 2 else ("refusal", "outage")
    return [(first, False), (second, True)]
