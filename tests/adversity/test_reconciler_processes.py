"""Three processes run all duties, and one of them is frozen. Every duty is done once, and ticks are bounded."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from flowfabric.engine import (
    AnyOf,
    Created,
    Engine,
    FlowCreated,
    Graph,
    OnAttemptTimeout,
    Policy,
    Single,
    Submission,
    Timer,
)
from tests.children import Child, children
from tests.scenarios import leased, submitted
from tests.sizes import Size
from tests.stores import PostgresTestStore, TestStore, opened

pytestmark = pytest.mark.full

UNREADABLE = '{"no such field": 1}'
FROZEN_S = 1.2
ONE_SECOND = Policy(attempt_timeout="1s", on_attempt_timeout=OnAttemptTimeout.EXPIRE)


async def test_three_processes_with_one_frozen_do_every_duty_once(store: TestStore, size: Size) -> None:
    schema = store.schema if isinstance(store, PostgresTestStore) else "flowfabric"
    async with opened(store) as engine:
        poisoned = await submitted(engine, delay="1s")
        await store.query("UPDATE ff.execution SET policy = ? WHERE id = ?", UNREADABLE, poisoned)
        with children("tests.adversity.reconciler_child", *[[store.url, schema]] * 3) as processes:
            ids_by_duty: dict[str, set[UUID]] = {}
            for _ in range(size.of(1, 3, 20)):
                for name, ids in (await work_for_all_duties(engine, size.of(20, 60, 60))).items():
                    ids_by_duty.setdefault(name, set()).update(ids)
                await freeze_one_past_its_turn(processes)
            swept = await cancelled_in_batches(engine)
            await until_done(engine, ids_by_duty)
            await until(lambda: is_flow_ended(store, swept))
            # Allow the events of purged executions to be trimmed now, because the default retention is a week.
            await store.query("UPDATE ff.purged SET trim_at = (SELECT MIN(created_at) FROM ff.execution)")
            await until(lambda: is_cleaned_up(store, ids_by_duty))
            workers = Counter(
                [event.name async for event in engine.events.subscribe(["worker"], start="beginning", follow=False)]
            )
    assert workers["registered"] == workers["swept"] > 0
    rows = await store.query("SELECT execution_id, version, family, name FROM ff.event ORDER BY version")
    cancels = Counter(str(row["execution_id"]) for row in rows if row["name"] == "cancelled")
    assert [cancels[str(id_)] for id_ in swept] == [1] * len(swept)
    for name, expected in EXPECTED.items():
        events: dict[UUID, list[str]] = {id_: [] for id_ in ids_by_duty[name]}
        for row in rows:
            if row["execution_id"] and (id_ := UUID(str(row["execution_id"]))) in events:
                events[id_].append(f"{row['family']}.{row['name']}")
                assert row["version"] == len(events[id_]), "versions have no gaps and no duplicates"
        assert {tuple(names) for names in events.values()} == {expected}, name


EXPECTED = {
    "leases": ("lease.acquired", "lease.expired"),
    "delays": ("lifecycle.ready",),
    "deadlines": ("completion.expired",),
    "attempts": ("lease.acquired", "completion.expired"),
    "waits": ("lease.acquired", "lease.suspended", "completion.failed"),
    "timers": ("lease.acquired", "lease.suspended", "signal.delivered", "lifecycle.resumed"),
    "graces": ("lease.acquired", "operator.cancel_requested", "completion.cancelled"),
    "waitpoints": ("lease.acquired",),
}
# Work whose rows are deleted without an event once they are due.
GONE = ("old", "old flows")


async def work_for_all_duties(engine: Engine, number: int) -> dict[str, set[UUID]]:
    """Create work for every duty. The work becomes due in about a second, while one of the processes is frozen."""
    ids_by_duty: dict[str, set[UUID]] = {name: set() for name in (*EXPECTED, *GONE)}
    for place in range(number):
        if place % 4 == 0:
            await wait_for_time(engine, ids_by_duty)
        ids_by_duty["leases"].add((await leased(engine, lease_ttl="1s", worker=f"w{place}")).execution_id)
        ids_by_duty["attempts"].add((await leased(engine, policy=ONE_SECOND)).execution_id)
        lease = await leased(engine)
        await engine.leases.suspend(lease.fence, ["go"], timeout="1s")
        ids_by_duty["waits"].add(lease.execution_id)
    late = {
        "delays": Submission(kind="job", delay="1s"),
        "deadlines": Submission(kind="job", policy=Policy(deadline="1s")),
    }
    for name, submission in late.items():
        results = await engine.executions.submit_many([submission] * number)
        ids_by_duty[name] |= {result.id for result in results if isinstance(result, Created)}
    for place in range(3):
        await add_old_rows(engine, ids_by_duty)
        await engine.workers.register(f"{time.time_ns()}-{place}", ["default"], ttl="1s")
    return ids_by_duty


async def wait_for_time(engine: Engine, ids_by_duty: dict[str, set[UUID]]) -> None:
    lease = await leased(engine)
    alarm = Timer("alarm", engine.now() + timedelta(seconds=1))
    await engine.leases.suspend(lease.fence, ["go", alarm], AnyOf([Single("go"), Single("alarm")]))
    ids_by_duty["timers"].add(lease.execution_id)
    lease = await leased(engine, lease_ttl="1h")
    await engine.operator.cancel(lease.execution_id, grace="1s")
    ids_by_duty["graces"].add(lease.execution_id)
    lease = await leased(engine, lease_ttl="1h")
    await engine.waitpoints.create(lease.fence, "go", expires="1s")
    ids_by_duty["waitpoints"].add(lease.execution_id)


async def add_old_rows(engine: Engine, ids_by_duty: dict[str, set[UUID]]) -> None:
    """Create an ended execution, an ended flow and a rotated key."""
    old = await submitted(engine, policy=Policy(retention="1s"), key=str(uuid4()))
    await engine.operator.cancel(old)
    ids_by_duty["old"].add(old)
    graph = Graph("old")
    graph.add("a", "job", policy=Policy(retention="1s"))
    result = await engine.flows.submit(graph)
    await engine.flows.cancel(result.flow_id)
    ids_by_duty["old flows"].add(result.flow_id)
    await engine.keys.rotate(f"key{len(await engine.keys.list())}", grace="1s")


async def cancelled_in_batches(engine: Engine) -> list[UUID]:
    """Cancel a flow that is too large for one call, so that the duties of other processes continue its cancellation."""
    graph = Graph("large")
    for number in range(1100):
        graph.add(f"m{number}", "job")
    result = await engine.flows.submit(graph)
    assert isinstance(result, FlowCreated)
    await engine.flows.cancel(result.flow_id)
    return list(result.members.values())


async def is_flow_ended(store: TestStore, members: list[UUID]) -> bool:
    [row] = await store.query("SELECT COUNT(*) AS number FROM ff.execution WHERE state = 'cancelled'")
    return bool(row["number"] >= len(members))


async def is_cleaned_up(store: TestStore, ids_by_duty: dict[str, set[UUID]]) -> bool:
    """Return True once the executions and flows past their retention, their events, the expired keys and the pending
    waitpoints are gone.
    """
    old = {str(id_) for name in GONE for id_ in ids_by_duty[name]}
    for query in (
        "SELECT id AS found FROM ff.execution",
        "SELECT id AS found FROM ff.flow",
        "SELECT execution_id AS found FROM ff.purged",
        "SELECT execution_id AS found FROM ff.event",
    ):
        if old & {str(row["found"]) for row in await store.query(query)}:
            return False
    [keys] = await store.query("SELECT COUNT(*) AS number FROM ff.signing_key WHERE collected_at IS NULL")
    [pending] = await store.query("SELECT COUNT(*) AS number FROM ff.waitpoint WHERE state = 'pending'")
    # The active key stays.
    return (keys["number"], pending["number"]) == (1, 0)


async def freeze_one_past_its_turn(processes: list[Child]) -> None:
    """Freeze one process while it works, long enough for the other processes to do its part."""
    await asyncio.sleep(random.uniform(0.2, 0.9))
    frozen = random.choice(processes).process
    frozen.send_signal(signal.SIGSTOP)
    await asyncio.sleep(FROZEN_S)
    frozen.send_signal(signal.SIGCONT)


async def until_done(engine: Engine, ids_by_duty: dict[str, set[UUID]]) -> None:
    """Wait until all work is done. Wait a little longer, so that a duty that runs twice is noticed."""

    async def is_done() -> bool:
        missing = [
            id_
            for name, ids in ids_by_duty.items()
            for id_ in ids
            if name in EXPECTED and len(await engine.executions.history(id_)) < len(EXPECTED[name])
        ]
        return not missing and not (await engine.workers.list()).items

    await until(is_done)
    await asyncio.sleep(0.5)


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(30):
        while not await true():  # noqa: ASYNC110 - other processes change the state
            await asyncio.sleep(0.1)


async def test_one_tick_is_bounded_with_a_large_backlog(store: TestStore) -> None:
    async with opened(store) as engine:
        await engine.executions.submit_many([Submission(kind="job", delay="1ms") for _ in range(250)])
        await asyncio.sleep(0.05)
        ticks = [tick for _ in range(3) for tick in await engine.reconcilers.tick() if tick.duty == "delayed_work"]
    assert [(tick.done, tick.has_more) for tick in ticks] == [(100, True), (100, True), (50, False)]
