"""A worker counts the time during which the system slept as a part of its leases."""

from __future__ import annotations

import asyncio

from tests.end_to_end.worker.scripted_runs import ScriptedRunner, make_worker, submit_many, until_lost
from tests.faults.kit.clock import SleepingHost
from tests.stores import TestStore, opened

LEASE_TTL_S = 12.0


async def test_worker_ends_a_lease_by_its_own_clock_if_the_system_sleeps_longer_than_the_term(store: TestStore) -> None:
    host, runner = SleepingHost(), ScriptedRunner(until_lost)
    with host.installed():
        async with opened(store) as engine, make_worker(store, engine, runner, lease_ttl=LEASE_TTL_S):
            await submit_many(engine, 1)
            run = await runner.next()
            host.sleep(LEASE_TTL_S)
            async with asyncio.timeout(LEASE_TTL_S):
                error = await run.lost
    assert error.code == "lease_expired"
