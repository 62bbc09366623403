"""Tests of the suspension id, by which a repeated suspend is recognized even if the first one kept the lease."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from flowfabric.engine import (
    AnyOf,
    Child,
    Conflict,
    Engine,
    InvalidRequest,
    Lease,
    PendingWaitpoint,
    Satisfied,
    Single,
    StandingWaitpoint,
    State,
    Step,
    Suspended,
    Trigger,
    Unavailable,
)
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written, refused
from tests.faults.kit.replies import lose_each, losing_engine
from tests.scenarios import leased, submitted, suspended
from tests.stores import TestStore

GO = StandingWaitpoint("go")


async def lease_with_signals(engine: Engine, *payloads: bytes) -> Lease:
    """Return a lease on an execution with a declared signal that was sent with these payloads."""
    lease = await leased(engine, signals=["go"])
    for payload in payloads:
        await engine.signals.send(lease.execution_id, "go", payload)
    return lease


def payloads(outcome: Satisfied | Suspended) -> list[bytes]:
    assert isinstance(outcome, Satisfied)
    return [signal.payload for signal in outcome.signals]


async def test_repeat_of_a_satisfied_suspend_returns_the_first_result_with_its_signals(
    engine: Engine, store: TestStore
) -> None:
    lease, id_ = await lease_with_signals(engine, b"1", b"2"), engine.mint_id()
    first = await engine.leases.suspend(lease.fence, [GO], id=id_, steps=[Step("s")])
    assert (first.suspension_id, payloads(first)) == (id_, [b"1"])
    async with nothing_written(store):
        for _ in range(2):
            assert await engine.leases.suspend(lease.fence, [GO], id=str(id_), steps=[Step("s")]) == first
    assert (await engine.executions.describe(lease.execution_id)).state is State.ACTIVE


async def test_suspends_with_different_ids_consume_different_signals(engine: Engine) -> None:
    lease = await lease_with_signals(engine, b"1", b"2")
    first, second = engine.mint_id(), engine.mint_id()
    assert payloads(await engine.leases.suspend(lease.fence, [GO], id=first)) == [b"1"]
    assert payloads(await engine.leases.suspend(lease.fence, [GO], id=second)) == [b"2"]
    # The first one is repeated although a later one has been opened.
    assert payloads(await engine.leases.suspend(lease.fence, [GO], id=first)) == [b"1"]
    assert isinstance(await engine.leases.suspend(lease.fence, [GO]), Suspended)


async def test_repeat_of_a_satisfied_suspend_at_an_early_waitpoint(engine: Engine, store: TestStore) -> None:
    lease, id_ = await leased(engine), engine.mint_id()
    waitpoint = await engine.waitpoints.create(lease.fence, "boss")
    assert waitpoint.token is not None
    await engine.signals.deliver(waitpoint.token, "go", b"yes")
    first = await engine.leases.suspend(lease.fence, [PendingWaitpoint("boss")], id=id_)
    assert payloads(first) == [b"yes"]
    async with nothing_written(store):
        assert await engine.leases.suspend(lease.fence, [PendingWaitpoint("boss")], id=id_) == first


async def test_repeat_of_a_suspend_returns_the_same_tokens(engine: Engine, store: TestStore) -> None:
    lease, id_ = await leased(engine), engine.mint_id()
    wait = await suspended(engine, ["boss"], lease=lease, id=id_)
    async with nothing_written(store):
        repeated = await engine.leases.suspend(lease.fence, ["boss"], id=id_)
    assert repeated == wait.answer
    assert isinstance(repeated, Suspended)
    assert repeated.waitpoints[0].token == wait.token("boss")
    assert (repeated.suspension_id, wait.suspension) == (id_, id_)


async def test_repeat_after_the_lease_was_given_up_returns_the_first_result(engine: Engine, store: TestStore) -> None:
    lease, id_ = await lease_with_signals(engine, b"1"), engine.mint_id()
    first = await engine.leases.suspend(lease.fence, [GO], id=id_)
    await engine.leases.suspend(lease.fence, [GO])
    async with nothing_written(store):
        assert await engine.leases.suspend(lease.fence, [GO], id=id_) == first


async def test_other_content_under_the_same_id_is_refused_with_the_outcome(engine: Engine, store: TestStore) -> None:
    lease, id_ = await lease_with_signals(engine, b"1"), engine.mint_id()
    await engine.leases.suspend(lease.fence, [GO], id=id_)
    async with nothing_written(store):
        for options in ({"timeout": "1h"}, {"key": "k"}, {"steps": [Step("s")]}):
            call = engine.leases.suspend(lease.fence, [GO], id=id_, **options)
            error = await refused(call, "idempotency_mismatch", Conflict)
            assert (error.fields["suspension_id"], error.fields["outcome"]) == (id_, "satisfied")
    wait = await suspended(engine)
    async with nothing_written(store):
        call = engine.leases.suspend(wait.lease.fence, ["other"], id=wait.suspension)
        error = await refused(call, "idempotency_mismatch", Conflict)
    assert error.fields["outcome"] == "suspended"


async def test_later_fence_gets_the_end_of_the_suspension(engine: Engine, store: TestStore) -> None:
    wait = await suspended(engine, id=engine.mint_id())
    await engine.signals.deliver(wait.token(), "go", b"yes")
    later = await engine.leases.claim_resumed(wait.id, "worker-2")
    async with nothing_written(store):
        outcome = await engine.leases.suspend(later.fence, ["go"], id=wait.suspension)
        await refused(engine.leases.suspend(wait.lease.fence, ["x"], id=engine.mint_id()), "execution_not_active")
    assert isinstance(outcome, Satisfied)
    assert (outcome.suspension_id, outcome.by, payloads(outcome)) == (wait.suspension, Trigger.SIGNALS, [b"yes"])


async def test_id_reveals_nothing_to_a_fence_that_owns_nothing(engine: Engine, store: TestStore) -> None:
    lease, id_ = await lease_with_signals(engine, b"1"), engine.mint_id()
    await engine.leases.suspend(lease.fence, [GO], id=id_)
    async with nothing_written(store):
        forged = replace(lease.fence, epoch=lease.epoch + 1)
        await refused(engine.leases.suspend(forged, [GO], id=id_), "stale_lease")


async def test_id_of_another_execution_is_independent(engine: Engine) -> None:
    id_ = engine.mint_id()
    first, second = await lease_with_signals(engine, b"1"), await lease_with_signals(engine, b"2")
    assert payloads(await engine.leases.suspend(first.fence, [GO], id=id_)) == [b"1"]
    assert payloads(await engine.leases.suspend(second.fence, [GO], id=id_)) == [b"2"]


@pytest.mark.parametrize("id_", [UUID(int=0), "text", 1])
async def test_id_must_be_a_new_uuid(engine: Engine, id_: Any) -> None:
    lease = await leased(engine)
    await refused(engine.leases.suspend(lease.fence, ["go"], id=id_), "invalid_id", InvalidRequest)


# Lost replies.


def lossy(engine: Engine, *whats: str | None, retry_for_s: float = 0.0) -> Engine:
    """Return an engine that loses requests or replies in this order."""
    losing, _ = losing_engine(engine, lose_each(*whats))
    return Engine(replace(losing._context, retry_for_s=retry_for_s))


async def test_error_of_a_suspend_carries_the_id_with_which_it_can_be_repeated(
    engine: Engine, store: TestStore
) -> None:
    lease = await lease_with_signals(engine, b"1")
    with pytest.raises(Unavailable) as caught:
        await lossy(engine, "reply").leases.suspend(lease.fence, [GO])
    id_ = caught.value.fields["id"]
    assert str(id_) in caught.value.message
    async with nothing_written(store):
        outcome = await engine.leases.suspend(lease.fence, [GO], id=id_)
    assert (outcome.suspension_id, payloads(outcome)) == (id_, [b"1"])


async def test_engine_repeats_a_satisfied_suspend_whose_reply_is_lost(engine: Engine) -> None:
    lease = await lease_with_signals(engine, b"1")
    outcome = await lossy(engine, "reply", "reply", retry_for_s=5.0).leases.suspend(lease.fence, [GO])
    assert payloads(outcome) == [b"1"]
    assert (await engine.executions.describe(lease.execution_id)).state is State.ACTIVE


async def test_batch_of_suspends_whose_reply_is_lost_returns_the_first_results(
    engine: Engine, clock: VirtualClock
) -> None:
    leases = [await lease_with_signals(engine, b"%d" % number) for number in range(4)]
    ids = [engine.mint_id() for _ in leases]
    losing = lossy(engine, "reply", "reply")

    async def suspend_all(own: Engine) -> list[Any]:
        calls = [own.leases.suspend(lease.fence, [GO], id=id_) for lease, id_ in zip(leases, ids, strict=True)]
        return await asyncio.gather(*calls, return_exceptions=True)

    assert any(isinstance(outcome, Unavailable) for outcome in await suspend_all(losing))
    outcomes = await suspend_all(engine)
    assert [payloads(outcome) for outcome in outcomes] == [[b"0"], [b"1"], [b"2"], [b"3"]]
    assert [outcome.suspension_id for outcome in outcomes] == ids


async def test_suspend_that_locks_two_rows_is_recognized_by_its_id(engine: Engine, store: TestStore) -> None:
    awaited, lease, id_ = await submitted(engine), await lease_with_signals(engine, b"1"), engine.mint_id()
    request: dict[str, Any] = {
        "waitpoints": [GO, Child("other", awaited)],
        "condition": AnyOf([Single("go"), Single("other")]),
        "unused_waitpoints": "keep",
        "id": id_,
    }
    first = await engine.leases.suspend(lease.fence, **request)
    assert payloads(first) == [b"1"]
    async with nothing_written(store):
        assert await engine.leases.suspend(lease.fence, **request) == first
