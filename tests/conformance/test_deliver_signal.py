"""deliver_signal: a signed token brings a signal to one waitpoint; the condition decides what that does."""

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
    Fresh,
    InvalidRequest,
    OperatorOnly,
    Pending,
    Policy,
    PublicState,
    Refused,
    Secret,
    Single,
    State,
    WaitpointState,
)  # fmt: skip
from flowfabric.testing import VirtualClock
from tests.facts import error_of, event_names, last_event, nothing_written, refused
from tests.scenarios import leased, submitted, suspended
from tests.stores import TestStore

SATISFIED = (Effect.SATISFIED, Counted.YES)
APPENDED = (Effect.APPENDED, Counted.YES)


async def effect(engine: Engine, token: Secret, name: str = "go", **options: Any) -> tuple[Effect, Counted | None]:
    """What a signal that is accepted did."""
    answer = await engine.signals.deliver(token, name, **options)
    assert isinstance(answer, Accepted)
    return answer.effect, answer.counted


async def test_a_matching_signal_resumes_the_execution(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine, ["go"], Single("go", "approved"), timeout="1h")
    clock.advance("1s")
    before = await engine.executions.describe(wait.id)
    answer = await engine.signals.deliver(wait.token(), "approved", b'{"ok": 1}')
    assert isinstance(answer, Accepted)
    assert (answer.effect, answer.counted) == SATISFIED
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
        "signal": str(answer.signal_id),
    }
    lease = await engine.leases.claim_resumed(wait.id, "worker-2")
    assert (lease.epoch, lease.attempt_index, lease.origin) == (wait.lease.epoch + 2, 0, "resumed")


async def test_a_signal_of_another_name_is_kept_and_does_nothing(engine: Engine) -> None:
    wait = await suspended(engine, ["go"], Single("go", "approved"))
    assert await effect(engine, wait.token(), "rejected") == (Effect.APPENDED, Counted.NOT_MATCHED)
    assert await effect(engine, wait.token(), "Approved") == (Effect.APPENDED, Counted.NOT_MATCHED)
    assert (await engine.executions.describe(wait.id)).state is State.SUSPENDED
    assert await effect(engine, wait.token(), "approved") == SATISFIED
    assert await event_names(engine, wait.id) == [
        "lease.acquired", "lease.suspended", "signal.delivered", "signal.delivered", "signal.delivered",
        "lifecycle.resumed",
    ]  # fmt: skip


async def test_a_wait_without_a_name_takes_any_signal(engine: Engine) -> None:
    wait = await suspended(engine)
    assert await effect(engine, wait.token(), "whatever") == SATISFIED


async def test_two_distinct_sources_are_two_people(engine: Engine) -> None:
    wait = await suspended(engine, ["go"], Count(2, "sources", ["go"]))
    who = [("human", "ada"), ("human", "ada"), ("robot", "ada"), ("human", "bob")]
    answers = []
    for source_type, identity in who[:2]:
        answers.append(await effect(engine, wait.token(), source_type=source_type, source_identity=identity))
    assert answers == [APPENDED, (Effect.APPENDED, Counted.NOTHING_NEW)]
    found = await engine.executions.describe(wait.id)
    assert found.suspension is not None
    assert found.suspension.missing == ("1 more of 2 distinct sources on 'go' (sources on trust)",)
    assert await effect(engine, wait.token(), source_type="human", source_identity="bob") == SATISFIED


async def test_a_quorum_of_approvers_ignores_what_the_sender_claims(engine: Engine) -> None:
    keys = ["ada", "bob", "eve"]
    wait = await suspended(engine, [Fresh(key, approver=key) for key in keys], Count(2, "sources", keys, "yes"))
    assert await effect(engine, wait.token("ada"), "yes", source_identity="ada") == APPENDED
    again = await effect(engine, wait.token("ada"), "yes", source_type="human", source_identity="bob")
    assert again == (Effect.APPENDED, Counted.NOTHING_NEW)
    found = await engine.executions.describe(wait.id)
    assert found.suspension is not None
    assert "trust" not in found.suspension.missing[0]
    assert await effect(engine, wait.token("eve"), "no") == (Effect.APPENDED, Counted.NOT_MATCHED)
    assert await effect(engine, wait.token("eve"), "yes", source_identity="ada") == SATISFIED
    sources = [signal.source for signal in await engine.signals.observe(wait.id)]
    assert sources == ["approver:ada", "approver:eve"]


