"""Tests of deliver_signal, which delivers a signal to one waitpoint by its signed token."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.ids import IdMinter
from flowfabric.engine import (
    Accepted,
    AllOf,
    AnyOf,
    Count,
    Counted,
    DuplicateSignal,
    Effect,
    Engine,
    InvalidRequest,
    NewWaitpoint,
    OperatorOnly,
    PendingWaitpoint,
    Policy,
    PublicState,
    Refused,
    Secret,
    Single,
    State,
    WaitpointState,
)
from flowfabric.testing import VirtualClock
from tests.concurrency.soundness import assert_sound
from tests.expectations import error_of, event_names, last_event, nothing_written, refused
from tests.scenarios import early, leased, submitted, suspended
from tests.stores import TestStore

SATISFIED = (Effect.SATISFIED, Counted.YES)
APPENDED = (Effect.APPENDED, Counted.YES)


async def deliver(engine: Engine, token: Secret, name: str = "go", **options: Any) -> tuple[Effect, Counted | None]:
    """Deliver a signal that must be accepted, and return its effect."""
    outcome = await engine.signals.deliver(token, name, **options)
    assert isinstance(outcome, Accepted)
    return outcome.effect, outcome.counted


async def test_matching_signal_resumes_the_execution(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine, ["go"], Single("go", "approved"), timeout="1h")
    clock.advance("1s")
    before = await engine.executions.describe(wait.id)
    outcome = await engine.signals.deliver(wait.token(), "approved", b'{"ok": 1}')
    assert isinstance(outcome, Accepted)
    assert (outcome.effect, outcome.counted) == SATISFIED
    after = await engine.executions.describe(wait.id)
    assert (after.state, after.epoch, after.version) == (State.WAITING, before.epoch, before.version + 2)
    assert after.vector.public_state is PublicState.RESUMABLE
    assert (after.vector.blocking_reason, after.vector.ownership_state) == ("waiting_for_worker", "unowned")
    assert (after.suspension, after.waitpoints, after.attempt_index) == (None, (), 0)
    [closed] = await engine.waitpoints.list(wait.id)
    assert (closed.state, closed.close_reason, closed.closed_at) == (WaitpointState.CLOSED, "resumed", clock.now())
    assert (await event_names(engine, wait.id))[-2:] == ["signal.delivered", "lifecycle.resumed"]
    event = await last_event(engine, wait.id)
    assert event.details == {
        "suspension": str(wait.suspension),
        "trigger": "signals",
        "signal": str(outcome.signal_id),
    }
    lease = await engine.leases.claim_resumed(wait.id, "worker-2")
    assert (lease.epoch, lease.attempt_index, lease.origin) == (wait.lease.epoch + 2, 0, "resumed")


async def test_signal_with_another_name_is_stored_without_effect(engine: Engine) -> None:
    wait = await suspended(engine, ["go"], Single("go", "approved"))
    assert await deliver(engine, wait.token(), "rejected") == (Effect.APPENDED, Counted.NOT_MATCHED)
    assert await deliver(engine, wait.token(), "Approved") == (Effect.APPENDED, Counted.NOT_MATCHED)
    assert (await engine.executions.describe(wait.id)).state is State.SUSPENDED
    assert await deliver(engine, wait.token(), "approved") == SATISFIED
    assert await event_names(engine, wait.id) == [
        "lease.acquired",
        "lease.suspended",
        "signal.delivered",
        "signal.delivered",
        "signal.delivered",
        "lifecycle.resumed",
    ]


async def test_wait_without_a_name_accepts_any_signal(engine: Engine) -> None:
    wait = await suspended(engine)
    assert await deliver(engine, wait.token(), "whatever") == SATISFIED


async def test_two_sources_count_as_distinct(engine: Engine) -> None:
    wait = await suspended(engine, ["go"], Count(2, "sources", ["go"]))
    sources = [("human", "ada"), ("human", "ada"), ("robot", "ada"), ("human", "bob")]
    effects = []
    for source_type, identity in sources[:2]:
        effects.append(await deliver(engine, wait.token(), source_type=source_type, source_identity=identity))
    assert effects == [APPENDED, (Effect.APPENDED, Counted.NOTHING_NEW)]
    execution = await engine.executions.describe(wait.id)
    assert execution.suspension is not None
    assert execution.suspension.missing == ('1 more of 2 sources on "go" (sources are not verified)',)
    assert await deliver(engine, wait.token(), source_type="human", source_identity="bob") == SATISFIED


async def test_quorum_of_approvers_ignores_the_source_that_the_sender_claims(engine: Engine) -> None:
    keys = ["ada", "bob", "eve"]
    wait = await suspended(engine, [NewWaitpoint(key, approver=key) for key in keys], Count(2, "sources", keys, "yes"))
    assert await deliver(engine, wait.token("ada"), "yes", source_identity="ada") == APPENDED
    second_effect = await deliver(engine, wait.token("ada"), "yes", source_type="human", source_identity="bob")
    assert second_effect == (Effect.APPENDED, Counted.NOTHING_NEW)
    execution = await engine.executions.describe(wait.id)
    assert execution.suspension is not None
    assert "verified" not in execution.suspension.missing[0]
    assert await deliver(engine, wait.token("eve"), "no") == (Effect.APPENDED, Counted.NOT_MATCHED)
    assert await deliver(engine, wait.token("eve"), "yes", source_identity="ada") == SATISFIED
    sources = [signal.source for signal in await engine.signals.list(wait.id)]
    assert sources == ["approver:ada", "approver:eve"]


async def test_claimed_source_cannot_impersonate_a_verified_one(engine: Engine) -> None:
    keys = ["ada", "open"]
    wait = await suspended(engine, [NewWaitpoint("ada", approver="ada"), "open"], Count(3, "sources", keys))
    await deliver(engine, wait.token("ada"))
    await deliver(engine, wait.token("open"), source_type="operator", source_identity="operator")
    await engine.signals.approve(wait.id, "open")
    signals = await engine.signals.list(wait.id)
    assert len({signal.source for signal in signals}) == 3


async def test_distinct_signals_count_ids_and_distinct_waitpoints_count_waitpoints(engine: Engine) -> None:
    by_signal = await suspended(engine, ["go"], Count(2, "signals", ["go"]))
    first = new_id()
    assert await deliver(engine, by_signal.token(), signal_id=first) == APPENDED
    assert isinstance(await engine.signals.deliver(by_signal.token(), "go", signal_id=first), DuplicateSignal)
    assert await deliver(engine, by_signal.token()) == SATISFIED
    keys = ["a", "b", "c"]
    by_waitpoint = await suspended(engine, keys, Count(2, "waitpoints", keys))
    assert await deliver(engine, by_waitpoint.token("a")) == APPENDED
    assert await deliver(engine, by_waitpoint.token("a")) == (Effect.APPENDED, Counted.NOTHING_NEW)
    assert await deliver(engine, by_waitpoint.token("c")) == SATISFIED


async def test_all_of_needs_every_member_and_any_of_needs_one(engine: Engine) -> None:
    all_of = await suspended(engine, ["a", "b"], AllOf([Single("a"), Single("b", "yes")]))
    assert await deliver(engine, all_of.token("b"), "yes") == APPENDED
    assert await deliver(engine, all_of.token("b"), "yes") == (Effect.APPENDED, Counted.NOTHING_NEW)
    assert await deliver(engine, all_of.token("a")) == SATISFIED
    any_of = await suspended(engine, ["a", "b"], AnyOf([Single("a"), AllOf([Single("b", "x"), Single("b", "y")])]))
    assert await deliver(engine, any_of.token("b"), "x") == APPENDED
    assert await deliver(engine, any_of.token("b"), "y") == SATISFIED


async def test_resume_closes_every_waitpoint_of_the_wait(engine: Engine) -> None:
    for last, first in (("a", "b"), ("b", "a")):
        wait = await suspended(engine, ["a", "b"])
        await deliver(engine, wait.token(first))
        assert await deliver(engine, wait.token(last)) == SATISFIED
        assert {waitpoint.close_reason for waitpoint in await engine.waitpoints.list(wait.id)} == {"resumed"}


async def test_signals_to_an_operator_wait_are_stored_outside_the_condition(engine: Engine) -> None:
    wait = await suspended(engine, ["note"], OperatorOnly())
    assert await deliver(engine, wait.token("note")) == (Effect.APPENDED, Counted.NOT_IN_CONDITION)
    assert (await engine.executions.describe(wait.id)).state is State.SUSPENDED
    assert await engine.signals.list(wait.id) == ()
    assert len(await engine.signals.list(wait.id, include_unmatched=True)) == 1


async def test_every_field_of_the_sender_is_stored(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine)
    created_at = clock.now() - timedelta(days=1)
    id_ = new_id()
    outcome = await engine.signals.deliver(
        wait.token(),
        "paid",
        b"\x00\xff",
        encoding="raw",
        category="webhook",
        source_type="shop",
        source_identity="shop-7",
        correlation="order-17",
        signal_id=id_,
        key="evt-1",
        created_at=created_at,
    )
    assert isinstance(outcome, Accepted)
    [signal] = await engine.signals.list(wait.id)
    assert (signal.id, signal.name, signal.payload, signal.encoding) == (id_, "paid", b"\x00\xff", "raw")
    assert (signal.category, signal.source_type, signal.source_identity) == ("webhook", "shop", "shop-7")
    assert (signal.correlation, signal.key, signal.created_at) == ("order-17", "evt-1", created_at)
    assert (signal.accepted_at, signal.waitpoint, signal.seq) == (clock.now(), "go", 1)


# Repeats.


async def test_repeated_signal_returns_the_first_id_in_every_later_state(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    lease = await leased(engine)
    early = await engine.waitpoints.create(lease.fence, "go", expires="1h", token_ends_at=clock.now() + timedelta(1))
    assert early.token is not None
    by_id, by_key = new_id(), "evt-1"
    await engine.signals.deliver(early.token, "one", signal_id=by_id)
    keyed = await engine.signals.deliver(early.token, "two", key=by_key)
    assert isinstance(keyed, Accepted)

    async def assert_duplicates() -> None:
        async with nothing_written(store):
            assert await engine.signals.deliver(early.token or "", "x", signal_id=by_id) == DuplicateSignal(by_id)
            duplicate = await engine.signals.deliver(early.token or "", "x", b"other", key=by_key)
            assert duplicate == DuplicateSignal(keyed.signal_id)

    await assert_duplicates()
    wait = await suspended(engine, [PendingWaitpoint("go")], Count(3, "signals", ["go"]), lease=lease, timeout="1h")
    await assert_duplicates()
    assert await deliver(engine, early.token) == SATISFIED
    await assert_duplicates()
    resumed = await engine.leases.claim_resumed(wait.id, "worker-2")
    await assert_duplicates()
    await engine.leases.complete(resumed.fence)
    await assert_duplicates()
    clock.advance("2d")
    await assert_duplicates()


async def test_key_is_unique_per_waitpoint_and_id_per_execution(engine: Engine) -> None:
    wait = await suspended(engine, ["a", "b"], Count(4, "signals", ["a", "b"]))
    id_ = new_id()
    assert await deliver(engine, wait.token("a"), key="evt", signal_id=id_) == APPENDED
    assert await deliver(engine, wait.token("b"), key="evt") == APPENDED
    assert await engine.signals.deliver(wait.token("b"), "go", signal_id=id_) == DuplicateSignal(id_)
    other_wait = await suspended(engine)
    assert await deliver(engine, other_wait.token(), signal_id=id_) == SATISFIED


async def test_deliveries_without_id_and_key_are_separate_signals(engine: Engine) -> None:
    wait = await suspended(engine, ["go"], Count(3, "signals", ["go"]))
    assert [await deliver(engine, wait.token()) for _ in range(3)] == [APPENDED, APPENDED, SATISFIED]


async def test_signal_never_changes_an_execution_that_does_not_wait_for_it(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    wait = await suspended(engine)
    await engine.signals.deliver(wait.token(), "go")
    async with nothing_written(store):
        await refused(engine.signals.deliver(wait.token(), "again"), "waitpoint_closed")
    running = await engine.leases.claim_resumed(wait.id, "worker-2")
    async with nothing_written(store):
        error = await refused(engine.signals.deliver(wait.token(), "again"), "waitpoint_closed")
        assert error.fields["state"] is State.ACTIVE
    await engine.leases.complete(running.fence, b"out")
    async with nothing_written(store):
        await refused(engine.signals.deliver(wait.token(), "again"), "target_not_signalable")
    assert (await engine.executions.describe(wait.id)).state is State.COMPLETED


async def test_signal_to_a_pending_waitpoint_is_buffered_in_every_state(engine: Engine) -> None:
    lease = await leased(engine)
    early = await engine.waitpoints.create(lease.fence, "later")
    assert early.token is not None
    assert await deliver(engine, early.token) == (Effect.BUFFERED, None)
    wait = await suspended(engine, ["go"], lease=lease)
    assert await deliver(engine, early.token) == (Effect.BUFFERED, None)
    execution = await engine.executions.describe(wait.id)
    assert execution.state is State.SUSPENDED
    await engine.operator.resume(wait.id)
    assert await deliver(engine, early.token) == (Effect.BUFFERED, None)
    assert (await engine.executions.describe(wait.id)).state is State.WAITING
    assert (await event_names(engine, wait.id)).count("signal.buffered") == 3


# The resume delay.


async def test_resume_delay_of_the_signal_overrides_that_of_the_suspension(engine: Engine, clock: VirtualClock) -> None:
    for of_signal, of_suspension, expected in ((None, "10s", 10), ("3s", "10s", 3), ("3s", 0, 3)):
        wait = await suspended(engine, resume_delay=of_suspension)
        await engine.signals.deliver(wait.token(), "go", resume_delay=of_signal)
        execution = await engine.executions.describe(wait.id)
        assert (execution.state, execution.ready_at) == (State.DELAYED, clock.now() + timedelta(seconds=expected))
        assert execution.vector.blocking_reason.value == "waiting_for_resume_delay"
        assert await engine.leases.claim(["default"], "w") == []
        clock.advance(expected - 0.001)
        await engine.reconcilers.tick()
        assert (await engine.executions.describe(wait.id)).state is State.DELAYED
        clock.advance("1ms")
        await engine.reconcilers.tick()
        lease = await engine.leases.claim_resumed(wait.id, "w")
        assert lease.resumption is not None
        assert lease.resumption.suspension_id == wait.suspension
    without_delay = await suspended(engine, resume_delay="10s")
    await engine.signals.deliver(without_delay.token(), "go", resume_delay=0)
    assert (await engine.executions.describe(without_delay.id)).state is State.WAITING


# Limits.


async def test_payload_has_at_most_256_kib(engine: Engine, store: TestStore) -> None:
    wait = await suspended(engine, ["go"], Count(2, "signals", ["go"]))
    await engine.signals.deliver(wait.token(), "go", bytes(256 * 1024))
    async with nothing_written(store):
        large = engine.signals.deliver(wait.token(), "go", bytes(256 * 1024 + 1))
        error = await refused(large, "payload_too_large", InvalidRequest)
    assert "262144" in error.message.replace(",", "")


async def test_policy_limits_the_signals_of_an_execution(engine: Engine, store: TestStore) -> None:
    submit = {"policy": Policy(max_signals=2), "signals": ["mail"]}
    wait = await suspended(engine, ["go"], Count(9, "signals", ["go"]), submit=submit)
    await engine.signals.deliver(wait.token(), "go", key="evt")
    await engine.signals.send(wait.id, "mail")
    async with nothing_written(store):
        for call in (
            engine.signals.deliver(wait.token(), "go"),
            engine.signals.send(wait.id, "mail"),
            engine.signals.approve(wait.id, "go"),
        ):
            await refused(call, "signal_limit_exceeded")
        assert isinstance(await engine.signals.deliver(wait.token(), "go", key="evt"), DuplicateSignal)


async def test_fifty_concurrent_signals_resume_exactly_once(engine: Engine) -> None:
    wait = await suspended(engine, ["go"], Count(10, "signals", ["go"]))
    calls = [engine.signals.deliver(wait.token(), "go") for _ in range(50)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    accepted = [outcome for outcome in outcomes if isinstance(outcome, Accepted)]
    late = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
    assert [outcome.effect for outcome in accepted].count(Effect.SATISFIED) == 1
    assert (len(accepted), {error.code for error in late}) == (10, {"waitpoint_closed"})
    assert (await event_names(engine, wait.id)).count("lifecycle.resumed") == 1


@pytest.mark.parametrize("state", ["waiting", "delayed"])
async def test_waitpoint_of_a_resumed_execution_refuses_late_signals(
    engine: Engine, store: TestStore, state: str
) -> None:
    wait = await suspended(engine, ["a", "b"], AnyOf([Single("a"), Single("b")]))
    await engine.signals.deliver(wait.token("a"), "go", resume_delay="1m" if state == "delayed" else 0)
    async with nothing_written(store):
        error = await refused(engine.signals.deliver(wait.token("b"), "late"), "waitpoint_closed")
    assert error.fields["state"] == state


async def test_execution_that_never_waited_has_no_waitpoint_to_approve(engine: Engine) -> None:
    id_ = await submitted(engine)
    error = await error_of(engine.signals.approve(id_, "go"))
    assert error.code == "waitpoint_not_found"


def new_id() -> UUID:
    """Return a new id, created in the same way as a client creates it."""
    return IdMinter(lambda: 1_900_000_000_000, random.Random().getrandbits).mint()


async def test_late_duplicate_is_recognized_and_the_next_waitpoint_stays_open(engine: Engine) -> None:
    lease = await leased(engine)
    next_step = await early(engine, lease, "next")
    wait = await suspended(engine, lease=lease)
    first = await engine.signals.deliver(wait.token(), "go", key="webhook-1")
    assert await engine.signals.deliver(wait.token(), "go", key="webhook-1") == DuplicateSignal(first.signal_id)
    assert isinstance(await engine.signals.deliver(next_step, "early"), Accepted)


async def test_signal_never_revives_an_execution_nor_makes_a_running_one_claimable(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    cancelled = await suspended(engine)
    await engine.operator.cancel(cancelled.id)
    async with nothing_written(store):
        await refused(engine.signals.deliver(cancelled.token(), "go"), "target_not_signalable")
    wait = await suspended(engine)
    await engine.signals.deliver(wait.token(), "go")
    running = await engine.leases.claim_resumed(wait.id, "worker-2")
    token = await early(engine, running)
    outcome = await engine.signals.deliver(token, "go")
    assert isinstance(outcome, Accepted)
    assert outcome.effect is Effect.BUFFERED
    assert await engine.leases.claim(["default"], "worker-3") == []
    await engine.leases.renew(running.fence)
    await assert_sound(store)


async def test_key_encoding_resume_delay_and_source_take_effect(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    submit = {"policy": Policy(max_signals=2)}
    wait = await suspended(engine, ["go"], Count(2, "signals", ["go"]), submit=submit)
    first = await engine.signals.deliver(wait.token(), "a", b"\xff", encoding="raw", key="k", created_at=clock.now())
    async with nothing_written(store):
        assert await engine.signals.deliver(wait.token(), "a", key="k") == DuplicateSignal(first.signal_id)
    await engine.signals.deliver(wait.token(), "b", resume_delay="1m", source_identity="x")
    assert (await engine.executions.describe(wait.id)).state is State.DELAYED
    signals = await engine.signals.list(wait.id)
    assert [(signal.encoding, signal.source_identity) for signal in signals] == [("raw", "unknown"), ("json", "x")]
