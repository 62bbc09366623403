"""All duties in three processes at once, one frozen past its turn: nothing twice, nothing left, bounded ticks."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from uuid import UUID

from flowfabric.engine import Created, Engine, OnAttemptTimeout, Policy, Submission
from tests.children import Child, children
from tests.scenarios import leased, submitted
from tests.sizes import Size
from tests.stores import PostgresTestStore, TestStore, opened

UNREADABLE = '{"no such field": 1}'
FROZEN_S = 1.2
ONE_SECOND = Policy(attempt_timeout="1s", on_attempt_timeout=OnAttemptTimeout.EXPIRE)


async def test_three_processes_one_frozen_past_its_turn(store: TestStore, size: Size) -> None:
    schema = store.schema if isinstance(store, PostgresTestStore) else "flowfabric"
    async with opened(store) as engine:
        poisoned = await submitted(engine, delay="1s")
        await store.query("UPDATE ff.execution SET policy = ? WHERE id = ?", UNREADABLE, poisoned)
        with children("tests.adversity.reconciler_child", *[[store.url, schema]] * 3) as processes:
            made: dict[str, set[UUID]] = {}
            for _ in range(size.of(1, 3, 20)):
                for name, ids in (await work_for_all_duties(engine, size.of(20, 60, 60))).items():
                    made.setdefault(name, set()).update(ids)
                await freeze_one_past_its_turn(processes)
            await until_done(engine, made)
            workers = Counter(
                [event.name async for event in engine.events.subscribe(["worker"], start="beginning", follow=False)]
            )
    assert workers["registered"] == workers["swept"] > 0
    for name, ids in made.items():
        rows = await store.query("SELECT execution_id, version, family, name FROM ff.event ORDER BY version")
        found: dict[UUID, list[str]] = {id_: [] for id_ in ids}
        for row in rows:
            if row["execution_id"] and (id_ := UUID(str(row["execution_id"]))) in found:
                found[id_].append(f"{row['family']}.{row['name']}")
                assert row["version"] == len(found[id_]), "versions have no gap and none twice"
        assert {tuple(names) for names in found.values()} == {EXPECTED[name]}, name


EXPECTED = {
    "leases": ("lease.acquired", "lease.expired"),
    "delays": ("lifecycle.ready",),
    "deadlines": ("completion.expired",),
    "attempts": ("lease.acquired", "completion.expired"),
    "waits": ("lease.acquired", "lease.suspended", "completion.failed"),
}


async def work_for_all_duties(engine: Engine, number: int) -> dict[str, set[UUID]]:
    """Work of every kind that is due in about a second, when one of the processes is frozen."""
    made: dict[str, set[UUID]] = {name: set() for name in EXPECTED}
    for place in range(number):
        made["leases"].add((await leased(engine, lease_ttl="1s", worker=f"w{place}")).execution_id)
        made["attempts"].add((await leased(engine, policy=ONE_SECOND)).execution_id)
        lease = await leased(engine)
        await engine.leases.suspend(lease.fence, ["go"], timeout="1s")
        made["waits"].add(lease.execution_id)
    late = {
        "delays": Submission(kind="job", delay="1s"),
        "deadlines": Submission(kind="job", policy=Policy(deadline="1s")),
    }
    for name, submission in late.items():
        answers = await engine.executions.submit_many([submission] * number)
        made[name] |= {answer.id for answer in answers if isinstance(answer, Created)}
    for place in range(3):
        await engine.workers.register(f"{time.time_ns()}-{place}", ["default"], ttl="1s")
    return made


async def freeze_one_past_its_turn(processes: list[Child]) -> None:
    """Freezes one at a moment at which it works, until the others have done its part."""
    await asyncio.sleep(random.uniform(0.2, 0.9))
    frozen = random.choice(processes).process
    frozen.send_signal(signal.SIGSTOP)
    await asyncio.sleep(FROZEN_S)
    frozen.send_signal(signal.SIGCONT)


async def until_done(engine: Engine, made: dict[str, set[UUID]]) -> None:
    """Waits until everything was settled, and a little longer, in case somebody does it once more."""

    async def is_done() -> bool:
        missing = [
            id_
            for name, ids in made.items()
            for id_ in ids
            if len(await engine.executions.history(id_)) < len(EXPECTED[name])
        ]
        return not missing and not await engine.workers.list()

    async with asyncio.timeout(30):
        while not await is_done():  # noqa: ASYNC110 - other processes do it
            await asyncio.sleep(0.1)
    await asyncio.sleep(0.5)


async def test_one_tick_is_bounded_however_much_is_due(store: TestStore) -> None:
    async with opened(store) as engine:
        await engine.executions.submit_many([Submission(kind="job", delay="1ms") for _ in range(250)])
        await asyncio.sleep(0.05)
        ticks = [tick for _ in range(3) for tick in await engine.reconcilers.tick() if tick.duty == "delayed_work"]
    assert [(tick.done, tick.more) for tick in ticks] == [(100, True), (100, True), (50, False)]