async def test_a_claimed_source_passes_for_nobody_that_the_engine_vouches_for(engine: Engine) -> None:
    keys = ["ada", "open"]
    wait = await suspended(engine, [Fresh("ada", approver="ada"), "open"], Count(3, "sources", keys))
    await effect(engine, wait.token("ada"))
    await effect(engine, wait.token("open"), source_type="operator", source_identity="operator")
    await engine.signals.approve(wait.id, "open")
    signals = await engine.signals.observe(wait.id)
    assert len({signal.source for signal in signals}) == 3


async def test_distinct_signals_count_ids_and_distinct_waitpoints_count_places(engine: Engine) -> None:
    by_signal = await suspended(engine, ["go"], Count(2, "signals", ["go"]))
    first = new_id()
    assert await effect(engine, by_signal.token(), signal_id=first) == APPENDED
    assert isinstance(await engine.signals.deliver(by_signal.token(), "go", signal_id=first), DuplicateSignal)
    assert await effect(engine, by_signal.token()) == SATISFIED
    keys = ["a", "b", "c"]
    by_place = await suspended(engine, keys, Count(2, "waitpoints", keys))
    assert await effect(engine, by_place.token("a")) == APPENDED
    assert await effect(engine, by_place.token("a")) == (Effect.APPENDED, Counted.NOTHING_NEW)
    assert await effect(engine, by_place.token("c")) == SATISFIED


async def test_all_of_needs_every_member_and_any_of_one(engine: Engine) -> None:
    both = await suspended(engine, ["a", "b"], AllOf([Single("a"), Single("b", "yes")]))
    assert await effect(engine, both.token("b"), "yes") == APPENDED
    assert await effect(engine, both.token("b"), "yes") == (Effect.APPENDED, Counted.NOTHING_NEW)
    assert await effect(engine, both.token("a")) == SATISFIED
    either = await suspended(engine, ["a", "b"], AnyOf([Single("a"), AllOf([Single("b", "x"), Single("b", "y")])]))
    assert await effect(engine, either.token("b"), "x") == APPENDED
    assert await effect(engine, either.token("b"), "y") == SATISFIED


async def test_every_waitpoint_closes_whichever_brought_the_last_signal(engine: Engine) -> None:
    for last, first in (("a", "b"), ("b", "a")):
        wait = await suspended(engine, ["a", "b"])
        await effect(engine, wait.token(first))
        assert await effect(engine, wait.token(last)) == SATISFIED
        assert {item.close_reason for item in await engine.waitpoints.list(wait.id)} == {"resumed"}


async def test_signals_to_an_operators_wait_are_kept_and_not_in_the_condition(engine: Engine) -> None:
    wait = await suspended(engine, ["note"], OperatorOnly())
    assert await effect(engine, wait.token("note")) == (Effect.APPENDED, Counted.NOT_IN_CONDITION)
    assert (await engine.executions.describe(wait.id)).state is State.SUSPENDED
    assert await engine.signals.observe(wait.id) == ()
    assert len(await engine.signals.observe(wait.id, include_unmatched=True)) == 1


