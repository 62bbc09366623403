"""A wait operation repeated after a lost reply returns the first result and has one effect."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric.engine import (
    Accepted,
    AlreadySatisfied,
    AlreadySeeded,
    DuplicateSignal,
    Engine,
    OpenWaitpoint,
    Satisfied,
    Suspended,
    Unavailable,
    Unchanged,
    WaitpointClosed,
)
from flowfabric.testing import VirtualClock
from tests.faults.failing_driver import FAILURES, Fuse, fit_fuse
from tests.faults.fault_runner import Bench, opened_bench
from tests.faults.operations import Operation
from tests.faults.store_dump import Camera, wipe
from tests.faults.wait_operations import WAITS
from tests.stores import TestStore, opened

# The result type of each operation when it is repeated. A repeated call must return the ids of the first call.
REPEATED = {
    "create_waitpoint": OpenWaitpoint,
    "suspend": Suspended,
    "suspend with a key": Suspended,
    "suspend, already satisfied": Satisfied,
    "suspend, already satisfied, without a key": Satisfied,
    "suspend, satisfied by a declared signal": Satisfied,
    "deliver_signal, buffered": DuplicateSignal,
    "deliver_signal, appended": DuplicateSignal,
    "deliver_signal, satisfying": DuplicateSignal,
    "approve": DuplicateSignal,
    "send": DuplicateSignal,
    "operator resume": AlreadySatisfied,
    "close_waitpoint": WaitpointClosed,
    "seed": AlreadySeeded,
    "rotate": Unchanged,
    "rotate to a drawn key": Unchanged,
}


@pytest.mark.parametrize("name", REPEATED)
async def test_repeat_after_a_lost_reply_returns_the_stored_result(
    store: TestStore, clock: VirtualClock, name: str
) -> None:
    operation = WAITS[name]
    # The engine does not repeat the call itself.
    async with opened(store, clock, retry_for=0) as engine, opened_bench(store, clock, engine) as bench:
        fuse = fit_fuse(engine)
        commit = await place_of_commit(bench, fuse, operation)
        await wipe(bench.camera)
        _, subject = await bench._arranged(operation)
        fuse.arm(commit, FAILURES[store.name]["outage"], after=True)
        with pytest.raises(Unavailable):
            await operation.act(bench.disturbed_engine, subject)
        fuse.disarm()
        results = [await operation.act(bench.disturbed_engine, subject) for _ in range(3)]
        assert [type(result) for result in results] == [REPEATED[name]] * 3
        assert results[0] == results[1] == results[2]
        await assert_result_matches_store(bench.engine, bench.camera, results[0])


async def place_of_commit(bench: Bench, fuse: Fuse, operation: Operation) -> int:
    """Return the position of the statement that commits.

    In an operation without a transaction, this is the statement that writes.
    """
    _, subject = await bench._arranged(operation)
    fuse.arm(0)
    await operation.act(bench.disturbed_engine, subject)
    fuse.disarm()
    commits = [text == "COMMIT" or text.startswith("WITH held") for text in fuse.statements]
    return commits.index(True) + 1


async def assert_result_matches_store(engine: Engine, camera: Camera, result: Any) -> None:
    """Assert that the store has only one row for each id in the result, and that the tokens in the result work."""
    if isinstance(result, Suspended | Satisfied):
        [row] = await camera.rows("SELECT id FROM ff.suspension")
        assert str(row["id"]) == str(result.suspension_id)
    if isinstance(result, DuplicateSignal):
        [row] = await camera.rows("SELECT id FROM ff.signal")
        assert str(row["id"]) == str(result.signal_id)
    created = [result] if isinstance(result, OpenWaitpoint) else getattr(result, "waitpoints", [])
    for waitpoint in created:
        assert waitpoint.token is not None
        assert isinstance(await engine.signals.deliver(waitpoint.token, "go"), Accepted)
