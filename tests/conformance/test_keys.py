"""Tests of the key ring: seeding, rotation with a grace, and collection of keys that no longer verify tokens."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from flowfabric.engine import (
    Accepted,
    AlreadySeeded,
    Conflict,
    Engine,
    InvalidRequest,
    KeyState,
    PendingWaitpoint,
    Rotated,
    Seeded,
    Unchanged,
)
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written, refused
from tests.scenarios import leased, suspended
from tests.stores import TestStore

ONE, TWO, THREE = "11" * 32, "22" * 32, "33" * 32


async def read_states(engine: Engine) -> dict[str, KeyState]:
    """Return the state of each key."""
    return {key.kid: key.state for key in await engine.keys.list()}


async def read_key_events(store: TestStore) -> list[tuple[Any, ...]]:
    """Return the events of the key ring, in order."""
    rows = await store.query("SELECT name, principal, reason FROM ff.event WHERE name LIKE 'key_%' ORDER BY id")
    return [tuple(row.values()) for row in rows]


# Seeding.


async def test_new_store_accepts_its_first_key(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    assert await engine.keys.seed("k1", ONE, reason="first", principal="ada") == Seeded("k1")
    [key] = await engine.keys.list()
    assert (key.kid, key.state, key.created_at) == ("k1", KeyState.ACTIVE, clock.now())
    assert (key.retired_at, key.verifies_until) == (None, None)
    assert await read_key_events(store) == [("key_seeded", "ada", "first")]


async def test_repeated_seed_reports_whether_the_secret_is_the_same(engine: Engine, store: TestStore) -> None:
    await engine.keys.seed("k1", ONE)
    async with nothing_written(store):
        assert await engine.keys.seed("k1", ONE.upper()) == AlreadySeeded("k1", same_secret=True, active=True)
        assert await engine.keys.seed("k1", TWO) == AlreadySeeded("k1", same_secret=False, active=True)
    await engine.keys.rotate("k2", TWO)
    async with nothing_written(store):
        assert await engine.keys.seed("k1", ONE) == AlreadySeeded("k1", same_secret=True, active=False)


async def test_second_key_cannot_be_seeded_beside_an_active_one(engine: Engine, store: TestStore) -> None:
    await engine.keys.seed("k1", ONE)
    async with nothing_written(store):
        error = await refused(engine.keys.seed("k2", TWO), "another_key_active", Conflict)
    assert "rotate" in error.message


async def test_malformed_secret_or_kid_is_refused(engine: Engine, store: TestStore) -> None:
    async with nothing_written(store):
        for secret in ("", "11" * 31, "11" * 33, "1" * 63, "zz" * 32):
            await refused(engine.keys.seed("k1", secret), "invalid_secret_hex", InvalidRequest)
            await refused(engine.keys.rotate("k1", secret), "invalid_secret_hex", InvalidRequest)
        for kid in ("", "a:b", "a.b", "x" * 33):
            await refused(engine.keys.seed(kid, ONE), "invalid_kid", InvalidRequest)
            await refused(engine.keys.rotate(kid, ONE), "invalid_kid", InvalidRequest)


# The following tests use a store without a seeded key.


async def test_store_creates_a_key_with_its_first_token_and_not_earlier(engine: Engine, store: TestStore) -> None:
    assert await engine.keys.list() == ()
    lease = await leased(engine)
    assert await engine.keys.list() == ()
    wait = await suspended(engine, lease=lease)
    [key] = await engine.keys.list()
    assert key.state is KeyState.ACTIVE
    assert wait.token().reveal().split(".")[1] == key.kid
    other_wait = await suspended(engine)
    assert other_wait.token().reveal().split(".")[1] == key.kid
    [row] = await store.query("SELECT secret FROM ff.signing_key")
    assert len(row["secret"]) == 64


async def test_one_key_signs_for_all_namespaces_and_a_token_is_valid_in_its_own_only(engine: Engine) -> None:
    other_namespace = engine.for_namespace("other")
    wait = await suspended(other_namespace)
    await suspended(engine)
    assert len(await engine.keys.list()) == 1
    await refused(engine.signals.deliver(wait.token(), "go"), "invalid_token", InvalidRequest)
    assert isinstance(await other_namespace.signals.deliver(wait.token(), "go"), Accepted)


# Rotation.


async def test_rotation_returns_its_effect_and_the_old_key_still_verifies(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    assert await engine.keys.rotate("k1", ONE) == Rotated(previous=None, kid="k1", collected=0, cut_off=None)
    wait = await suspended(engine)
    rotation = await engine.keys.rotate("k2", TWO, reason="yearly", principal="ada")
    assert rotation == Rotated(previous="k1", kid="k2", collected=0, cut_off=None)
    keys = await engine.keys.list()
    assert [(key.kid, key.state) for key in keys] == [("k2", KeyState.ACTIVE), ("k1", KeyState.VERIFYING)]
    assert (keys[1].retired_at, keys[1].verifies_until) == (clock.now(), clock.now() + timedelta(hours=24))
    assert keys[1].in_use
    assert (await read_key_events(store))[-1] == ("key_rotated", "ada", "yearly")
    newer = await suspended(engine)
    assert newer.token().reveal().startswith("ffw1.k2.")
    assert isinstance(await engine.signals.deliver(wait.token(), "go"), Accepted)


async def test_repeated_rotation_is_unchanged_and_other_content_for_a_kid_conflicts(
    engine: Engine, store: TestStore
) -> None:
    await engine.keys.rotate("k1", ONE)
    async with nothing_written(store):
        assert await engine.keys.rotate("k1", ONE) == Unchanged("k1")
        assert await engine.keys.rotate("k1") == Unchanged("k1")
        await refused(engine.keys.rotate("k1", TWO), "rotation_conflict", Conflict)
    await engine.keys.rotate("k2", TWO)
    async with nothing_written(store):
        await refused(engine.keys.rotate("k1", ONE), "rotation_conflict", Conflict)
        await refused(engine.keys.rotate("k1"), "rotation_conflict", Conflict)


async def test_rotation_without_a_secret_generates_one(engine: Engine, store: TestStore) -> None:
    await engine.keys.rotate("k1")
    await engine.keys.rotate("k2")
    rows = await store.query("SELECT secret FROM ff.signing_key")
    assert len({row["secret"] for row in rows}) == 2


async def test_old_key_verifies_for_a_day_and_while_an_open_waitpoint_needs_it(
    engine: Engine, clock: VirtualClock
) -> None:
    await engine.keys.seed("k1", ONE)
    wait = await suspended(engine)
    await engine.keys.rotate("k2", TWO)
    clock.advance("30d")
    await engine.reconcilers.tick()
    assert await read_states(engine) == {"k1": KeyState.VERIFYING, "k2": KeyState.ACTIVE}
    assert isinstance(await engine.signals.deliver(wait.token(), "go", key="evt"), Accepted)
    # The signal closed the last waitpoint that used key `k1`. So `k1` no longer verifies, and its tokens are invalid.
    await refused(engine.signals.deliver(wait.token(), "go", key="evt"), "invalid_token", InvalidRequest)
    await engine.reconcilers.tick()
    assert await read_states(engine) == {"k1": KeyState.COLLECTED, "k2": KeyState.ACTIVE}


async def test_explicit_grace_ends_on_time_and_reports_the_cut_off_waitpoints(
    engine: Engine, clock: VirtualClock
) -> None:
    await engine.keys.seed("k1", ONE)
    wait, other_wait = await suspended(engine), await suspended(engine, timeout="1d")
    await suspended(engine, timeout="1h")
    lease = await leased(engine)
    await engine.waitpoints.create(lease.fence, "brief", expires="30m")
    closed = await suspended(engine)
    await engine.signals.deliver(closed.token(), "go")
    rotation = await engine.keys.rotate("k2", TWO, grace="1h")
    assert rotation == Rotated(previous="k1", kid="k2", collected=0, cut_off=2)
    clock.advance("59m")
    clock.advance("59.999s")
    assert isinstance(await engine.signals.deliver(wait.token(), "go"), Accepted)
    clock.advance("1ms")
    await refused(engine.signals.deliver(other_wait.token(), "go"), "invalid_token", InvalidRequest)
    assert (await read_states(engine))["k1"] is KeyState.EXPIRED
    assert isinstance(await engine.signals.approve(other_wait.id, "go"), Accepted)


async def test_rotation_without_grace_cuts_off_immediately(engine: Engine) -> None:
    await engine.keys.seed("k1", ONE)
    wait = await suspended(engine)
    rotation = await engine.keys.rotate("k2", TWO, grace=0)
    assert isinstance(rotation, Rotated)
    assert rotation.cut_off == 1
    await refused(engine.signals.deliver(wait.token(), "go"), "invalid_token", InvalidRequest)


async def test_token_survives_a_rotation_before_its_suspend(engine: Engine) -> None:
    await engine.keys.seed("k1", ONE)
    lease = await leased(engine)
    early = await engine.waitpoints.create(lease.fence, "go")
    await engine.keys.rotate("k2", TWO)
    wait = await suspended(engine, [PendingWaitpoint("go")], lease=lease)
    assert wait.token() == early.token
    assert isinstance(await engine.signals.deliver(wait.token(), "go"), Accepted)


async def test_waitpoint_whose_key_is_collected_has_no_token(engine: Engine) -> None:
    await engine.keys.seed("k1", ONE)
    lease = await leased(engine)
    await engine.waitpoints.create(lease.fence, "go")
    await engine.keys.rotate("k2", TWO, grace=0)
    await engine.reconcilers.tick()
    outcome = await engine.leases.suspend(lease.fence, [PendingWaitpoint("go")])
    assert [waitpoint.token for waitpoint in getattr(outcome, "waitpoints", ())] == [None]
    assert isinstance(await engine.signals.approve(lease.execution_id, "go"), Accepted)


# Collection.


async def test_expired_keys_lose_their_secret_and_keep_their_kid(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    await engine.keys.seed("k1", ONE)
    await engine.keys.rotate("k2", TWO)
    clock.advance("23h")
    async with nothing_written(store):
        await engine.reconcilers.tick()
    clock.advance("1h")
    ticks = {tick.duty: tick.done for tick in await engine.reconcilers.tick()}
    assert ticks["key_collection"] == 1
    rows = await store.query("SELECT kid, secret FROM ff.signing_key ORDER BY kid")
    assert [(row["kid"], row["secret"]) for row in rows] == [("k1", None), ("k2", TWO)]
    async with nothing_written(store):
        await engine.reconcilers.tick()
        await refused(engine.keys.rotate("k1", ONE), "rotation_conflict", Conflict)
        assert await engine.keys.seed("k1", ONE) == AlreadySeeded("k1", same_secret=True, active=False)


async def test_rotation_collects_expired_keys_and_returns_their_number(engine: Engine, clock: VirtualClock) -> None:
    await engine.keys.seed("k1", ONE)
    await engine.keys.rotate("k2", TWO, grace="1h")
    clock.advance("2h")
    rotation = await engine.keys.rotate("k3", THREE)
    assert rotation == Rotated(previous="k2", kid="k3", collected=1, cut_off=None)
    assert await read_states(engine) == {"k1": "collected", "k2": "verifying", "k3": "active"}


@pytest.mark.parametrize("operation", ["seed", "rotate"])
async def test_list_and_outcomes_show_no_secret(engine: Engine, operation: str) -> None:
    outcome = await getattr(engine.keys, operation)("k1", ONE)
    assert ONE not in f"{outcome!r} {await engine.keys.list()!r}"


async def test_keys_expire_are_collected_and_no_kid_is_used_twice(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    await engine.keys.seed("k1", "11" * 32)
    wait = await suspended(engine)
    await engine.keys.rotate("k2", "22" * 32, grace="1h")
    clock.advance("1h")
    await refused(engine.signals.deliver(wait.token(), "go"), "invalid_token", InvalidRequest)
    assert {tick.duty: tick.done for tick in await engine.reconcilers.tick()}["key_collection"] == 1
    async with nothing_written(store):
        await refused(engine.keys.rotate("k1", "11" * 32), "rotation_conflict", Conflict)
        await refused(engine.keys.rotate("a:b", "11" * 32), "invalid_kid", InvalidRequest)
        await refused(engine.keys.rotate("k3", ""), "invalid_secret_hex", InvalidRequest)
