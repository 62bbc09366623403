"""Test that a bad, stale or busy suspend or signal in a batch does not affect the other items."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from flowfabric.core.waits.suspend import Suspend
from flowfabric.engine import (
    Accepted,
    Count,
    Effect,
    Engine,
    Lease,
    NewWaitpoint,
    PendingWaitpoint,
    Secret,
    State,
    Step,
    Submission,
)
from flowfabric.engine.batcher import run_batch
from flowfabric.engine.lease_requests import suspend_request
from flowfabric.store.ports import Body, Store
from tests.concurrency.test_batcher import locked_row
from tests.concurrency.wait_soundness import assert_waits_sound
from tests.concurrency.waits import Wait, state_of, suspended
from tests.scenarios import leased
from tests.stores import PostgresTestStore, TestStore

STEPS = (Step("one", b"1"),)
BAD = 2
Spoil = Callable[[Engine, Lease], Awaitable[Any]]


async def revoked(engine: Engine, lease: Lease) -> dict[str, Any]:
    await engine.operator.revoke_lease(lease.execution_id)
    return {}


async def contradicting(engine: Engine, lease: Lease) -> dict[str, Any]:
    await engine.leases.checkpoint(lease.fence, [Step("two", b"first")])
    return {"steps": [Step("one", b"1"), Step("two", b"second")]}


async def cancelled(engine: Engine, lease: Lease) -> dict[str, Any]:
    await engine.operator.cancel(lease.execution_id)
    return {}


async def unknown_waitpoint(engine: Engine, lease: Lease) -> dict[str, Any]:
    return {"waitpoints": [PendingWaitpoint("nobody")]}


async def other_approver(engine: Engine, lease: Lease) -> dict[str, Any]:
    await engine.waitpoints.create(lease.fence, "boss", approver="anna")
    return {"waitpoints": [NewWaitpoint("boss", approver="berta")]}


async def other_content(engine: Engine, lease: Lease) -> dict[str, Any]:
    await engine.waitpoints.create(lease.fence, "early")
    token = (await engine.waitpoints.create(lease.fence, "early")).token
    assert token is not None
    await engine.signals.deliver(token, "go")
    await engine.leases.suspend(lease.fence, [PendingWaitpoint("early")], key="k")
    return {"key": "k"}


# What makes a suspend fail, with the error code that its caller gets.
SPOILED: dict[str, tuple[Spoil, str]] = {
    "stale": (revoked, "lease_revoked"),
    "ended": (cancelled, "execution_not_active"),
    "contradicting step": (contradicting, "step_already_recorded"),
    "no such waitpoint": (unknown_waitpoint, "waitpoint_not_found"),
    "another approver": (other_approver, "waitpoint_already_exists"),
    "a key with different content": (other_content, "idempotency_mismatch"),
}


@pytest.mark.parametrize("spoiled", SPOILED)
async def test_bad_suspend_is_refused_alone(store: TestStore, engine: Engine, spoiled: str) -> None:
    spoil, code = SPOILED[spoiled]
    leases = [await leased(engine) for _ in range(5)]
    options = await spoil(engine, leases[BAD])
    each = [options if place == BAD else {"steps": STEPS} for place in range(5)]
    calls = [suspend(engine, lease, **more) for lease, more in zip(leases, each, strict=True)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert codes_of(results) == [code if place == BAD else "Suspended" for place in range(5)]
    for place, lease in enumerate(leases):
        names = [step.name for step in await engine.executions.steps(lease.execution_id)]
        assert ("one" in names) == (place != BAD)
        if place != BAD:
            assert await state_of(engine, lease.execution_id) == "suspended"
    await assert_waits_sound(store)


@pytest.mark.parametrize("spoiled", SPOILED)
async def test_bad_suspend_in_one_call_is_refused_at_its_position(
    store: TestStore, engine: Engine, spoiled: str
) -> None:
    spoil, code = SPOILED[spoiled]
    bad, good, gone = [await leased(engine) for _ in range(3)]
    elsewhere = replace(gone, fence=replace(gone.fence, execution_id=uuid4()))
    # A failed batch is split in half. The bad item runs without another valid item in its half, because the item next
    # to it names an unknown execution.
    items = [item_of(engine, bad, **await spoil(engine, bad)), item_of(engine, elsewhere), item_of(engine, good)]
    context = engine._context
    results = await run_batch(context.store, engine.namespace, context.waits.suspend, items)
    assert codes_of(results) == [code, "execution_not_found", "Suspended"]
    await assert_waits_sound(store)


async def test_bad_signal_is_refused_alone(store: TestStore, engine: Engine) -> None:
    waits = [await suspended(engine) for _ in range(6)]
    await waits[1].signal()(engine)
    await engine.operator.cancel(waits[2].id)
    token = waits[3].token.reveal()
    forged = Secret(token[:-1] + ("A" if token[-1] != "A" else "B"))
    waits[3] = replace(waits[3], token=forged)
    calls = [wait.signal()(engine) for wait in waits]
    results = await asyncio.gather(*calls, return_exceptions=True)
    closed, ended = "waitpoint_closed", "target_not_signalable"
    assert codes_of(results) == ["Accepted", closed, ended, "invalid_token", "Accepted", "Accepted"]
    await assert_waits_sound(store, [result.signal_id for result in results if isinstance(result, Accepted)])


async def test_forged_token_delays_no_genuine_signal(store: TestStore, engine: Engine) -> None:
    wait, forged = await genuine_and_forged(engine)
    stalling: Any = StallingStore(engine._context.store)
    side = Engine(replace(engine._context, store=stalling, batchers={}))
    refusals = [asyncio.ensure_future(forged.signal()(side)) for _ in range(3)]
    await stalling.asked.wait()
    sent = await asyncio.wait_for(asyncio.gather(*(wait.signal()(side) for _ in range(3))), timeout=10)
    assert codes_of(sent) == ["Accepted"] * 3
    assert not any(refusal.done() for refusal in refusals), "the forged tokens were checked too early"
    stalling.may_go_on.set()
    assert codes_of(await asyncio.gather(*refusals, return_exceptions=True)) == ["invalid_token"] * 3
    await assert_waits_sound(store, [result.signal_id for result in sent])


async def test_forged_and_genuine_tokens_of_one_execution_are_distinguished(store: TestStore, engine: Engine) -> None:
    wait, forged = await genuine_and_forged(engine)
    calls = [(forged if place % 2 else wait).signal()(engine) for place in range(20)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert codes_of(results) == ["Accepted", "invalid_token"] * 10
    await assert_waits_sound(store, [result.signal_id for result in results if isinstance(result, Accepted)])


async def test_one_id_or_key_for_several_executions_is_several_signals(store: TestStore, engine: Engine) -> None:
    waits = [await suspended(engine) for _ in range(4)]
    id_ = uuid4()
    calls = [wait.signal(signal_id=id_, key="same")(engine) for wait in (*waits, *waits)]
    results = await asyncio.gather(*calls)
    assert codes_of(results) == ["Accepted"] * 4 + ["DuplicateSignal"] * 4
    assert {result.signal_id for result in results} == {id_}
    await assert_waits_sound(store, [id_])


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_locked_row_delays_no_other_suspend_or_signal(store: PostgresTestStore, engine: Engine) -> None:
    leases = [await leased(engine) for _ in range(4)]
    async with locked_row(store, leases[1]):
        calls = [asyncio.create_task(suspend(engine, lease)) for lease in leases]
        free = [calls[place] for place in (0, 2, 3)]
        assert codes_of(await asyncio.wait_for(asyncio.gather(*free), timeout=10)) == ["Suspended"] * 3
        assert not calls[1].done()
    waited = [await call for call in calls]
    tokens = [result.token("boss") for result in waited]
    async with locked_row(store, leases[1]):
        sent = [asyncio.create_task(engine.signals.deliver(token, "go")) for token in tokens]
        free = [sent[place] for place in (0, 2, 3)]
        assert codes_of(await asyncio.wait_for(asyncio.gather(*free), timeout=10)) == ["Accepted"] * 3
        assert not sent[1].done()
    last = await sent[1]
    assert isinstance(last, Accepted)
    assert last.effect is Effect.SATISFIED
    await assert_waits_sound(store)


async def test_many_waits_share_commits_and_each_resumes_once(store: TestStore, engine: Engine) -> None:
    await engine.executions.submit_many([Submission(kind="job") for _ in range(100)])
    leases = await engine.leases.claim(["default"], "w", limit=100)
    waited: list[Any] = await asyncio.gather(*(suspend(engine, lease) for lease in leases))
    calls = [engine.signals.deliver(result.token("boss"), "go") for result in waited for _ in range(2)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert codes_of(results) == ["Accepted", "waitpoint_closed"] * 100
    assert (await engine.executions.count())[State.WAITING].value == 100
    await assert_waits_sound(store)


class StallingStore:
    """A store that delays `run` until the test sets `may_go_on`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def run(self, body: Body[Any]) -> Any:
        self.asked.set()
        await self.may_go_on.wait()
        return await self._store.run(body)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def genuine_and_forged(engine: Engine) -> tuple[Wait, Wait]:
    """Return a wait for many signals with its valid token, and the same wait with a forged token."""
    wait = await suspended(engine, condition=Count(20, "signals", ["boss"]))
    token = wait.token.reveal()
    # Change the second to last character, because a change of the last one would usually make the token malformed.
    return wait, replace(wait, token=Secret(token[:-2] + ("A" if token[-2] != "A" else "B") + token[-1]))


def suspend(
    engine: Engine, lease: Lease, waitpoints: Sequence[Any] = ("boss",), **options: Any
) -> Coroutine[Any, Any, Any]:
    return engine.leases.suspend(lease.fence, waitpoints, **options)


def item_of(engine: Engine, lease: Lease, waitpoints: Sequence[Any] = ("boss",), **options: Any) -> Suspend:
    """Return a suspend of this lease as an item of a batch."""
    settings = {"reason": "waiting_for_signal", "on_timeout": "fail", "resume_delay": 0, "rest": "close", "key": None}
    settings |= {"steps": STEPS} | options
    return suspend_request(engine._context, lease.fence, waitpoints, None, None, None, **settings)


def codes_of(results: Iterable[Any]) -> list[str]:
    return [getattr(result, "code", type(result).__name__) for result in results]
