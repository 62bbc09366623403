"""A call about a wait is repeated because its answer was lost: it is answered as the first time, and happens once."""

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
from tests.faults.bench import Bench, opened_bench
from tests.faults.fuses import FAILURES, Fuse, fit_fuse
from tests.faults.operations import Operation
from tests.faults.pictures import Camera, wipe
from tests.faults.wait_operations import WAITS
from tests.stores import TestStore

# How a repeated call is answered; what is not new is said to be so, with the ids of the first time.
REPEATED = {
    "create_waitpoint": OpenWaitpoint,
    "suspend": Suspended,
    "suspend with a key": Suspended,
    "suspend, satisfied at once": Satisfied,
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
async def test_what_is_repeated_after_a_lost_answer_is_answered_with_what_was_written(
    store: TestStore, clock: VirtualClock, name: str
) -> None:
    operation = WAITS[name]
    async with opened_bench(store, clock) as bench:
        fuse = fit_fuse(bench.engine)
        commit = await place_of_commit(bench, fuse, operation)
        await wipe(bench.camera)
        _, subject = await bench._arranged(operation)
        fuse.arm(commit, FAILURES[store.name]["outage"], after=True)
        with pytest.raises(Unavailable):
            await operation.act(bench.engine, subject)
        fuse.disarm()
        answers = [await operation.act(bench.engine, subject) for _ in range(3)]
        assert [type(answer) for answer in answers] == [REPEATED[name]] * 3
        assert answers[0] == answers[1] == answers[2]
        await assert_it_speaks_of_what_is_stored(bench.engine, bench.camera, answers[0])


async def place_of_commit(bench: Bench, fuse: Fuse, operation: Operation) -> int:
    """Which statement of the undisturbed call is its commit: without a transaction, the one that writes."""
    _, subject = await bench._arranged(operation)
    fuse.arm(0)
    await operation.act(bench.engine, subject)
    fuse.disarm()
    commits = [text == "COMMIT" or text.startswith("WITH minting") for text in fuse.statements]
    return commits.index(True) + 1


async def assert_it_speaks_of_what_is_stored(engine: Engine, camera: Camera, answer: Any) -> None:
    """Its ids are those of the only rows there are, and its tokens work."""
    if isinstance(answer, Suspended | Satisfied):
        [row] = await camera.rows("SELECT id FROM ff.suspension")
        assert str(row["id"]) == str(answer.suspension_id)
    if isinstance(answer, DuplicateSignal):
        [row] = await camera.rows("SELECT id FROM ff.signal")
        assert str(row["id"]) == str(answer.signal_id)
    created = [answer] if isinstance(answer, OpenWaitpoint) else getattr(answer, "waitpoints", [])
    for waitpoint in created:
        assert waitpoint.token is not None
        assert isinstance(await engine.signals.deliver(waitpoint.token, "go"), Accepted)
