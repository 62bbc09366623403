"""Tests of renew while another transaction has locked rows: it never waits, and each lease has its own outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

import pytest

from flowfabric.engine import Engine, FlowFabricError, Lease, NotFound, Refused, Renewed, Step, Unavailable
from flowfabric.testing import VirtualClock
from tests.expectations import refused
from tests.scenarios import leased
from tests.stores import PostgresTestStore, TestStore, opened

ON_POSTGRES = pytest.mark.parametrize("store", ["postgres"], indirect=True)
WITHIN_S = 5.0


def codes_of(outcomes: list[Renewed | FlowFabricError]) -> list[str]:
    return [outcome.code if isinstance(outcome, FlowFabricError) else "renewed" for outcome in outcomes]


@ON_POSTGRES
@pytest.mark.parametrize("renewal_events", [False, True])
async def test_locked_row_is_reported_busy_and_the_others_are_renewed(
    store: PostgresTestStore, clock: VirtualClock, renewal_events: bool
) -> None:
    async with opened(store, clock, renewal_events=renewal_events) as engine:
        leases = [await leased(engine) for _ in range(5)]
        clock.advance("10s")
        async with store.locked(leases[2].execution_id), asyncio.timeout(WITHIN_S):
            outcomes = await engine.leases.renew_many([lease.fence for lease in leases])
            assert codes_of(outcomes) == ["renewed", "renewed", "lease_busy", "renewed", "renewed"]
            assert isinstance(outcomes[2], Unavailable)
            await refused(engine.leases.renew(leases[2].fence), "lease_busy", Unavailable)
        assert isinstance(await engine.leases.renew(leases[2].fence), Renewed)


@ON_POSTGRES
async def test_busy_lease_that_has_ended_is_explained_without_waiting(
    store: PostgresTestStore, engine: Engine, clock: VirtualClock
) -> None:
    revoked, completed, foreign, late = [await leased(engine) for _ in range(4)]
    await engine.operator.revoke_lease(revoked.execution_id)
    await engine.leases.complete(completed.fence, b"")
    other = engine.for_namespace("other")
    clock.advance("31s")
    ids = [lease.execution_id for lease in (revoked, completed, foreign, late)]
    async with store.locked(*ids), asyncio.timeout(WITHIN_S):
        await refused(engine.leases.renew(revoked.fence), "lease_revoked", Refused)
        await refused(engine.leases.renew(completed.fence), "execution_not_active", Refused)
        await refused(other.leases.renew(foreign.fence), "execution_not_found", NotFound)
        # The transaction that holds the lock may be about to extend the lease, so the lease is not lost yet.
        await refused(engine.leases.renew(late.fence), "lease_busy", Unavailable)
    await refused(engine.leases.renew(late.fence), "lease_expired", Refused)


@ON_POSTGRES
async def test_lease_of_a_row_that_was_locked_for_a_moment_is_renewed(
    store: PostgresTestStore, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is free again when the operation looks for the reason, so the lease is renewed after all."""
    lease = await leased(engine)
    run = engine._context.store.run

    async def unlock_first(body: Any, **options: Any) -> Any:
        await lock.__aexit__(None, None, None)
        return await run(body, **options)

    lock = store.locked(lease.execution_id)
    await lock.__aenter__()
    monkeypatch.setattr(engine._context.store, "run", unlock_first)
    assert isinstance(await engine.leases.renew(lease.fence), Renewed)


async def test_renewal_does_not_wait_behind_queued_writes(store: TestStore, engine: Engine) -> None:
    """User code is running, and submits are queued before the renewal. On SQLite all of them need the same writer."""
    slow, lease = await leased(engine, lease_ttl="1h"), await leased(engine, lease_ttl="1h")
    finished: list[str] = []
    started, loop = asyncio.Event(), asyncio.get_running_loop()

    async def note(name: str, call: Awaitable[object]) -> None:
        await call
        finished.append(name)

    def on_sqlite(_: object) -> None:
        loop.call_soon_threadsafe(started.set)
        time.sleep(0.3)

    async def on_postgres(_: object) -> None:
        started.set()
        await asyncio.sleep(0.3)

    body = on_postgres if isinstance(store, PostgresTestStore) else on_sqlite
    calls = [asyncio.create_task(engine.leases.transact(slow.fence, body, lambda _: Step("slow", b"1")))]
    await started.wait()
    if body is on_sqlite:
        calls += [asyncio.create_task(note("submit", engine.executions.submit("job"))) for _ in range(3)]
        await asyncio.sleep(0.05)
    calls.append(asyncio.create_task(note("renewal", engine.leases.renew(lease.fence))))
    await asyncio.gather(*calls)
    assert finished[0] == "renewal"


async def test_many_leases_of_one_caller_each_have_their_own_outcome(engine: Engine) -> None:
    live: list[Lease] = [await leased(engine) for _ in range(3)]
    lost = await leased(engine)
    await engine.operator.revoke_lease(lost.execution_id)
    outcomes = await engine.leases.renew_many([lease.fence for lease in (live[0], lost, live[1], live[2])])
    assert codes_of(outcomes) == ["renewed", "lease_revoked", "renewed", "renewed"]
