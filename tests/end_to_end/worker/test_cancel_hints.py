"""A worker learns within a second of every lease that another process ended or asked to stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric.engine import Engine, OnAttemptTimeout, Policy, State, any_of, connect
from flowfabric.worker import Worker
from tests.end_to_end.worker.scripted_runs import ScriptedRun, ScriptedRunner, make_worker, until_lost
from tests.flows import built, with_children
from tests.scenarios import KEEPING, leased
from tests.stores import TestStore, opened

LIMIT_S = 1.0
LEASE_TTL_S = 60.0
Interrupt = Callable[[], Awaitable[object]]


async def wait_until_interrupted(run: ScriptedRun) -> None:
    either: list[asyncio.Future[Any]] = [run.lost, run.cancel]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)


async def until_interrupted(run: ScriptedRun) -> None:
    """Work until the lease is lost or a cancel is requested."""
    await wait_until_interrupted(run)


async def cancel(operator: Engine) -> Interrupt:
    job = await operator.executions.submit("job")
    return lambda: operator.operator.cancel(job.id)


async def cancel_with_grace(operator: Engine) -> Interrupt:
    job = await operator.executions.submit("job")
    return lambda: operator.operator.cancel(job.id, grace="1h")


async def cancel_with_children(operator: Engine) -> Interrupt:
    parent = await leased(operator, kind="parent")
    await with_children(operator, parent, "child")
    return lambda: operator.operator.cancel(parent.execution_id, children=True)


async def cancel_children(operator: Engine) -> Interrupt:
    parent = await leased(operator, kind="parent")
    children = await with_children(operator, parent, "child")
    return lambda: operator.leases.cancel_children(parent.fence, list(children.values()), "not needed")


async def cancel_flow(operator: Engine) -> Interrupt:
    flow = await built(operator, {"a": []})
    return lambda: operator.flows.cancel(flow.id)


async def loss_of_a_race(operator: Engine) -> Interrupt:
    options = {"winner": {"kind": "other"}, "next": {"kind": "other"}}
    shape = {"loser": [], "winner": [], "next": ["loser", "winner"]}
    flow = await built(operator, shape, joins={"next": any_of()}, options=options)
    return lambda: flow.complete("winner")


async def revoke(operator: Engine) -> Interrupt:
    job = await operator.executions.submit("job", policy=KEEPING)
    return lambda: operator.operator.revoke_lease(job.id)


async def deadline(operator: Engine) -> Interrupt:
    job = await operator.executions.submit("job", policy=Policy(deadline="2s"))
    return lambda: operator.executions.wait(job.id, timeout=20)


async def attempt_timeout(operator: Engine) -> Interrupt:
    policy = Policy(attempt_timeout="1s", on_attempt_timeout=OnAttemptTimeout.EXPIRE)
    job = await operator.executions.submit("job", policy=policy)
    return lambda: operator.executions.wait(job.id, timeout=20)


CAUSES = (
    cancel, cancel_with_grace, cancel_with_children, cancel_children, cancel_flow, loss_of_a_race, revoke, deadline,
    attempt_timeout,
)  # fmt: skip


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.__name__)
async def test_run_learns_of_its_interruption_within_a_second(
    store: TestStore, cause: Callable[[Engine], Awaitable[Interrupt]]
) -> None:
    runner = ScriptedRunner(until_interrupted)
    async with opened(store) as engine, opened(store) as operator:
        interrupt = await cause(operator)
        async with make_worker(store, engine, runner, lease_ttl=LEASE_TTL_S):
            run = await runner.next()
            await interrupt()
            async with asyncio.timeout(LIMIT_S):
                await wait_until_interrupted(run)


async def test_end_of_the_grace_reaches_the_run_within_a_second(store: TestStore) -> None:
    runner = ScriptedRunner(until_lost)
    async with opened(store) as engine, opened(store) as operator:
        job = await operator.executions.submit("job")
        async with make_worker(store, engine, runner, lease_ttl=LEASE_TTL_S):
            run = await runner.next()
            await operator.operator.cancel(job.id, grace="1s")
            assert await operator.executions.wait(job.id, timeout=20)
            async with asyncio.timeout(LIMIT_S):
                assert (await run.lost).code == "execution_not_active"


async def test_lease_in_memory_is_interrupted_within_a_second() -> None:
    runner = ScriptedRunner(until_lost)
    async with connect(":memory:") as engine:
        job = await engine.executions.submit("job")
        async with Worker(engine, runner, lease_ttl=LEASE_TTL_S):
            run = await runner.next()
            await engine.operator.cancel(job.id)
            async with asyncio.timeout(LIMIT_S):
                await run.lost


async def test_hint_renews_only_the_changed_lease(store: TestStore) -> None:
    runner = ScriptedRunner(until_lost)
    async with opened(store) as engine, opened(store) as operator:
        jobs = [await operator.executions.submit("job") for _ in range(2)]
        async with make_worker(store, engine, runner, lease_ttl=LEASE_TTL_S):
            runs = {run.lease.execution_id: run for run in (await runner.next(), await runner.next())}
            await operator.operator.cancel(jobs[0].id)
            async with asyncio.timeout(LIMIT_S):
                await runs[jobs[0].id].lost
            assert runs[jobs[1].id].renewals.empty()
            await operator.operator.cancel(jobs[1].id)
            async with asyncio.timeout(LIMIT_S):
                await runs[jobs[1].id].lost


async def test_without_hints_the_renewal_interval_is_the_limit(store: TestStore) -> None:
    runner = ScriptedRunner(until_lost)
    async with opened(store, notify=False) as engine, opened(store, notify=False) as operator:
        job = await operator.executions.submit("job")
        async with make_worker(store, engine, runner, lease_ttl=3):
            run = await runner.next()
            began = time.monotonic()
            await operator.operator.cancel(job.id)
            async with asyncio.timeout(3):
                await run.lost
            assert (await operator.executions.describe(job.id)).state is State.CANCELLED
            assert time.monotonic() - began < 3
