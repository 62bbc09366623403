"""Tests of signals.list, which returns the signals of a wait in order of acceptance."""

from __future__ import annotations

from uuid import UUID, uuid4

from flowfabric.engine import AllOf, Count, Engine, NotFound, Policy, Single
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written, refused
from tests.scenarios import submitted, suspended
from tests.stores import TestStore

NUMBERED = {"suspension": "number", "signal": "seq"}
ID_OF_COPY = {
    "sqlite": "printf('%08x-0000-4000-8000-000000000000', n.number)",
    "postgres": "CAST(lpad(to_hex(n.number), 32, '0') AS UUID)",
}


async def copy_row(store: TestStore, table: str, execution_id: UUID, number: int, **columns: str) -> None:
    """Copy the only row that an execution has in a table, until the execution has `number` rows there."""
    [row] = await store.query(f"SELECT * FROM ff.{table} WHERE execution_id = ?", execution_id)
    expressions = {name: f"r.{name}" for name in row} | {NUMBERED[table]: "n.number"} | columns
    await store.query(
        f"WITH RECURSIVE n (number) AS (SELECT 2 UNION ALL SELECT number + 1 FROM n WHERE number < {number})"
        f" INSERT INTO ff.{table} ({', '.join(expressions)})"
        f" SELECT {', '.join(expressions.values())} FROM n, ff.{table} AS r WHERE r.execution_id = ?",
        execution_id,
    )


async def test_counted_signals_are_in_order_of_acceptance(engine: Engine) -> None:
    keys = ["z", "a", "long-key-that-sorts-elsewhere"]
    wait = await suspended(engine, keys, AllOf([Single(key, "yes") for key in keys]))
    for key, name in (("a", "no"), ("long-key-that-sorts-elsewhere", "yes"), ("z", "yes"), ("z", "yes"), ("a", "yes")):
        await engine.signals.deliver(wait.token(key), name)
    matched = await engine.signals.list(wait.id)
    assert [signal.waitpoint for signal in matched] == ["long-key-that-sorts-elsewhere", "z", "a"]
    signals = await engine.signals.list(wait.id, include_unmatched=True)
    assert [signal.name for signal in signals] == ["no", "yes", "yes", "yes", "yes"]
    assert [signal.seq for signal in signals] == [1, 2, 3, 4, 5]


async def test_signals_can_be_read_in_every_later_attempt(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    wait = await suspended(engine, submit={"policy": Policy(max_retries=1)})
    assert await engine.signals.list(wait.id) == ()
    await engine.signals.deliver(wait.token(), "go", b"1")
    signals = await engine.signals.list(wait.id)
    assert [signal.payload for signal in signals] == [b"1"]
    lease = await engine.leases.claim_resumed(wait.id, "worker-2")
    async with nothing_written(store):
        assert await engine.signals.list(wait.id) == signals
    await engine.leases.fail(lease.fence, "once")
    clock.advance("1h")
    await engine.reconcilers.tick()
    lease = await engine.leases.claim_execution(wait.id, "worker-3")
    assert lease.attempt_index == 1
    assert await engine.signals.list(wait.id) == signals
    await engine.leases.complete(lease.fence)
    assert await engine.signals.list(wait.id) == signals


async def test_each_suspension_has_its_own_signals(engine: Engine) -> None:
    first = await suspended(engine)
    await engine.signals.deliver(first.token(), "one")
    lease = await engine.leases.claim_resumed(first.id, "worker-2")
    second = await suspended(engine, ["next"], lease=lease)
    assert await engine.signals.list(first.id) == ()
    await engine.signals.deliver(second.token("next"), "two")
    assert [signal.name for signal in await engine.signals.list(first.id)] == ["two"]
    for wait, name in ((first, "one"), (second, "two")):
        [signal] = await engine.signals.list(first.id, suspension=wait.suspension)
        assert signal.name == name


async def test_signals_counted_so_far_are_listed_while_the_wait_is_open(engine: Engine) -> None:
    wait = await suspended(engine, ["go"], Count(2, "signals", ["go"]))
    await engine.signals.deliver(wait.token(), "one")
    assert [signal.name for signal in await engine.signals.list(wait.id)] == ["one"]


async def test_early_suspension_is_found_behind_many_later_ones(engine: Engine, store: TestStore) -> None:
    other_wait, wait = await suspended(engine), await suspended(engine)
    await engine.signals.deliver(wait.token(), "go")
    await copy_row(store, "suspension", wait.id, 1200, id=ID_OF_COPY[store.name])
    assert await engine.signals.list(wait.id) == ()
    [signal] = await engine.signals.list(wait.id, suspension=wait.suspension)
    assert signal.name == "go"
    await refused(engine.signals.list(wait.id, suspension=uuid4()), "suspension_not_found", NotFound)
    assert await engine.signals.list(other_wait.id, suspension=other_wait.suspension) == ()


async def test_all_signals_are_listed_even_if_there_are_many(engine: Engine, store: TestStore) -> None:
    wait = await suspended(engine, ["go"], Single("go", "yes"))
    await engine.signals.deliver(wait.token(), "no")
    await copy_row(store, "signal", wait.id, 25_000, id=ID_OF_COPY[store.name])
    assert await engine.signals.list(wait.id) == ()
    signals = await engine.signals.list(wait.id, include_unmatched=True)
    assert [signal.seq for signal in signals] == list(range(1, 25_001))


async def test_execution_without_a_wait_has_no_signals_and_unknown_suspension_is_not_found(engine: Engine) -> None:
    id_ = await submitted(engine)
    assert await engine.signals.list(id_) == ()
    await refused(engine.signals.list(id_, suspension=uuid4()), "suspension_not_found", NotFound)
    other_wait = await suspended(engine)
    await refused(engine.signals.list(id_, suspension=other_wait.suspension), "suspension_not_found", NotFound)


async def test_signals_are_ordered_and_survive_the_next_suspension(engine: Engine) -> None:
    first = await suspended(engine, ["zz", "a"])
    for key in ("zz", "a"):
        await engine.signals.deliver(first.token(key), "go")
    lease = await engine.leases.claim_resumed(first.id, "worker-2")
    await suspended(engine, ["b"], lease=lease)
    signals = await engine.signals.list(first.id, suspension=first.suspension)
    assert [signal.waitpoint for signal in signals] == ["zz", "a"]
