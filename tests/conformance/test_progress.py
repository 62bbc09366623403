"""Tests of progress, which a worker stores on its execution without an event."""

from __future__ import annotations

import pytest

from flowfabric.engine import Engine, InvalidRequest, Refused
from flowfabric.testing import VirtualClock
from tests.expectations import event_names, stored_row
from tests.scenarios import leased
from tests.stores import TestStore


async def read_progress(engine: Engine, id_: object) -> tuple[int | None, str | None]:
    execution = await engine.executions.describe(str(id_))
    return execution.progress_percent, execution.progress_message


async def test_omitted_value_keeps_its_last_value(engine: Engine) -> None:
    lease = await leased(engine)
    assert await read_progress(engine, lease.execution_id) == (None, None)
    reports: list[tuple[int | None, str | None, tuple[int | None, str | None]]] = [
        (None, "begun", (None, "begun")),
        (0, None, (0, "begun")),
        (50, "half", (50, "half")),
        (None, None, (50, "half")),
        (None, "still", (50, "still")),
        (100, None, (100, "still")),
        (20, "", (20, "")),
    ]
    for percent, message, expected in reports:
        await engine.leases.progress(lease.fence, percent, message)
        assert await read_progress(engine, lease.execution_id) == expected


async def test_report_changes_only_the_progress_and_the_time_of_change(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    lease = await leased(engine)
    clock.advance("1s")
    before = await stored_row(store, lease.execution_id)
    await engine.leases.progress(lease.fence, 10, "begun")
    after = await stored_row(store, lease.execution_id)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"progress_percent", "progress_message", "changed_at"}
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.version, execution.changed_at) == (1, clock.now())
    assert await event_names(engine, lease.execution_id) == ["lease.acquired"]


async def test_progress_is_kept_while_the_attempt_is_interrupted_and_when_it_ends(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.progress(lease.fence, 40, "half")
    await engine.leases.release(lease.fence)
    assert await read_progress(engine, lease.execution_id) == (40, "half")
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker")
    await engine.leases.complete(next_lease.fence)
    assert await read_progress(engine, lease.execution_id) == (40, "half")


async def test_progress_is_bounded_and_refused_unless_the_execution_is_active(
    engine: Engine, clock: VirtualClock
) -> None:
    lease = await leased(engine)
    for percent in (-1, 101, 255):
        with pytest.raises(InvalidRequest, match="out_of_range"):
            await engine.leases.progress(lease.fence, percent)
    clock.advance("1s")
    await engine.leases.progress(lease.fence, 100, "done")
    assert (await engine.executions.describe(lease.execution_id)).changed_at == clock.now()
    await engine.leases.complete(lease.fence)
    with pytest.raises(Refused, match="execution_not_active"):
        await engine.leases.progress(lease.fence, 1)
