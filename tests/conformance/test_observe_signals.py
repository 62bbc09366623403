"""observe_signals: what a wait was ended by, in order of acceptance, before the resumed claim and ever after."""

from __future__ import annotations

from uuid import UUID, uuid4

from flowfabric.engine import AllOf, Count, Engine, NotFound, Policy, Single
from flowfabric.testing import VirtualClock
from tests.facts import nothing_written, refused
from tests.scenarios import submitted, suspended
from tests.stores import TestStore

NUMBERED = {"suspension": "number", "signal": "seq"}
ID_OF_COPY = {
    "sqlite": "printf('%08x-0000-4000-8000-000000000000', n.number)",
    "postgres": "CAST(lpad(to_hex(n.number), 32, '0') AS UUID)",
}


async def copied(store: TestStore, table: str, execution_id: UUID, number: int, **columns: str) -> None:
    """The first row that hangs on an execution, copied until there are so many."""
    [row] = await store.query(f"SELECT * FROM ff.{table} WHERE execution_id = ?", execution_id)
    shown = {name: f"r.{name}" for name in row} | {NUMBERED[table]: "n.number"} | columns
    await store.query(
        f"WITH RECURSIVE n (number) AS (SELECT 2 UNION ALL SELECT number + 1 FROM n WHERE number < {number})"
        f" INSERT INTO ff.{table} ({', '.join(shown)})"
        f" SELECT {', '.join(shown.values())} FROM n, ff.{table} AS r WHERE r.execution_id = ?",
        execution_id,
    )


async def test_the_signals_that_counted_come_in_order_of_acceptance(engine: Engine) -> None:
    keys = ["z", "a", "long-key-that-sorts-elsewhere"]
    wait = await suspended(engine, keys, AllOf([Single(key, "yes") for key in keys]))
    for key, name in (("a", "no"), ("long-key-that-sorts-elsewhere", "yes"), ("z", "yes"), ("z", "yes"), ("a", "yes")):
        await engine.signals.deliver(wait.token(key), name)
    matched = await engine.signals.observe(wait.id)
    assert [signal.waitpoint for signal in matched] == ["long-key-that-sorts-elsewhere", "z", "a"]
    everything = await engine.signals.observe(wait.id, include_unmatched=True)
    assert [signal.name for signal in everything] == ["no", "yes", "yes", "yes", "yes"]
    assert [signal.seq for signal in everything] == [1, 2, 3, 4, 5]


async def test_it_is_a_read_that_is_good_in_every_later_attempt(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    wait = await suspended(engine, submit={"policy": Policy(max_retries=1)})
    assert await engine.signals.observe(wait.id) == ()
    await engine.signals.deliver(wait.token(), "go", b"1")
    seen = await engine.signals.observe(wait.id)
    assert [signal.payload for signal in seen] == [b"1"]
    lease = await engine.leases.claim_resumed(wait.id, "worker-2")
    async with nothing_written(store):
        assert await engine.signals.observe(wait.id) == seen
    await engine.leases.fail(lease.fence, "once")
    clock.advance("1h")
    await engine.reconcilers.tick()
    lease = await engine.leases.claim_execution(wait.id, "worker-3")
    assert lease.attempt_index == 1
    assert await engine.signals.observe(wait.id) == seen
    await engine.leases.complete(lease.fence)
    assert await engine.signals.observe(wait.id) == seen


async def test_each_suspension_keeps_its_own(engine: Engine) -> None:
    first = await suspended(engine)
    await engine.signals.deliver(first.token(), "one")
    lease = await engine.leases.claim_resumed(first.id, "worker-2")
    second = await suspended(engine, ["next"], lease=lease)
    assert await engine.signals.observe(first.id) == ()
    await engine.signals.deliver(second.token("next"), "two")
    assert [signal.name for signal in await engine.signals.observe(first.id)] == ["two"]
    for wait, name in ((first, "one"), (second, "two")):
        [signal] = await engine.signals.observe(first.id, suspension=wait.suspension)
        assert signal.name == name


async def test_what_has_counted_so_far_is_seen_while_it_is_open(engine: Engine) -> None:
    wait = await suspended(engine, ["go"], Count(2, "signals", ["go"]))
    await engine.signals.deliver(wait.token(), "one")
    assert [signal.name for signal in await engine.signals.observe(wait.id)] == ["one"]


async def test_an_early_suspension_is_found_however_many_came_after(engine: Engine, store: TestStore) -> None:
    other, wait = await suspended(engine), await suspended(engine)
    await engine.signals.deliver(wait.token(), "go")
    await copied(
        store, "suspension", wait.id, 1200, id=f"(SELECT id FROM ff.suspension WHERE id <> '{wait.suspension}')"
    )
    assert await engine.signals.observe(wait.id) == ()
    [signal] = await engine.signals.observe(wait.id, suspension=wait.suspension)
    assert signal.name == "go"
    await refused(engine.signals.observe(wait.id, suspension=uuid4()), "suspension_not_found", NotFound)
    assert await engine.signals.observe(other.id, suspension=other.suspension) == ()


async def test_all_that_came_is_shown_however_much_it_is(engine: Engine, store: TestStore) -> None:
    wait = await suspended(engine, ["go"], Single("go", "yes"))
    await engine.signals.deliver(wait.token(), "no")
    await copied(store, "signal", wait.id, 25_000, id=ID_OF_COPY[store.name])
    assert await engine.signals.observe(wait.id) == ()
    everything = await engine.signals.observe(wait.id, include_unmatched=True)
    assert [signal.seq for signal in everything] == list(range(1, 25_001))


async def test_an_execution_without_a_wait_has_none_and_an_unknown_suspension_is_not_found(engine: Engine) -> None:
    id_ = await submitted(engine)
    assert await engine.signals.observe(id_) == ()
    await refused(engine.signals.observe(id_, suspension=uuid4()), "suspension_not_found", NotFound)
    other = await suspended(engine)
    await refused(engine.signals.observe(id_, suspension=other.suspension), "suspension_not_found", NotFound)