async def test_everything_that_the_sender_said_is_kept(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine)
    said = clock.now() - timedelta(days=1)
    id_ = new_id()
    answer = await engine.signals.deliver(
        wait.token(), "paid", b"\x00\xff", encoding="raw", category="webhook", source_type="shop",
        source_identity="shop-7", correlation="order-17", signal_id=id_, key="evt-1", created_at=said,
    )  # fmt: skip
    assert isinstance(answer, Accepted)
    [signal] = await engine.signals.observe(wait.id)
    assert (signal.id, signal.name, signal.payload, signal.encoding) == (id_, "paid", b"\x00\xff", "raw")
    assert (signal.category, signal.source_type, signal.source_identity) == ("webhook", "shop", "shop-7")
    assert (signal.correlation, signal.key, signal.created_at) == ("order-17", "evt-1", said)
    assert (signal.accepted_at, signal.waitpoint, signal.seq) == (clock.now(), "go", 1)


# Repeats.


async def test_a_repeat_answers_the_first_id_whatever_has_happened_since(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    lease = await leased(engine)
    early = await engine.waitpoints.create(lease.fence, "go", expires="1h", token_ends_at=clock.now() + timedelta(1))
    assert early.token is not None
    by_id, by_key = new_id(), "evt-1"
    await engine.signals.deliver(early.token, "one", signal_id=by_id)
    keyed = await engine.signals.deliver(early.token, "two", key=by_key)
    assert isinstance(keyed, Accepted)

    async def repeated() -> None:
        async with nothing_written(store):
            assert await engine.signals.deliver(early.token or "", "x", signal_id=by_id) == DuplicateSignal(by_id)
            again = await engine.signals.deliver(early.token or "", "x", b"other", key=by_key)
            assert again == DuplicateSignal(keyed.signal_id)

    await repeated()
    wait = await suspended(engine, [Pending("go")], Count(3, "signals", ["go"]), lease=lease, timeout="1h")
    await repeated()
    assert await effect(engine, early.token) == SATISFIED
    await repeated()
    resumed = await engine.leases.claim_resumed(wait.id, "worker-2")
    await repeated()
    await engine.leases.complete(resumed.fence)
    await repeated()
    clock.advance("2d")
    await repeated()


async def test_a_key_belongs_to_one_waitpoint_and_an_id_to_one_execution(engine: Engine) -> None:
    wait = await suspended(engine, ["a", "b"], Count(4, "signals", ["a", "b"]))
    id_ = new_id()
    assert await effect(engine, wait.token("a"), key="evt", signal_id=id_) == APPENDED
    assert await effect(engine, wait.token("b"), key="evt") == APPENDED
    assert await engine.signals.deliver(wait.token("b"), "go", signal_id=id_) == DuplicateSignal(id_)
    other = await suspended(engine)
    assert await effect(engine, other.token(), signal_id=id_) == SATISFIED


async def test_without_id_and_key_each_delivery_is_another_signal(engine: Engine) -> None:
    wait = await suspended(engine, ["go"], Count(3, "signals", ["go"]))
    assert [await effect(engine, wait.token()) for _ in range(3)] == [APPENDED, APPENDED, SATISFIED]


async def test_a_signal_never_touches_an_execution_that_does_not_wait_for_it(
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


async def test_a_signal_to_a_pending_waitpoint_is_buffered_whatever_the_execution_does(engine: Engine) -> None:
    lease = await leased(engine)
    early = await engine.waitpoints.create(lease.fence, "later")
    assert early.token is not None
    assert await effect(engine, early.token) == (Effect.BUFFERED, None)
    wait = await suspended(engine, ["go"], lease=lease)
    assert await effect(engine, early.token) == (Effect.BUFFERED, None)
    found = await engine.executions.describe(wait.id)
    assert found.state is State.SUSPENDED
    await engine.operator.resume(wait.id)
    assert await effect(engine, early.token) == (Effect.BUFFERED, None)
    assert (await engine.executions.describe(wait.id)).state is State.WAITING
    assert (await event_names(engine, wait.id)).count("signal.buffered") == 3


# The resume delay.


async def test_the_resume_delay_is_the_signals_own_or_that_of_the_suspension(
    engine: Engine, clock: VirtualClock
) -> None:
    for own, given, expected in ((None, "10s", 10), ("3s", "10s", 3), ("3s", 0, 3)):
        wait = await suspended(engine, resume_delay=given)
        await engine.signals.deliver(wait.token(), "go", resume_delay=own)
        found = await engine.executions.describe(wait.id)
        assert (found.state, found.ready_at) == (State.DELAYED, clock.now() + timedelta(seconds=expected))
        assert found.vector.blocking_reason.value == "waiting_for_resume_delay"
        assert await engine.leases.claim(["default"], "w") == []
        clock.advance(expected - 0.001)
        await engine.reconcilers.tick()
        assert (await engine.executions.describe(wait.id)).state is State.DELAYED
        clock.advance("1ms")
        await engine.reconcilers.tick()
        lease = await engine.leases.claim_resumed(wait.id, "w")
        assert lease.resumption is not None
        assert lease.resumption.suspension_id == wait.suspension
    none = await suspended(engine, resume_delay="10s")
    await engine.signals.deliver(none.token(), "go", resume_delay=0)
    assert (await engine.executions.describe(none.id)).state is State.WAITING


# Limits.


async def test_a_payload_has_at_most_256_kib(engine: Engine, store: TestStore) -> None:
    wait = await suspended(engine, ["go"], Count(2, "signals", ["go"]))
    await engine.signals.deliver(wait.token(), "go", bytes(256 * 1024))
    async with nothing_written(store):
        large = engine.signals.deliver(wait.token(), "go", bytes(256 * 1024 + 1))
        error = await refused(large, "payload_too_large", InvalidRequest)
    assert "262144" in error.message.replace(",", "")


async def test_an_execution_takes_as_many_signals_as_its_policy_allows(engine: Engine, store: TestStore) -> None:
    submit = {"policy": Policy(max_signals=2), "signals": ["mail"]}
    wait = await suspended(engine, ["go"], Count(9, "signals", ["go"]), submit=submit)
    await engine.signals.deliver(wait.token(), "go", key="evt")
    await engine.signals.send(wait.id, "mail")
    async with nothing_written(store):
        for more in (
            engine.signals.deliver(wait.token(), "go"),
            engine.signals.send(wait.id, "mail"),
            engine.signals.approve(wait.id, "go"),
        ):
            await refused(more, "signal_limit_exceeded")
        assert isinstance(await engine.signals.deliver(wait.token(), "go", key="evt"), DuplicateSignal)


async def test_fifty_signals_at_once_resume_exactly_once(engine: Engine) -> None:
    wait = await suspended(engine, ["go"], Count(10, "signals", ["go"]))
    calls = [engine.signals.deliver(wait.token(), "go") for _ in range(50)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    accepted = [answer for answer in answers if isinstance(answer, Accepted)]
    late = [answer for answer in answers if isinstance(answer, Refused)]
    assert [answer.effect for answer in accepted].count(Effect.SATISFIED) == 1
    assert (len(accepted), {error.code for error in late}) == (10, {"waitpoint_closed"})
    assert (await event_names(engine, wait.id)).count("lifecycle.resumed") == 1


@pytest.mark.parametrize("state", ["waiting", "delayed"])
async def test_a_waitpoint_of_a_resumed_execution_is_closed_to_late_signals(
    engine: Engine, store: TestStore, state: str
) -> None:
    wait = await suspended(engine, ["a", "b"], AnyOf([Single("a"), Single("b")]))
    await engine.signals.deliver(wait.token("a"), "go", resume_delay="1m" if state == "delayed" else 0)
    async with nothing_written(store):
        error = await refused(engine.signals.deliver(wait.token("b"), "late"), "waitpoint_closed")
    assert error.fields["state"] == state


async def test_an_execution_that_never_waited_has_nothing_to_signal(engine: Engine) -> None:
    id_ = await submitted(engine)
    error = await error_of(engine.signals.approve(id_, "go"))
    assert error.code == "waitpoint_not_found"


def new_id() -> UUID:
    """A fresh id as a client mints it."""
    return IdMinter(lambda: 1_900_000_000_000, random.Random().getrandbits).mint()
