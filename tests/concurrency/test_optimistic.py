"""Test the optimistic path of signals.

A signal reads its execution without a lock, and writes only if the execution has not changed since that read. Every
change of a wait must therefore also write the row of its execution. The signal must detect every change between its
read and its write.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from flowfabric.backends.postgres.hot_path import PostgresOptimisticStore
from flowfabric.engine import Accepted, Engine, FlowFabricError
from flowfabric.store import transaction
from flowfabric.testing import VirtualClock
from tests.concurrency.wait_soundness import assert_waits_sound
from tests.concurrency.waits import Wait, suspended
from tests.faults.fault_runner import opened_bench
from tests.faults.flow_operations import EVERY_OPERATION
from tests.faults.wait_operations import WAITS
from tests.sizes import Size
from tests.stores import PostgresTestStore, opened

pytestmark = [pytest.mark.full, pytest.mark.parametrize("store", ["postgres"], indirect=True)]
Meanwhile = Callable[[Engine, Wait], Awaitable[Any]]
HANGING = ("suspension", "waitpoint", "signal")
UNTOUCHED = "the row of the execution was not written"
WATCH = f"""
    CREATE FUNCTION ff.watch_row() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF EXISTS (
            SELECT 1 FROM ff.execution AS e
            WHERE e.id = COALESCE(NEW.execution_id, OLD.execution_id) AND e.xmin <> pg_current_xact_id()::XID
        ) THEN
            RAISE EXCEPTION '{UNTOUCHED}';
        END IF;
        RETURN NULL;
    END
    $$
"""


async def test_every_change_attached_to_an_execution_writes_its_row(
    store: PostgresTestStore, clock: VirtualClock, size: Size, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened_bench(store, clock) as bench, reject_untouched_rows(store):
        for operation in size.of(WAITS, EVERY_OPERATION, EVERY_OPERATION).values():
            await bench.whole(operation, lambda call: call())
    # If a duty cannot write a row, it only logs the error, so check the log too.
    assert UNTOUCHED not in caplog.text


async def test_check_detects_a_row_that_was_not_written(
    store: PostgresTestStore,
    engine: Engine,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(transaction, "touched_executions", lambda changes: set())
    operation = WAITS["waitpoint expiry"]
    async with reject_untouched_rows(store):
        subject = await operation.arrange(engine, clock)
        # The duty logs the row that it cannot write, and continues with the other rows.
        await operation.act(engine, subject)
    assert UNTOUCHED in caplog.text


async def cancelled(rival: Engine, wait: Wait) -> None:
    await rival.operator.cancel(wait.lease.execution_id)


async def resumed(rival: Engine, wait: Wait) -> None:
    await rival.operator.resume(wait.lease.execution_id)


async def closed(rival: Engine, wait: Wait) -> None:
    [waitpoint] = await rival.waitpoints.list(wait.lease.execution_id)
    await rival.waitpoints.close(waitpoint.id)


async def answered(rival: Engine, wait: Wait) -> None:
    await rival.signals.deliver(wait.token, "other")


async def tagged(rival: Engine, wait: Wait) -> None:
    await rival.executions.set_tags(wait.lease.execution_id, {"paint.colour": "red"})


@pytest.mark.parametrize(
    ("meanwhile", "code"),
    [
        (cancelled, "target_not_signalable"),
        (resumed, "waitpoint_closed"),
        (closed, "waitpoint_closed"),
        (answered, "waitpoint_closed"),
        (tagged, None),
    ],
)
async def test_change_between_snapshot_and_signal_is_detected(
    store: PostgresTestStore, engine: Engine, monkeypatch: pytest.MonkeyPatch, meanwhile: Meanwhile, code: str | None
) -> None:
    wait = await suspended(engine)
    async with opened(store, VirtualClock()) as rival:
        held = disturb_next_write(monkeypatch, lambda: meanwhile(rival, wait))
        result = await result_of(engine.signals.deliver(wait.token, "yes"))
    assert held[0] == 0, "the write must skip the changed row"
    assert (result.code if isinstance(result, FlowFabricError) else None) == code
    await assert_waits_sound(store)


async def test_undisturbed_signal_takes_no_lock(
    engine: Engine, store: PostgresTestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = await suspended(engine)
    held = disturb_next_write(monkeypatch, nothing)
    assert isinstance(await engine.signals.deliver(wait.token, "yes"), Accepted)
    assert held == [1]


async def test_key_cut_off_after_the_snapshot_still_verifies_the_signal(
    store: PostgresTestStore, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = [await suspended(engine) for _ in range(2)]
    async with opened(store, VirtualClock()) as rival:
        held = disturb_next_write(monkeypatch, lambda: rival.keys.rotate("second", grace="0s"))
        sent = await engine.signals.deliver(waits[0].token, "yes")
        late = await result_of(engine.signals.deliver(waits[1].token, "yes"))
    assert held == [1], "only the first signal reaches its write"
    assert isinstance(sent, Accepted)
    assert getattr(late, "code", late) == "invalid_token"
    await assert_waits_sound(store, [sent.signal_id])


async def nothing() -> None:
    """Do nothing."""


def disturb_next_write(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], Awaitable[Any]]) -> list[int]:
    """Run an action before the next optimistic write.

    Return a list that receives the number of rows that each optimistic write matched.
    """
    held: list[int] = []
    write = PostgresOptimisticStore.write

    async def writing(self: PostgresOptimisticStore, *arguments: Any, **options: Any) -> Any:
        place = len(held)
        held.append(-1)
        if place == 0:
            await meanwhile()
        rows = await write(self, *arguments, **options)
        held[place] = len(rows)
        return rows

    monkeypatch.setattr(PostgresOptimisticStore, "write", writing)
    return held


async def result_of(call: Awaitable[Any]) -> Any:
    """Return the result of the call, or its error."""
    try:
        return await call
    except FlowFabricError as error:
        return error


@asynccontextmanager
async def reject_untouched_rows(store: PostgresTestStore) -> AsyncIterator[None]:
    """Make the store reject commits that change a wait without writing the row of its execution."""
    triggers = [
        f"CREATE CONSTRAINT TRIGGER watch AFTER INSERT OR UPDATE OR DELETE ON ff.{table} DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION ff.watch_row()"
        for table in HANGING
    ]
    await store.queries([WATCH, *triggers])
    try:
        yield
    finally:
        await store.query("DROP FUNCTION ff.watch_row CASCADE")
