"""progress: how far a worker is, kept on the execution without an event."""

from __future__ import annotations

from flowfabric.engine import Engine
from flowfabric.testing import VirtualClock
from tests.facts import event_names, stored_row
from tests.scenarios import leased
from tests.stores import TestStore


async def shown(engine: Engine, id_: object) -> tuple[int | None, str | None]:
    found = await engine.executions.describe(str(id_))
    return found.progress_percent, found.progress_message


async def test_what_a_report_leaves_out_keeps_its_last_value(engine: Engine) -> None:
    lease = await leased(engine)
    assert await shown(engine, lease.execution_id) == (None, None)
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
        assert await shown(engine, lease.execution_id) == expected


async def test_a_report_changes_the_progress_and_the_time_of_change_only(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    lease = await leased(engine)
    clock.advance("1s")
    before = await stored_row(store, lease.execution_id)
    await engine.leases.progress(lease.fence, 10, "begun")
    after = await stored_row(store, lease.execution_id)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"progress_percent", "progress_message", "changed_at"}
    found = await engine.executions.describe(lease.execution_id)
    assert (found.version, found.changed_at) == (1, clock.now())
    assert await event_names(engine, lease.execution_id) == ["lease.acquired"]


async def test_progress_is_kept_while_the_attempt_rests_and_when_it_ends(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.progress(lease.fence, 40, "half")
    await engine.leases.release(lease.fence)
    assert await shown(engine, lease.execution_id) == (40, "half")
    again = await engine.leases.claim_execution(lease.execution_id, "worker")
    await engine.leases.complete(again.fence)
    assert await shown(engine, lease.execution_id) == (40, "half")
