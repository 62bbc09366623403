"""Tests of hold and unhold, which stop and continue waiting or delayed work, alone or in bulk."""

from __future__ import annotations

from uuid import UUID

from flowfabric.engine import AlreadySatisfied, Created, Engine, Held, State, Submission, Unheld
from flowfabric.testing import VirtualClock
from tests.expectations import event_names, last_event, nothing_written, refused
from tests.scenarios import SITUATIONS, submitted
from tests.stores import TestStore

HOLDABLE = [name for name in SITUATIONS if name.startswith(("waiting", "delayed"))]


async def test_held_work_is_not_claimed_until_it_is_unheld(engine: Engine) -> None:
    id_ = await submitted(engine)
    assert await engine.operator.hold(id_, "look at it") == Held("look at it")
    assert await engine.leases.claim(["default"], "worker-1") == []
    await refused(engine.leases.claim_execution(id_, "worker-1"), "execution_not_leaseable")
    execution = await engine.executions.describe(id_)
    assert (execution.state, execution.hold_reason, execution.vector.eligibility_state) == (
        State.BLOCKED,
        "look at it",
        "blocked_by_operator",
    )
    assert await engine.operator.unhold(id_) == Unheld(State.WAITING)
    assert (await engine.executions.describe(id_)).hold_reason is None
    assert [lease.execution_id for lease in await engine.leases.claim(["default"], "worker-1")] == [id_]


async def test_unhold_restores_the_state_before_the_hold(engine: Engine, clock: VirtualClock) -> None:
    reasons = {}
    for situation in HOLDABLE:
        id_ = await SITUATIONS[situation](engine, clock)
        before = await engine.executions.describe(id_)
        await engine.operator.hold(id_, "look at it")
        held = await engine.executions.describe(id_)
        assert (held.state, held.ready_at) == (State.BLOCKED, before.ready_at), situation
        assert held.vector.attempt_state == before.vector.attempt_state, situation
        assert await engine.operator.unhold(id_) == Unheld(before.state), situation
        after = await engine.executions.describe(id_)
        assert (after.vector, after.ready_at, after.epoch) == (before.vector, before.ready_at, before.epoch), situation
        assert (after.attempt_index, after.attempts) == (before.attempt_index, before.attempts), situation
        reasons[situation] = after.vector.blocking_reason
    assert reasons["delayed: retrying"] == "waiting_for_retry_backoff"


async def test_delay_that_ends_during_the_hold_has_ended_after_it(engine: Engine, clock: VirtualClock) -> None:
    soon, later = await submitted(engine, delay="1m"), await submitted(engine, delay="2m")
    for id_ in (soon, later):
        await engine.operator.hold(id_)
    clock.advance("1m")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(soon)).state is State.BLOCKED
    assert await engine.operator.unhold(soon) == Unheld(State.WAITING)
    assert (await engine.executions.describe(soon)).ready_at is None
    assert await engine.operator.unhold_all() == 1
    assert (await engine.executions.describe(later)).state is State.DELAYED
    clock.advance("1m")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(later)).state is State.WAITING


async def test_only_waiting_and_delayed_work_can_be_held(engine: Engine, clock: VirtualClock) -> None:
    for situation in SITUATIONS:
        if situation in HOLDABLE or situation == "blocked: held":
            continue
        id_ = await SITUATIONS[situation](engine, clock)
        before = await engine.executions.describe(id_)
        await refused(engine.operator.hold(id_), "execution_not_eligible")
        await refused(engine.operator.unhold(id_), "execution_not_eligible")
        assert await engine.executions.describe(id_) == before, situation


async def test_hold_and_unhold_write_an_event_with_principal_and_reason(engine: Engine) -> None:
    id_ = await submitted(engine)
    await engine.operator.hold(id_, "look at it", principal="ada")
    held = await last_event(engine, id_)
    await engine.operator.unhold(id_, "looked at", principal="bob")
    unheld = await last_event(engine, id_)
    assert await event_names(engine, id_) == ["operator.held", "operator.unheld"]
    assert (held.principal, held.reason, held.state) == ("ada", "look at it", State.BLOCKED)
    assert (unheld.principal, unheld.reason, unheld.state) == ("bob", "looked at", State.WAITING)


async def test_repeated_hold_or_unhold_writes_nothing(engine: Engine, store: TestStore) -> None:
    held, free = await submitted(engine), await submitted(engine)
    await engine.operator.hold(held, "first")
    async with nothing_written(store):
        assert await engine.operator.hold(held, "second") == Held("first")
        assert await engine.operator.unhold(free) == AlreadySatisfied("not_held")


async def test_held_work_is_unheld_by_kind_and_reason(engine: Engine) -> None:
    held = {}
    for kind in ("mail", "sms"):
        for reason in ("provider down", "audit"):
            held[kind, reason] = await submitted(engine, kind=kind)
            await engine.operator.hold(held[kind, reason], reason)
    unhold_all = engine.operator.unhold_all
    assert await unhold_all(kind="mail", hold_reason="audit", reason="done", principal="ada") == 1
    assert await filter_held(engine, held) == {("mail", "provider down"), ("sms", "provider down"), ("sms", "audit")}
    event = await last_event(engine, held["mail", "audit"])
    assert (event.name, event.principal, event.reason) == ("unheld", "ada", "done")
    assert await unhold_all(hold_reason="provider down") == 2
    assert await filter_held(engine, held) == {("sms", "audit")}
    assert await unhold_all(kind="mail") == 0
    assert await unhold_all() == 1
    assert await filter_held(engine, held) == set()


async def test_bulk_unhold_processes_every_page(engine: Engine, store: TestStore) -> None:
    for kind, number in (("mail", 1000), ("mail", 2), ("sms", 1)):
        outcomes = await engine.executions.submit_many([Submission(kind=kind) for _ in range(number)])
        assert all(isinstance(outcome, Created) for outcome in outcomes)
    # Calling `hold` a thousand times would take seconds, so this writes the same rows without events.
    await store.query(
        "UPDATE ff.execution SET state = 'blocked', blocking_reason = 'paused_by_operator', hold_reason = 'audit'"
    )
    assert await engine.operator.unhold_all(kind="mail", hold_reason="audit", principal="ada") == 1002
    counts = await engine.executions.count()
    assert (counts[State.WAITING].value, counts[State.BLOCKED].value) == (1002, 1)
    [events] = await store.query(
        "SELECT COUNT(*) AS all_events, COUNT(DISTINCT execution_id) AS executions FROM ff.event WHERE principal = ?",
        "ada",
    )
    assert (events["all_events"], events["executions"]) == (1002, 1002)


async def filter_held(engine: Engine, ids: dict[tuple[str, str], UUID]) -> set[tuple[str, str]]:
    """Return the names of the executions that are held."""
    return {name for name, id_ in ids.items() if (await engine.executions.describe(id_)).state is State.BLOCKED}
