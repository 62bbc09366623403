"""Test races between a signal and every other event that ends a wait, in both orders.

A wait ends once, and no accepted signal is lost.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from flowfabric.engine import (
    Accepted,
    AlreadySatisfied,
    AnyOf,
    Count,
    Effect,
    Ended,
    Engine,
    NewWaitpoint,
    PendingWaitpoint,
    Refused,
    Resumed,
    Satisfied,
    Single,
    StandingWaitpoint,
    State,
    Suspended,
    Timer,
    Trigger,
    WaitpointClosed,
)
from flowfabric.testing import VirtualClock
from tests.concurrency.gates import block_writes, wait_until_engines_blocked
from tests.concurrency.wait_soundness import assert_waits_sound
from tests.concurrency.waits import code_of, duty, names_of, run_in_forced_order, state_of, suspended, swap_results
from tests.scenarios import leased
from tests.stores import TestStore, opened

BOTH_ORDERS = pytest.mark.parametrize("signal_first", [True, False], ids=["signal first", "signal second"])
SENDERS = 50


@pytest.fixture
def later(clock: VirtualClock) -> VirtualClock:
    """The clock of the rival. It is 20 seconds ahead, so timeouts have passed."""
    ahead = VirtualClock(clock.now())
    ahead.advance("20s")
    return ahead


@pytest.fixture
async def rival(store: TestStore, engine: Engine, later: VirtualClock) -> AsyncIterator[Engine]:
    """A second engine on the same store with separate connections and its own clock."""
    async with opened(store, later) as rival:
        yield rival


@pytest.fixture
async def senders(store: TestStore, engine: Engine, clock: VirtualClock) -> AsyncIterator[list[Engine]]:
    """Yield one engine for each of fifty senders, so that no two of them share a batch or a connection."""
    async with AsyncExitStack() as closing:
        sides = [opened(store, clock, pool_size=1) for _ in range(SENDERS)]
        yield list(await asyncio.gather(*map(closing.enter_async_context, sides)))


@pytest.mark.parametrize("required", [1, 20, SENDERS])
async def test_one_of_fifty_concurrent_signals_resumes_and_none_is_lost(
    store: TestStore, engine: Engine, senders: list[Engine], required: int
) -> None:
    wait = await suspended(engine, condition=Count(required, "signals", ["boss"]))
    async with block_writes(store, wait.id):
        sending = [asyncio.ensure_future(wait.signal()(side)) for side in senders]
        await wait_until_engines_blocked(store, senders)
    results = await asyncio.gather(*sending, return_exceptions=True)
    accepted = [result for result in results if isinstance(result, Accepted)]
    assert Counter(result.effect for result in accepted) == Counter(
        {Effect.APPENDED: required - 1, Effect.SATISFIED: 1} if required > 1 else {Effect.SATISFIED: 1}
    )
    assert Counter(code_of(result) for result in results if not isinstance(result, Accepted)) == Counter(
        {"waitpoint_closed": SENDERS - required} if required < SENDERS else {}
    )
    assert await names_of(engine, wait.id) == ["delivered"] * required + ["resumed"]
    assert [signal.id for signal in await engine.signals.list(wait.id)]
    assert len(await engine.signals.list(wait.id, include_unmatched=True)) == required
    assert await state_of(engine, wait.id) == "waiting"
    await assert_waits_sound(store, [result.signal_id for result in accepted])


async def test_one_of_fifty_concurrent_deliveries_of_a_signal_is_accepted(
    store: TestStore, engine: Engine, senders: list[Engine]
) -> None:
    wait = await suspended(engine)
    async with block_writes(store, wait.id):
        sending = [asyncio.ensure_future(wait.signal(key="once")(side)) for side in senders]
        await wait_until_engines_blocked(store, senders)
    results = await asyncio.gather(*sending)
    assert Counter(type(result).__name__ for result in results) == {"Accepted": 1, "DuplicateSignal": SENDERS - 1}
    assert len({result.signal_id for result in results}) == 1
    await assert_waits_sound(store, [results[0].signal_id])


@BOTH_ORDERS
@pytest.mark.parametrize("standing", [False, True], ids=["pending", "standing"])
async def test_concurrent_signal_and_suspend_are_both_seen(
    store: TestStore, engine: Engine, rival: Engine, signal_first: bool, standing: bool
) -> None:
    lease = await leased(engine, signals=["boss"])
    binding = StandingWaitpoint("boss") if standing else PendingWaitpoint("chief")
    handed = await engine.waitpoints.create(lease.fence, binding.key)
    assert handed.token is not None
    token = handed.token
    signal = (rival, lambda side: side.signals.deliver(token, "go"))
    suspend = (engine, lambda side: side.leases.suspend(lease.fence, [binding]))
    if signal_first:
        sent, waited = await run_in_forced_order(store, signal, suspend)
        assert isinstance(waited, Satisfied)
        assert (sent.effect, waited.by) == (Effect.BUFFERED, Trigger.SIGNALS)
        assert [item.id for item in waited.signals] == [sent.signal_id]
        assert await state_of(engine, lease.execution_id) == "active"
        await engine.leases.renew(lease.fence)
    else:
        waited, sent = await run_in_forced_order(store, suspend, signal)
        assert (type(waited), sent.effect) == (Suspended, Effect.SATISFIED)
        assert await state_of(engine, lease.execution_id) == "waiting"
    assert Counter(await names_of(engine, lease.execution_id))["resumed"] == 1
    await assert_waits_sound(store, [sent.signal_id])


AFTER_TIMEOUT = {
    "fail": ("failed", "target_not_signalable"),
    "cancel": ("cancelled", "target_not_signalable"),
    "expire": ("expired", "target_not_signalable"),
    "auto_resume": ("waiting", "waitpoint_closed"),
}


@BOTH_ORDERS
@pytest.mark.parametrize("on_timeout", AFTER_TIMEOUT)
async def test_signal_precedes_the_timeout_or_is_refused(
    store: TestStore, engine: Engine, rival: Engine, signal_first: bool, on_timeout: str
) -> None:
    wait = await suspended(engine, timeout="10s", on_timeout=on_timeout)
    state, code = AFTER_TIMEOUT[on_timeout]
    if signal_first:
        sent, _ = await run_in_forced_order(
            store, (engine, wait.signal()), (rival, duty("suspension_timeout")), skips=True
        )
        assert await duty("suspension_timeout")(rival) == 0
        assert sent.effect is Effect.SATISFIED
        assert await state_of(engine, wait.id) == "waiting"
        assert await names_of(engine, wait.id) == ["delivered", "resumed"]
    else:
        done, sent = await run_in_forced_order(store, (rival, duty("suspension_timeout")), (engine, wait.signal()))
        assert (done, await state_of(engine, wait.id)) == (1, state)
        # On SQLite all engines see at least the time that the duty wrote, so the token may have expired for the sender
        # too.
        assert code_of(sent) in (code, "token_expired")
        assert len(await names_of(engine, wait.id)) == 1
    await assert_waits_sound(store)


@BOTH_ORDERS
async def test_signal_ends_a_wait_before_and_after_escalation(
    store: TestStore, engine: Engine, rival: Engine, later: VirtualClock, signal_first: bool
) -> None:
    lease = await leased(engine, signals=["boss"])
    id_ = lease.execution_id
    await engine.leases.suspend(lease.fence, [StandingWaitpoint("boss")], timeout="10s", on_timeout="escalate")
    async with opened(store, later) as third:
        signal, escalate = (third, lambda side: side.signals.send(id_, "boss")), (rival, duty("suspension_timeout"))
        if signal_first:
            sent, _ = await run_in_forced_order(store, signal, escalate, skips=True)
            assert await duty("suspension_timeout")(rival) == 0
        else:
            done, sent = await run_in_forced_order(store, escalate, signal)
            assert done == 1
    assert sent.effect is Effect.SATISFIED
    assert await state_of(engine, id_) == "waiting"
    await assert_waits_sound(store, [sent.signal_id])


async def test_two_processes_apply_a_suspension_timeout_once(
    store: TestStore, engine: Engine, rival: Engine, later: VirtualClock
) -> None:
    waits = [await suspended(engine, timeout="10s", on_timeout="auto_resume") for _ in range(5)]
    async with opened(store, later) as third:
        done = await run_in_forced_order(
            store, (rival, duty("suspension_timeout")), (third, duty("suspension_timeout")), skips=True
        )
        assert (done, await duty("suspension_timeout")(third)) == ((5, 0), 0)
    for wait in waits:
        assert await names_of(engine, wait.id) == ["resumed"]
        assert [signal.name for signal in await engine.signals.list(wait.id)] == ["timeout"]
    await assert_waits_sound(store)


@BOTH_ORDERS
async def test_signal_precedes_a_cancel_or_is_refused(
    store: TestStore, engine: Engine, rival: Engine, signal_first: bool
) -> None:
    wait = await suspended(engine)
    signal, cancel = (engine, wait.signal()), (rival, lambda side: side.operator.cancel(wait.id))
    if signal_first:
        sent, ended = await run_in_forced_order(store, signal, cancel)
        assert sent.effect is Effect.SATISFIED
        assert await names_of(engine, wait.id) == ["delivered", "resumed", "cancelled"]
    else:
        ended, sent = await run_in_forced_order(store, cancel, signal)
        assert code_of(sent) == "target_not_signalable"
        assert await names_of(engine, wait.id) == ["cancelled"]
    assert ended == Ended(State.CANCELLED)
    await assert_waits_sound(store)


@BOTH_ORDERS
@pytest.mark.parametrize("seen", [True, False], ids=["this suspension", "any suspension"])
async def test_either_a_signal_or_an_operator_resumes(
    store: TestStore, engine: Engine, rival: Engine, signal_first: bool, seen: bool
) -> None:
    wait = await suspended(engine)
    which: dict[str, Any] = {"suspension": wait.suspension_id} if seen else {}
    signal, resume = (engine, wait.signal()), (rival, lambda side: side.operator.resume(wait.id, **which))
    if signal_first:
        sent, resumed = await run_in_forced_order(store, signal, resume)
        assert sent.effect is Effect.SATISFIED
        closed = AlreadySatisfied("suspension_closed")
        assert resumed == closed if seen else code_of(resumed) == "execution_not_suspended"
        assert await names_of(engine, wait.id) == ["delivered", "resumed"]
    else:
        resumed, sent = await run_in_forced_order(store, resume, signal)
        assert (type(resumed), code_of(sent)) == (Resumed, "waitpoint_closed")
        assert await names_of(engine, wait.id) == ["resumed"]
    assert await state_of(engine, wait.id) == "waiting"
    await assert_waits_sound(store)


@BOTH_ORDERS
async def test_signal_survives_the_loss_of_the_resumed_lease(
    store: TestStore, engine: Engine, rival: Engine, later: VirtualClock, signal_first: bool
) -> None:
    wait = await suspended(engine)
    await wait.signal()(engine)
    second = await engine.leases.claim_resumed(wait.id, "w", lease_ttl="10s")
    handed = await engine.waitpoints.create(second.fence, "next")
    token = handed.token
    assert token is not None
    signal = (engine, lambda side: side.signals.deliver(token, "go"))
    expire = (rival, duty("lease_expiry"))
    if signal_first:
        sent, _ = await run_in_forced_order(store, signal, expire, skips=True)
        later.advance("1s")
        await rival.reconcilers.tick()
    else:
        _, sent = await run_in_forced_order(store, expire, signal)
    assert sent.effect is Effect.BUFFERED
    assert await state_of(engine, wait.id) == "waiting"
    third = await rival.leases.claim_execution(wait.id, "w2")
    assert third.epoch > second.epoch
    waited = await rival.leases.suspend(third.fence, [PendingWaitpoint("next")])
    assert isinstance(waited, Satisfied)
    assert [item.id for item in waited.signals] == [sent.signal_id]
    await assert_waits_sound(store, [sent.signal_id])


@BOTH_ORDERS
async def test_suspend_precedes_the_revoke_of_its_lease_or_is_refused(
    store: TestStore, engine: Engine, rival: Engine, signal_first: bool
) -> None:
    lease = await leased(engine)
    suspend = (engine, lambda side: side.leases.suspend(lease.fence, ["boss"]))
    revoke = (rival, lambda side: side.operator.revoke_lease(lease.execution_id))
    if signal_first:
        waited, revoked = await run_in_forced_order(store, suspend, revoke)
        assert (type(waited), revoked) == (Suspended, AlreadySatisfied("no_active_lease"))
        assert await state_of(engine, lease.execution_id) == "suspended"
    else:
        revoked, waited = await run_in_forced_order(store, revoke, suspend)
        assert code_of(waited) == "lease_revoked"
        assert await state_of(engine, lease.execution_id) == "waiting"
        assert await engine.waitpoints.list(lease.execution_id) == []
    await assert_waits_sound(store)


@BOTH_ORDERS
async def test_either_a_timer_or_a_signal_resumes(
    store: TestStore, engine: Engine, rival: Engine, clock: VirtualClock, signal_first: bool
) -> None:
    at = VirtualClock(clock.now())
    at.advance("10s")
    either = AnyOf([Single("boss"), Single("alarm")])
    wait = await suspended(engine, NewWaitpoint("boss"), Timer("alarm", at.now()), condition=either)
    signal, fire = (engine, wait.signal()), (rival, duty("timers"))
    if signal_first:
        sent, _ = await run_in_forced_order(store, signal, fire, skips=True)
        assert await duty("timers")(rival) == 0
        assert sent.effect is Effect.SATISFIED
    else:
        fired, sent = await run_in_forced_order(store, fire, signal)
        assert (fired, code_of(sent)) == (1, "waitpoint_closed")
    assert await names_of(engine, wait.id) == ["delivered", "resumed"]
    assert [item.name for item in await engine.signals.list(wait.id)] == ["go" if signal_first else "timer"]
    await assert_waits_sound(store)


@BOTH_ORDERS
async def test_signal_precedes_the_close_of_its_waitpoint_or_is_refused(
    store: TestStore, engine: Engine, rival: Engine, signal_first: bool
) -> None:
    wait = await suspended(engine, condition=Count(2, "signals", ["boss"]))
    [waitpoint] = await engine.waitpoints.list(wait.id)
    signal, close = (engine, wait.signal()), (rival, lambda side: side.waitpoints.close(waitpoint.id))
    if signal_first:
        sent, closed = await run_in_forced_order(store, signal, close)
        assert sent.effect is Effect.APPENDED
        assert await names_of(engine, wait.id) == ["delivered", "waitpoint_closed"]
    else:
        closed, sent = await run_in_forced_order(store, close, signal)
        assert isinstance(sent, Refused)
        assert code_of(sent) == "waitpoint_closed"
        assert await names_of(engine, wait.id) == ["waitpoint_closed"]
    assert closed == WaitpointClosed(waitpoint.id, already=False)
    assert await state_of(engine, wait.id) == "suspended"
    await assert_waits_sound(store)


@BOTH_ORDERS
async def test_resuming_signal_and_waitpoint_close_agree_on_their_order(
    store: TestStore, engine: Engine, rival: Engine, signal_first: bool
) -> None:
    wait = await suspended(engine)
    [waitpoint] = await engine.waitpoints.list(wait.id)
    signal, close = (engine, wait.signal()), (rival, lambda side: side.waitpoints.close(waitpoint.id))
    sent, closed = await (
        run_in_forced_order(store, signal, close)
        if signal_first
        else swap_results(run_in_forced_order(store, close, signal))
    )
    assert code_of(sent) == ("Accepted" if signal_first else "waitpoint_closed")
    assert closed == WaitpointClosed(waitpoint.id, already=signal_first)
    assert await state_of(engine, wait.id) == ("waiting" if signal_first else "suspended")
    await assert_waits_sound(store)


@BOTH_ORDERS
async def test_pending_waitpoint_is_bound_before_it_expires_or_not_at_all(
    store: TestStore, engine: Engine, rival: Engine, signal_first: bool
) -> None:
    lease = await leased(engine)
    await engine.waitpoints.create(lease.fence, "boss", expires="10s")
    suspend = (engine, lambda side: side.leases.suspend(lease.fence, [PendingWaitpoint("boss")]))
    expire = (rival, duty("waitpoint_expiry"))
    if signal_first:
        waited, _ = await run_in_forced_order(store, suspend, expire, skips=True)
        assert await duty("waitpoint_expiry")(rival) == 0
        assert isinstance(waited, Suspended)
        [found] = await engine.waitpoints.list(lease.execution_id)
        assert found.state == "active"
    else:
        done, waited = await run_in_forced_order(store, expire, suspend)
        assert (done, waited.code) == (1, "waitpoint_not_found")
        assert await state_of(engine, lease.execution_id) == "active"
    await assert_waits_sound(store)
