"""Tests of send, which signals a standing waitpoint that is declared by name at submit."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from flowfabric.core.errors import Conflict
from flowfabric.core.executions.outcomes import Satisfied
from flowfabric.engine import (
    Accepted,
    AllOf,
    AnyOf,
    Count,
    Counted,
    Duplicate,
    DuplicateSignal,
    Effect,
    Engine,
    Lease,
    NotFound,
    Single,
    StandingWaitpoint,
    State,
    Submission,
    Suspended,
    WaitpointKind,
    WaitpointState,
)
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written, refused
from tests.scenarios import leased, submitted, suspended
from tests.stores import TestStore


async def receive_mail(engine: Engine, lease: Lease) -> str:
    """Return the payload of the next mail, which must already be stored."""
    outcome = await engine.leases.suspend(lease.fence, [StandingWaitpoint("mail")])
    assert isinstance(outcome, Satisfied)
    [signal] = outcome.signals
    return signal.payload.decode()


async def test_standing_waitpoint_is_open_from_submit(engine: Engine) -> None:
    id_ = await submitted(engine, signals=["mail", "stop"])
    waitpoints = (await engine.executions.describe(id_)).waitpoints
    assert [(waitpoint.key, waitpoint.kind, waitpoint.state, waitpoint.fingerprint) for waitpoint in waitpoints] == [
        ("mail", WaitpointKind.STANDING, WaitpointState.PENDING, None),
        ("stop", WaitpointKind.STANDING, WaitpointState.PENDING, None),
    ]
    outcome = await engine.signals.send(id_, "mail", b"1")
    assert isinstance(outcome, Accepted)
    assert (outcome.effect, outcome.counted) == (Effect.BUFFERED, None)


async def test_signals_are_kept_in_order_and_each_is_used_by_one_wait(engine: Engine) -> None:
    lease = await leased(engine, signals=["mail"])
    for number in range(3):
        await engine.signals.send(lease.execution_id, "mail", str(number).encode())
    assert [await receive_mail(engine, lease) for _ in range(3)] == ["0", "1", "2"]
    wait = await suspended(engine, [StandingWaitpoint("mail")], lease=lease)
    outcome = await engine.signals.send(wait.id, "mail", b"3")
    assert isinstance(outcome, Accepted)
    assert outcome.effect is Effect.SATISFIED
    later = await engine.leases.claim_resumed(wait.id, "worker-2")
    await engine.signals.send(wait.id, "mail", b"4")
    assert await receive_mail(engine, later) == "4"


async def test_signals_not_used_by_a_wait_stay_for_the_next_one(engine: Engine) -> None:
    lease = await leased(engine, signals=["mail"])
    wait = await suspended(
        engine, [StandingWaitpoint("mail"), "go"], AllOf([Single("mail"), Single("go")]), lease=lease
    )
    outcomes = [await engine.signals.send(wait.id, "mail", str(number).encode()) for number in range(2)]
    assert [getattr(outcome, "counted", None) for outcome in outcomes] == [Counted.YES, Counted.NOTHING_NEW]
    await engine.signals.deliver(wait.token(), "go")
    assert [signal.payload for signal in await engine.signals.list(wait.id)] == [b"0", b""]
    later = await engine.leases.claim_resumed(wait.id, "worker-2")
    assert await receive_mail(engine, later) == "1"


async def test_counted_but_unneeded_signals_are_not_lost(engine: Engine, clock: VirtualClock) -> None:
    for ending in ("operator", "timeout", "other member"):
        lease = await leased(engine, signals=["mail"])
        condition = AnyOf([Count(2, "signals", ["mail"]), Single("go")])
        wait = await suspended(
            engine, [StandingWaitpoint("mail"), "go"], condition, lease=lease, timeout="1m", on_timeout="auto_resume"
        )
        await engine.signals.send(wait.id, "mail", b"kept")
        if ending == "operator":
            await engine.operator.resume(wait.id)
        elif ending == "timeout":
            clock.advance("1m")
            await engine.reconcilers.tick()
        else:
            await engine.signals.deliver(wait.token(), "go")
        later = await engine.leases.claim_resumed(wait.id, "worker-2")
        assert await receive_mail(engine, later) == "kept", ending


async def test_resume_does_not_close_a_standing_waitpoint_and_the_end_does(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine, signals=["mail"])
    first = await engine.signals.send(lease.execution_id, "mail", key="evt")
    for number in range(3):
        wait = await suspended(engine, [StandingWaitpoint("mail"), f"k{number}"], lease=lease)
        await engine.operator.resume(wait.id)
        lease = await engine.leases.claim_resumed(wait.id, "worker-2")
        [mail] = (await engine.executions.describe(wait.id)).waitpoints
        assert (mail.key, mail.state) == ("mail", WaitpointState.PENDING)
    await engine.leases.complete(lease.fence)
    async with nothing_written(store):
        duplicate = await engine.signals.send(lease.execution_id, "mail", key="evt")
        assert duplicate == DuplicateSignal(first.signal_id)
        await refused(engine.signals.send(lease.execution_id, "mail"), "target_not_signalable")


async def test_only_a_declared_name_can_receive_a_sent_signal(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine, signals=["mail"])
    await engine.waitpoints.create(lease.fence, "early")
    async with nothing_written(store):
        for name in ("early", "unknown"):
            await refused(engine.signals.send(lease.execution_id, name), "waitpoint_not_found", NotFound)


async def test_execution_that_waits_on_another_waitpoint_is_not_resumed(engine: Engine) -> None:
    wait = await suspended(engine, submit={"signals": ["mail"]})
    outcome = await engine.signals.send(wait.id, "mail")
    assert isinstance(outcome, Accepted)
    assert outcome.effect is Effect.BUFFERED
    assert (await engine.executions.describe(wait.id)).state is State.SUSPENDED


async def test_token_of_a_standing_waitpoint_delivers_signals_of_any_name(engine: Engine) -> None:
    lease = await leased(engine, signals=["mail"])
    waitpoint = await engine.waitpoints.create(lease.fence, "mail")
    wait = await suspended(engine, [StandingWaitpoint("mail")], Single("mail", "urgent"), lease=lease)
    assert waitpoint.token is not None
    assert wait.token("mail") == waitpoint.token
    await engine.signals.deliver(waitpoint.token, "dull")
    await engine.signals.deliver(waitpoint.token, "urgent")
    later = await engine.leases.claim_resumed(wait.id, "worker-2")
    outcome = await engine.leases.suspend(later.fence, [StandingWaitpoint("mail")])
    assert isinstance(outcome, Satisfied), "the first signal is still queued"
    assert [signal.name for signal in outcome.signals] == ["dull"]


async def test_signal_id_takes_precedence_over_key_for_duplicates(engine: Engine) -> None:
    """A signal's id is checked before its key, as for signals that are delivered by token."""
    id_ = await submitted(engine, signals=["go"])
    first, second = UUID(int=1), UUID(int=2)
    await engine.signals.send(id_, "go", signal_id=first, key="once")
    await engine.signals.send(id_, "go", signal_id=second)
    assert await engine.signals.send(id_, "go", signal_id=second, key="once") == DuplicateSignal(second)


