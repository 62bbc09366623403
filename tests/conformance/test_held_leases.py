"""Tests of held, which lists the live leases of a worker instance, for a worker that lost the reply to a claim."""

from __future__ import annotations

from dataclasses import replace

from flowfabric.engine import Engine, Released, State, Submission, WorkerId
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written
from tests.scenarios import leased, submitted
from tests.stores import TestStore


async def test_lost_claim_is_found_and_its_work_continues(engine: Engine) -> None:
    await engine.executions.submit_many([Submission(kind="job", payload=b"%d" % number) for number in range(3)])
    claimed = await engine.leases.claim(["default"], WorkerId("mail", "mail-7"), limit=3)
    held = await engine.leases.held("mail-7")
    # Only the reply to the claim reports that there is no journal.
    expected = [replace(lease, has_journal=True) for lease in claimed]
    assert sorted(held, key=lambda lease: lease.execution_id) == sorted(expected, key=lambda lease: lease.execution_id)
    first, second, _ = held
    assert (await engine.leases.complete(first.fence, b"out")).state is State.COMPLETED
    assert await engine.leases.release(second.fence) == Released()
    assert await engine.leases.held("mail-7") == held[2:]


async def test_leases_are_listed_oldest_first_and_only_for_that_instance(engine: Engine, clock: VirtualClock) -> None:
    mine, sibling = WorkerId("mail", "mail-7"), WorkerId("mail", "mail-8")
    ids = [await submitted(engine) for _ in range(3)]
    for id_ in reversed(ids):
        await engine.leases.claim_execution(id_, mine)
        await leased(engine)
        clock.advance("1s")
    await engine.leases.claim_execution(await submitted(engine), sibling)
    assert [lease.execution_id for lease in await engine.leases.held("mail-7")] == ids[::-1]
    assert await engine.for_namespace("other").leases.held("mail-7") == []
    assert await engine.leases.held("mail") == []


async def test_lease_is_held_until_it_expires_and_a_renewal_extends_it(engine: Engine, clock: VirtualClock) -> None:
    short = await leased(engine, worker="me", lease_ttl=10)
    kept_lease = await leased(engine, worker="me", lease_ttl=10)
    clock.advance("9s")
    renewed = await engine.leases.renew(kept_lease.fence)
    assert len(await engine.leases.held("me")) == 2
    clock.advance("1s")
    [held] = await engine.leases.held("me")
    assert (held.fence, held.expires_at) == (kept_lease.fence, renewed.expires_at)
    assert held.execution_id != short.execution_id


async def test_lost_lease_is_not_held(engine: Engine) -> None:
    revoked = await leased(engine, worker="me")
    cancelled = await leased(engine, worker="me")
    await engine.operator.revoke_lease(revoked.execution_id)
    await engine.operator.cancel(cancelled.execution_id)
    assert await engine.leases.held("me") == []


async def test_listing_held_leases_writes_nothing(engine: Engine, store: TestStore) -> None:
    await leased(engine, worker="me")
    async with nothing_written(store):
        await engine.leases.held("me")
