"""held: the live leases of a worker instance, by which a lost reply to a claim is made good."""

from __future__ import annotations

from flowfabric.engine import Engine, Released, State, Submission, WorkerId
from flowfabric.testing import VirtualClock
from tests.facts import nothing_written
from tests.scenarios import leased, submitted
from tests.stores import TestStore


async def test_a_lost_claim_is_found_again_and_its_work_goes_on(engine: Engine) -> None:
    await engine.executions.submit_many([Submission(kind="job", payload=b"%d" % number) for number in range(3)])
    answered = await engine.leases.claim(["default"], WorkerId("mail", "mail-7"), limit=3)
    found = await engine.leases.held("mail-7")
    assert sorted(found, key=lambda lease: lease.execution_id) == sorted(answered, key=lambda item: item.execution_id)
    first, second, _ = found
    assert (await engine.leases.complete(first.fence, b"out")).state is State.COMPLETED
    assert await engine.leases.release(second.fence) == Released()
    assert await engine.leases.held("mail-7") == found[2:]


async def test_leases_are_listed_oldest_first_and_of_that_instance_only(engine: Engine, clock: VirtualClock) -> None:
    mine, sibling = WorkerId("mail", "mail-7"), WorkerId("mail", "mail-8")
    ids = [await submitted(engine) for _ in range(3)]
    for id_ in reversed(ids):
        await engine.leases.claim_execution(id_, mine)
        await leased(engine)
        clock.advance("1s")
    await engine.leases.claim_execution(await submitted(engine), sibling)
    assert [lease.execution_id for lease in await engine.leases.held("mail-7")] == ids[::-1]
    assert await engine.within("other").leases.held("mail-7") == []
    assert await engine.leases.held("mail") == []


async def test_a_lease_is_held_until_it_runs_out_and_a_renewal_makes_that_later(
    engine: Engine, clock: VirtualClock
) -> None:
    short = await leased(engine, worker="me", lease_ttl=10)
    kept = await leased(engine, worker="me", lease_ttl=10)
    clock.advance("9s")
    renewed = await engine.leases.renew(kept.fence)
    assert len(await engine.leases.held("me")) == 2
    clock.advance("1s")
    [found] = await engine.leases.held("me")
    assert (found.fence, found.expires_at) == (kept.fence, renewed.expires_at)
    assert found.execution_id != short.execution_id


async def test_a_lease_that_was_lost_is_not_held(engine: Engine) -> None:
    revoked = await leased(engine, worker="me")
    cancelled = await leased(engine, worker="me")
    await engine.operator.revoke_lease(revoked.execution_id)
    await engine.operator.cancel(cancelled.execution_id)
    assert await engine.leases.held("me") == []


async def test_asking_what_is_held_writes_nothing(engine: Engine, store: TestStore) -> None:
    await leased(engine, worker="me")
    async with nothing_written(store):
        await engine.leases.held("me")
