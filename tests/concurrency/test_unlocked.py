"""Suspends and signals look without a lock and write what nobody has touched since: whoever changes what hangs on an
execution must write its row, and whatever happens between the look and the write must be seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from flowfabric.backends.postgres.unlocked import PostgresUnlocked
from flowfabric.engine import Accepted, Engine, FlowFabricError, Suspended
from flowfabric.sqlstore import transaction
from flowfabric.testing import VirtualClock
from tests.concurrency.gates import StoppedCall, all_wait_for_a_lock
from tests.concurrency.wait_soundness import assert_waits_sound
from tests.concurrency.waits import Wait, duty, suspended
from tests.facts import nothing_written
from tests.faults.bench import opened_bench
from tests.faults.flow_operations import EVERY_OPERATION
from tests.faults.wait_operations import WAITS
from tests.scenarios import leased
from tests.sizes import Size
from tests.stores import PostgresTestStore, opened

pytestmark = pytest.mark.parametrize("store", ["postgres"], indirect=True)
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


async def test_whoever_changes_what_hangs_on_an_execution_writes_its_row(
    store: PostgresTestStore, clock: VirtualClock, size: Size, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened_bench(store, clock) as bench, watched(store):
        for operation in size.of(WAITS, EVERY_OPERATION, EVERY_OPERATION).values():
            await bench.whole(operation, lambda call: call())
    # A duty that a row is refused to only says so.
    assert UNTOUCHED not in caplog.text


async def test_the_watch_sees_a_row_that_was_not_written(
    store: PostgresTestStore, engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(transaction, "touched", lambda changes: set())
    operation = WAITS["waitpoint expiry"]
    async with watched(store):
        subject = await operation.arrange(engine, clock)
        # A duty that a row is refused to says so, and goes on with the others.
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
async def test_what_happens_between_look_and_signal_is_seen(
    store: PostgresTestStore, engine: Engine, monkeypatch: pytest.MonkeyPatch, meanwhile: Meanwhile, code: str | None
) -> None:
    wait = await suspended(engine)
    async with opened(store, VirtualClock()) as rival:
        held = disturbed(monkeypatch, lambda: meanwhile(rival, wait))
        answer = await outcome(engine.signals.deliver(wait.token, "yes"))
    assert held[0] == 0, "the row was touched"
    assert (answer.code if isinstance(answer, FlowFabricError) else None) == code
    await assert_waits_sound(store)


async def test_a_signal_that_nobody_disturbs_needs_no_lock(
    engine: Engine, store: PostgresTestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = await suspended(engine)
    held = disturbed(monkeypatch, nothing)
    assert isinstance(await engine.signals.deliver(wait.token, "yes"), Accepted)
    assert held == [1]


async def test_a_lease_that_runs_out_between_look_and_suspend_is_lost(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await leased(engine)
    await engine.leases.suspend(lease.fence, ["seeds a key"], timeout="1s", on_timeout="auto_resume")
    clock.advance("2s")
    await duty("suspension_timeout")(engine)
    lease = await engine.leases.claim_execution(lease.execution_id, "again")

    async def too_late() -> None:
        clock.advance("1d")

    held = disturbed(monkeypatch, too_late)
    answer = await outcome(engine.leases.suspend(lease.fence, ["answer"]))
    assert held == [0]
    assert getattr(answer, "code", answer) == "lease_expired"


async def test_a_key_that_is_rotated_between_look_and_suspend_mints_nothing(
    store: PostgresTestStore, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await suspended(engine)
    lease = await leased(engine)
    async with opened(store, VirtualClock()) as rival:
        held = disturbed(monkeypatch, lambda: rival.keys.rotate("second", grace="0s"))
        answer = await engine.leases.suspend(lease.fence, ["answer"])
    assert held == [0]
    assert isinstance(answer, Suspended)
    token = answer.token("answer")
    assert token is not None
    assert isinstance(await engine.signals.deliver(token, "yes"), Accepted)


async def test_a_key_that_is_cut_off_between_look_and_signal_was_good_when_it_was_looked_at(
    store: PostgresTestStore, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = [await suspended(engine) for _ in range(2)]
    async with opened(store, VirtualClock()) as rival:
        held = disturbed(monkeypatch, lambda: rival.keys.rotate("second", grace="0s"))
        sent = await engine.signals.deliver(waits[0].token, "yes")
        late = await outcome(engine.signals.deliver(waits[1].token, "yes"))
    assert held == [1], "the second one got no further than its look"
    assert isinstance(sent, Accepted)
    assert getattr(late, "code", late) == "invalid_token"
    await assert_waits_sound(store, [sent.signal_id])


async def test_a_suspend_that_waits_for_a_rotation_which_is_rolled_back_is_refused_if_its_lease_was_revoked(
    store: PostgresTestStore, engine: Engine, clock: VirtualClock
) -> None:
    await suspended(engine)
    lease = await leased(engine)
    async with opened(store, clock) as rival, opened(store, clock) as third:
        rotation = StoppedCall(store, rival)
        await rotation.begin(lambda side: side.keys.rotate("second", grace="0s"))
        waiting = asyncio.ensure_future(outcome(engine.leases.suspend(lease.fence, ["answer"])))
        await all_wait_for_a_lock(store, engine, 1)
        await third.operator.revoke_lease(lease.execution_id)
        async with nothing_written(store):
            await rotation.roll_back()
            answer = await waiting
    assert getattr(answer, "code", answer) == "lease_revoked"
    await assert_waits_sound(store)


async def nothing() -> None:
    """Nobody does anything."""


def disturbed(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], Awaitable[Any]]) -> list[int]:
    """Lets something happen before the next write without a lock; tells how many rows such writes held."""
    held: list[int] = []
    write = PostgresUnlocked.write

    async def writing(self: PostgresUnlocked, *arguments: Any, **options: Any) -> Any:
        place = len(held)
        held.append(-1)
        if place == 0:
            await meanwhile()
        found = await write(self, *arguments, **options)
        held[place] = len(found)
        return found

    monkeypatch.setattr(PostgresUnlocked, "write", writing)
    return held


async def outcome(call: Awaitable[Any]) -> Any:
    """The answer, or the refusal."""
    try:
        return await call
    except FlowFabricError as error:
        return error


@asynccontextmanager
async def watched(store: PostgresTestStore) -> AsyncIterator[None]:
    """A store that refuses to commit what changes waits and not the row that they hang on."""
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
