"""Test that racing key rotations leave one active key, return correct results, and issue no invalid token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from flowfabric.engine import (
    Accepted,
    AlreadySeeded,
    Conflict,
    Engine,
    FlowFabricError,
    KeyState,
    Rotated,
    Seeded,
    Suspended,
    Unchanged,
)
from flowfabric.testing import VirtualClock
from tests.concurrency.gates import StoppedCall, wait_until_blocked
from tests.concurrency.test_batcher import locked_row
from tests.concurrency.wait_soundness import assert_waits_sound
from tests.concurrency.waits import Act, duty, run_in_forced_order, state_of, suspended
from tests.scenarios import leased
from tests.stores import PostgresTestStore, TestStore, opened

SECRETS = ["1" * 64, "2" * 64]


@pytest.fixture
async def rival(store: TestStore, engine: Engine, clock: VirtualClock) -> AsyncIterator[Engine]:
    """A second engine on the same store and clock."""
    async with opened(store, clock) as rival:
        yield rival


@pytest.fixture
async def third(store: TestStore, rival: Engine, clock: VirtualClock) -> AsyncIterator[Engine]:
    async with opened(store, clock) as third:
        yield third


async def active_kids(engine: Engine) -> list[str]:
    return [key.kid for key in await engine.keys.list() if key.state is KeyState.ACTIVE]


async def key_events(store: TestStore) -> list[str]:
    rows = await store.query("SELECT name FROM ff.event WHERE name LIKE 'key_%' ORDER BY id")
    return [row["name"] for row in rows]


def rotate(kid: str, secret: str | None = None, **options: Any) -> Act:
    return lambda engine: engine.keys.rotate(kid, secret, **options)


async def test_two_engines_minting_the_first_token_create_one_key(
    store: TestStore, engine: Engine, rival: Engine
) -> None:
    leases = [await leased(engine) for _ in range(2)]
    results = await run_in_forced_order(
        store,
        (engine, lambda side: side.leases.suspend(leases[0].fence, ["boss"])),
        (rival, lambda side: side.leases.suspend(leases[1].fence, ["boss"])),
    )
    assert len(await active_kids(engine)) == len(await engine.keys.list()) == 1
    for result in results:
        assert isinstance(result, Suspended)
        token = result.token("boss")
        assert token is not None
        assert isinstance(await engine.signals.deliver(token, "go"), Accepted)
    await assert_waits_sound(store)


async def test_rolled_back_first_key_is_not_used_by_a_waiting_engine(
    store: TestStore, engine: Engine, rival: Engine
) -> None:
    leases = [await leased(engine) for _ in range(2)]
    stopped = StoppedCall(store, engine)
    await stopped.begin(lambda side: side.waitpoints.create(leases[0].fence, "boss"))
    waiting = asyncio.ensure_future(rival.leases.suspend(leases[1].fence, ["boss"]))
    await wait_until_blocked(store, rival, 1)
    await stopped.roll_back()
    waited = await waiting
    assert isinstance(waited, Suspended)
    assert waited.token("boss") is not None
    assert len(await active_kids(engine)) == 1
    await assert_waits_sound(store)


@pytest.mark.parametrize("seeded", [True, False], ids=["seeded ring", "empty ring"])
async def test_two_concurrent_rotations_both_take_effect(
    store: TestStore, engine: Engine, rival: Engine, seeded: bool
) -> None:
    if seeded:
        await engine.keys.seed("zero", SECRETS[0])
    one, two = await run_in_forced_order(store, (engine, rotate("one")), (rival, rotate("two")))
    assert (one.previous, one.kid) == ("zero" if seeded else None, "one")
    assert (two.previous, two.kid) == ("one", "two")
    assert await active_kids(engine) == ["two"]
    assert (await key_events(store)).count("key_rotated") == 2


async def test_three_concurrent_rotations_each_return_the_true_result(
    store: TestStore, engine: Engine, rival: Engine, third: Engine
) -> None:
    await engine.keys.seed("zero", SECRETS[0])
    sides = {"one": engine, "two": rival, "three": third}
    calls = {kid: StoppedCall(store, side) for kid, side in sides.items()}
    begun = {}
    for place, kid in enumerate(calls):
        # The second rotation sets a grace of zero, so that the previous key stops verifying at once. The other
        # rotations set no grace.
        begun[kid] = asyncio.ensure_future(calls[kid].begin(rotate(kid, grace="0s" if kid == "two" else None)))
        await (wait_until_blocked(store, sides[kid], place) if place else begun[kid])
    # The first rotation commits while the other two wait. One of these two then stops before its commit, and the other
    # still waits.
    rotations = [await calls["one"].commit()]
    waiting = {"two", "three"}
    while waiting:
        await asyncio.wait([begun[kid] for kid in waiting], return_when=asyncio.FIRST_COMPLETED)
        kid = next(kid for kid in waiting if begun[kid].done())
        waiting.remove(kid)
        for last in waiting:
            await wait_until_blocked(store, sides[last], 1)
        rotations.append(await calls[kid].commit())
    kids = [rotation.kid for rotation in rotations]
    assert [rotation.previous for rotation in rotations] == ["zero", *kids[:-1]]
    assert await active_kids(engine) == [kids[-1]]
    cut_off = {rotation.previous for rotation in rotations if rotation.kid == "two"}
    verifying = {key.kid for key in await engine.keys.list() if key.state is KeyState.VERIFYING}
    assert verifying == {"zero", *kids[:-1]} - cut_off
    assert (await key_events(store)).count("key_rotated") == 3


@pytest.mark.parametrize(("secrets", "expected"), [((0, 0), Unchanged), ((0, 1), "rotation_conflict")])
async def test_same_rotation_twice_concurrently_is_one(
    store: TestStore, engine: Engine, rival: Engine, secrets: tuple[int, int], expected: Any
) -> None:
    await engine.keys.seed("zero", "0" * 64)
    first, second = (rotate("one", SECRETS[number]) for number in secrets)
    one, other = await run_in_forced_order(store, (engine, first), (rival, second))
    assert isinstance(one, Rotated)
    assert (other.code if isinstance(other, Conflict) else type(other)) == expected
    assert await active_kids(engine) == ["one"]
    assert (await key_events(store)).count("key_rotated") == 1


@pytest.mark.parametrize("same_kid", [True, False])
async def test_one_of_two_concurrent_seeds_is_the_first_key(
    store: TestStore, engine: Engine, rival: Engine, same_kid: bool
) -> None:
    kids = ("one", "one") if same_kid else ("one", "two")
    one, other = await run_in_forced_order(
        store,
        (engine, lambda side: side.keys.seed(kids[0], SECRETS[0])),
        (rival, lambda side: side.keys.seed(kids[1], SECRETS[0])),
    )
    assert one == Seeded("one")
    if same_kid:
        assert other == AlreadySeeded("one", same_secret=True, active=True)
    else:
        assert isinstance(other, Conflict)
        assert other.code == "another_key_active"
    assert await active_kids(engine) == ["one"]


async def test_token_minted_before_a_rotation_is_counted_by_it(store: TestStore, engine: Engine, rival: Engine) -> None:
    await engine.keys.seed("zero", SECRETS[0])
    lease = await leased(engine)
    waited, rotated = await run_in_forced_order(
        store, (engine, lambda side: side.leases.suspend(lease.fence, ["boss"])), (rival, rotate("one", grace="1h"))
    )
    assert isinstance(waited, Suspended)
    assert rotated == Rotated("zero", "one", collected=0, cut_off=1)


async def test_process_mints_with_the_key_of_another_process_with_a_newer_file(
    store: TestStore, clock: VirtualClock, tmp_path: Path
) -> None:
    lines, files = [f"k{number}={secret}" for number, secret in enumerate(SECRETS)], []
    for name, order in (("old", lines), ("new", lines[::-1])):
        files.append(tmp_path / name)
        files[-1].write_text("\n".join(order))
    sides = [opened(store, clock, key_file=str(file)) for file in files]
    async with sides[0] as slow, sides[1] as quick:
        await suspended(slow)
        leases = [await leased(slow) for _ in range(2)]
        results = await run_in_forced_order(
            store,
            (quick, lambda side: side.leases.suspend(leases[0].fence, ["boss"])),
            (slow, lambda side: side.leases.suspend(leases[1].fence, ["boss"])),
        )
        for result in results:
            assert isinstance(result, Suspended)
            token = result.token("boss")
            assert token is not None
            assert token.reveal().startswith("ffw1.k1.")
            assert isinstance(await slow.signals.deliver(token, "go"), Accepted)
    await assert_waits_sound(store)


@pytest.mark.parametrize("grace", ["0s", None], ids=["no grace", "one day of grace"])
async def test_token_minted_after_a_rotation_uses_the_new_key(
    store: TestStore, engine: Engine, rival: Engine, grace: str | None
) -> None:
    await engine.keys.seed("zero", SECRETS[0])
    lease = await leased(engine)
    rotated, waited = await run_in_forced_order(
        store, (rival, rotate("one", grace=grace)), (engine, lambda side: side.leases.suspend(lease.fence, ["boss"]))
    )
    assert isinstance(rotated, Rotated)
    assert isinstance(waited, Suspended)
    token = waited.token("boss")
    assert token is not None
    assert isinstance(await engine.signals.deliver(token, "go"), Accepted)
    assert await state_of(engine, lease.execution_id) == "waiting"
    await assert_waits_sound(store)


async def test_signal_is_accepted_before_its_key_is_cut_off_and_refused_after(
    store: TestStore, engine: Engine, rival: Engine
) -> None:
    await engine.keys.seed("zero", SECRETS[0])
    wait = await suspended(engine)
    stopped = StoppedCall(store, rival)
    await stopped.begin(rotate("one", grace="0s"))
    sending = asyncio.ensure_future(wait.signal("early")(engine))
    if store.name == "postgres":
        # Reading the keys takes no lock, so a token is valid until the rotation commits.
        assert isinstance(await sending, Accepted)
    rotated = await stopped.commit()
    sent = (await asyncio.gather(sending, return_exceptions=True))[0]
    assert isinstance(rotated, Rotated)
    if store.name == "sqlite":
        assert isinstance(sent, FlowFabricError)
        assert sent.code == "invalid_token"
    with pytest.raises(FlowFabricError, match="token") as refused:
        await wait.signal("late")(engine)
    assert refused.value.code == "invalid_token"
    await assert_waits_sound(store)


async def test_signal_written_before_its_key_is_cut_off_is_accepted(
    store: TestStore, engine: Engine, rival: Engine
) -> None:
    await engine.keys.seed("zero", SECRETS[0])
    wait = await suspended(engine)
    # On PostgreSQL a rotation does not wait for a signal, because a signal locks no key.
    cut_off = rotate("one", grace="0s")
    sent, rotated = await run_in_forced_order(store, (engine, wait.signal("early")), (rival, cut_off), skips=True)
    assert (type(sent), type(rotated)) == (Accepted, Rotated)
    assert await state_of(engine, wait.id) == "waiting"
    await assert_waits_sound(store, [sent.signal_id])


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
@pytest.mark.parametrize("remembered", [True, False], ids=["cached key", "newly read key"])
async def test_signal_waiting_for_its_execution_is_refused_once_its_key_is_cut_off(
    store: PostgresTestStore, engine: Engine, rival: Engine, remembered: bool
) -> None:
    await engine.keys.seed("zero", SECRETS[0])
    wait = await suspended(engine)
    side = engine if remembered else rival
    async with locked_row(store, wait.lease):
        sending = asyncio.ensure_future(wait.signal("late")(side))
        await wait_until_blocked(store, side, 1)
        assert isinstance(await rotate("one", grace="0s")(engine), Rotated)
    sent = (await asyncio.gather(sending, return_exceptions=True))[0]
    assert isinstance(sent, FlowFabricError)
    assert sent.code == "invalid_token"
    assert await state_of(engine, wait.id) == "suspended"
    await assert_waits_sound(store)


async def test_with_a_day_of_grace_a_rotation_disturbs_no_signal(
    store: TestStore, engine: Engine, rival: Engine
) -> None:
    waits = [await suspended(engine) for _ in range(6)]
    calls = [wait.signal()((engine, rival)[place % 2]) for place, wait in enumerate(waits)]
    calls[3:3] = [rotate("one")(rival), rotate("two")(engine)]
    results = await asyncio.gather(*calls)
    assert [type(result).__name__ for result in results] == ["Accepted"] * 3 + ["Rotated"] * 2 + ["Accepted"] * 3
    assert len(await active_kids(engine)) == 1
    await assert_waits_sound(store)


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_key_collection_without_old_keys_takes_no_lock(store: TestStore, engine: Engine, rival: Engine) -> None:
    await engine.keys.seed("zero", SECRETS[0])
    lease = await leased(engine)
    stopped = StoppedCall(store, engine)
    await stopped.begin(lambda side: side.leases.suspend(lease.fence, ["boss"]))
    assert await asyncio.wait_for(duty("key_collection")(rival), timeout=5) == 0
    await stopped.commit()


async def test_two_processes_collect_a_key_once(
    store: TestStore, engine: Engine, rival: Engine, clock: VirtualClock
) -> None:
    await engine.keys.seed("zero", SECRETS[0])
    await engine.keys.rotate("one", grace="1h")
    clock.advance("2h")
    done = await run_in_forced_order(store, (engine, duty("key_collection")), (rival, duty("key_collection")))
    assert done == (1, 0)