async def test_repeated_submit_declares_no_waitpoint_twice_and_other_names_conflict(
    engine: Engine, store: TestStore
) -> None:
    id_ = await submitted(engine, signals=["mail"], key="once")
    async with nothing_written(store):
        assert await engine.executions.submit("job", b"in", signals=["mail"], key="once") == Duplicate(id_)
        conflicting = engine.executions.submit("job", b"in", signals=["post"], key="once")
        await refused(conflicting, "idempotency_mismatch", Conflict)


async def test_submissions_of_a_batch_declare_their_own_waitpoints(engine: Engine) -> None:
    outcomes = await engine.executions.submit_many(
        [Submission(kind="a"), Submission(kind="b", signals=["x"]), Submission(kind="c", signals=["y", "x"])]
    )
    keys = []
    for outcome in outcomes:
        assert not isinstance(outcome, Exception)
        keys.append([waitpoint.key for waitpoint in (await engine.executions.describe(outcome.id)).waitpoints])
    assert keys == [[], ["x"], ["x", "y"]]


async def test_standing_waitpoint_does_not_expire_with_a_wait(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, signals=["mail"])
    wait = await suspended(engine, [StandingWaitpoint("mail")], lease=lease, timeout="1m", on_timeout="auto_resume")
    clock.advance("1m")
    await engine.reconcilers.tick()
    clock.advance("1d")
    await engine.reconcilers.tick()
    assert isinstance(await engine.signals.send(wait.id, "mail"), Accepted)
    later = await engine.leases.claim_resumed(wait.id, "worker-2")
    assert await receive_mail(engine, later) == ""
    assert isinstance(await engine.leases.suspend(later.fence, [StandingWaitpoint("mail")]), Suspended)


