"""If a statement fails, its operation takes effect completely or not at all, and the engine stays usable."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, islice

import pytest

from flowfabric.testing import VirtualClock
from tests.faults.failing_driver import FAILURES, Fuse, fit_fuse
from tests.faults.fault_runner import Call, Fault, check, opened_bench
from tests.faults.flow_operations import EVERY_OPERATION, FLOWS
from tests.sizes import Size
from tests.stores import TestStore

RETRIED = ("serialization", "deadlock")
# The ways in which a statement fails: in an outage or alone, and before or after the database executes it. In a short
# run every eighth statement of an operation fails in one of these ways. In a full run every statement fails in each
# way. There are many statements of flows, so each of these fails in only one way.
WAYS = [(kind, after) for kind in ("outage", "refusal") for after in (False, True)]


async def test_all_or_nothing_at_every_statement_of_every_operation(
    store: TestStore, clock: VirtualClock, scoreboard: Callable[[str], None], size: Size
) -> None:
    points, (most, least) = 0, size.of((1, 70), (len(WAYS), 400), (len(WAYS), 400))
    async with opened_bench(store, clock) as bench:
        fuse = fit_fuse(bench.engine)
        for turn, (name, operation) in enumerate(EVERY_OPERATION.items()):
            whole = await bench.whole(operation, blowing(fuse, 0))
            statements, end = list(fuse.statements), len(fuse.statements) + 1
            for at in range(*size.of((1 + turn % 8, end, 8), (1, end), (1, end))):
                ways = size.of(1, 1, most) if name in FLOWS else most
                for kind, after in islice(cycle(WAYS), turn + at, turn + at + ways):
                    shots = await bench.disturbed(operation, blowing(fuse, at, store.name, kind, after=after))
                    point = f"{name}: {kind} {'after' if after else 'before'} {at}: {statements[at - 1][:60]}"
                    assert fuse.blown, f"{point}: was not reached"
                    check(point, whole, shots)
                    points += 1
    scoreboard(
        f"one statement failed {points} times (at least {least}); each operation took effect completely or not at all"
    )
    assert points >= least


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_conflict_at_any_statement_is_retried_invisibly(
    store: TestStore, clock: VirtualClock, size: Size
) -> None:
    async with opened_bench(store, clock) as bench:
        fuse = fit_fuse(bench.engine)
        for turn, (name, operation) in enumerate(EVERY_OPERATION.items()):
            whole = await bench.whole(operation, blowing(fuse, 0))
            number = len(fuse.statements)
            every = list(range(1, number + 1))
            for at in size.of([1 + turn % number], every, every):
                kind = RETRIED[at % 2]
                shots = await bench.disturbed(operation, blowing(fuse, at, store.name, kind))
                assert shots.error is None, f"{name}: {kind} at {at} was seen as {shots.error}"
                assert shots.after == whole.after, f"{name}: {kind} at {at}"


def blowing(fuse: Fuse, at: int, backend: str = "sqlite", kind: str = "outage", *, after: bool = False) -> Fault:
    """Return the fault of a driver that fails at this statement of the call."""

    async def fault(call: Call) -> BaseException | None:
        fuse.arm(at, FAILURES[backend][kind], after=after)
        try:
            return await call()
        finally:
            fuse.disarm()

    return fault