@pytest.mark.parametrize("key", [None, "once"])
async def test_undeclared_signal_goes_to_the_oldest_open_wait(engine: Engine, key: str | None) -> None:
    wait = await suspended(engine, ["b/signal:paid#2", "signal:paid", "signal:paid_back"], lease=await leased(engine))
    outcome = await engine.signals.send(wait.id, "paid", b"1", key=key, or_wait=True)
    assert isinstance(outcome, Accepted)
    oldest = min(
        (waitpoint for waitpoint in await engine.waitpoints.list(wait.id) if waitpoint.key != "signal:paid_back"),
        key=lambda waitpoint: waitpoint.id,
    )
    [signal] = await engine.signals.list(wait.id, include_unmatched=True)
    assert (signal.id, signal.waitpoint, signal.payload) == (outcome.signal_id, oldest.key, b"1")
    assert (signal.category, signal.source_type, signal.source_identity) == ("approval", "operator", "program")
    assert signal.key == (None if key is None else "approval\npaid\nonce")


@pytest.mark.parametrize("key", [None, "once"])
async def test_declared_signal_is_preferred_to_an_open_wait(engine: Engine, key: str | None) -> None:
    lease = await leased(engine, signals=["paid"])
    wait = await suspended(engine, ["signal:paid"], lease=lease)
    outcome = await engine.signals.send(wait.id, "paid", key=key, or_wait=True)
    assert isinstance(outcome, Accepted)
    assert outcome.effect is Effect.BUFFERED
    assert (await engine.executions.describe(wait.id)).state is State.SUSPENDED


@pytest.mark.parametrize("key", [None, "once"])
async def test_signal_without_declaration_and_wait_is_not_expected(
    engine: Engine, store: TestStore, key: str | None
) -> None:
    wait = await suspended(engine, ["paid", "signal:paid_back", "xsignal:paid"])
    ended = await leased(engine)
    await engine.leases.complete(ended.fence)
    async with nothing_written(store):
        for id_ in (wait.id, ended.execution_id):
            send = engine.signals.send(id_, "paid", key=key, or_wait=True)
            await refused(send, "signal_not_expected", NotFound)
        unknown = engine.signals.send(UUID(int=7), "paid", key=key, or_wait=True)
        await refused(unknown, "execution_not_found", NotFound)


async def test_repeat_to_a_wait_that_is_over_is_a_duplicate_whatever_waits_now(
    engine: Engine, store: TestStore
) -> None:
    wait = await suspended(engine, ["signal:paid"])
    first = await engine.signals.send(wait.id, "paid", key="once", or_wait=True)
    for state in ("resumed", "suspended again", "ended"):
        async with nothing_written(store):
            repeat = await engine.signals.send(wait.id, "paid", key="once", or_wait=True)
        assert repeat == DuplicateSignal(first.signal_id), state
        lease = await engine.leases.claim_resumed(wait.id, "worker-2")
        if state == "resumed":
            await suspended(engine, ["signal:paid#2"], lease=lease)
            async with nothing_written(store):
                again = await engine.signals.send(wait.id, "paid", key="once", or_wait=True)
            assert again == DuplicateSignal(first.signal_id)
            await engine.operator.resume(wait.id)
        else:
            await engine.leases.complete(lease.fence)
            break


async def test_approval_and_signal_with_the_same_key_are_one(engine: Engine) -> None:
    condition = Count(2, "signals", ["signal:paid"])
    wait = await suspended(engine, ["signal:paid"], condition)
    first = await engine.signals.approve(wait.id, "signal:paid", "paid", suffix="once")
    repeat = await engine.signals.send(wait.id, "paid", key="once", or_wait=True)
    assert repeat == DuplicateSignal(first.signal_id)


async def test_signals_of_one_batch_find_declarations_and_waits(engine: Engine) -> None:
    declared = await submitted(engine, signals=["paid"])
    waits = [await suspended(engine, ["signal:paid"]) for _ in range(2)]
    idle = await submitted(engine)
    ids = [declared, idle, *(wait.id for wait in waits)]
    outcomes = await asyncio.gather(
        *(engine.signals.send(id_, "paid", key=key, or_wait=True) for id_ in ids for key in (None, "k")),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes[:4]] == [Accepted, Accepted, NotFound, NotFound]
    # Each suspended execution was sent two signals. The first one ends the wait, so the second finds no wait.
    for pair in (outcomes[4:6], outcomes[6:]):
        assert {type(outcome) for outcome in pair} == {Accepted, NotFound}
