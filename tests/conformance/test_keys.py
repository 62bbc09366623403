"""The key ring: seeded once, rotated with a grace, collected when nothing can be verified with a key any more."""

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
    Pending,
    Rotated,
    Seeded,
    Unchanged,
)  # fmt: skip
from flowfabric.testing import VirtualClock
from tests.facts import nothing_written, refused
from tests.scenarios import leased, suspended
from tests.stores import TestStore

ONE, TWO, THREE = "11" * 32, "22" * 32, "33" * 32


async def states(engine: Engine) -> dict[str, KeyState]:
    """What each key is good for."""
    return {key.kid: key.state for key in await engine.keys.list()}


async def key_events(store: TestStore) -> list[tuple[Any, ...]]:
    """The events of the ring, in order."""
    rows = await store.query("SELECT name, principal, reason FROM ff.event WHERE name LIKE 'key_%' ORDER BY id")
    return [tuple(row.values()) for row in rows]


# Seeding.


async def test_a_fresh_store_takes_its_first_key(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    assert await engine.keys.seed("k1", ONE, reason="first", principal="ada") == Seeded("k1")
    [key] = await engine.keys.list()
    assert (key.kid, key.state, key.created_at) == ("k1", KeyState.ACTIVE, clock.now())
    assert (key.retired_at, key.verifies_until) == (None, None)
    assert await key_events(store) == [("key_seeded", "ada", "first")]


async def test_the_same_kid_again_says_whether_the_secret_is_the_same(engine: Engine, store: TestStore) -> None:
    await engine.keys.seed("k1", ONE)
    async with nothing_written(store):
        assert await engine.keys.seed("k1", ONE.upper()) == AlreadySeeded("k1", same_secret=True, active=True)
        assert await engine.keys.seed("k1", TWO) == AlreadySeeded("k1", same_secret=False, active=True)
    await engine.keys.rotate("k2", TWO)
    async with nothing_written(store):
        assert await engine.keys.seed("k1", ONE) == AlreadySeeded("k1", same_secret=True, active=False)


async def test_another_kid_beside_an_active_one_is_refused(engine: Engine, store: TestStore) -> None:
    await engine.keys.seed("k1", ONE)
    async with nothing_written(store):
        error = await refused(engine.keys.seed("k2", TWO), "another_key_active", Conflict)
    assert "rotate" in error.message


async def test_a_malformed_secret_or_kid_is_refused(engine: Engine, store: TestStore) -> None:
    async with nothing_written(store):
        for secret in ("", "11" * 31, "11" * 33, "1" * 63, "zz" * 32):
            await refused(engine.keys.seed("k1", secret), "invalid_secret_hex", InvalidRequest)
            await refused(engine.keys.rotate("k1", secret), "invalid_secret_hex", InvalidRequest)
        for kid in ("", "a:b", "a.b", "x" * 33):
            await refused(engine.keys.seed(kid, ONE), "invalid_kid", InvalidRequest)
            await refused(engine.keys.rotate(kid, ONE), "invalid_kid", InvalidRequest)


# The first key of a store that was never given one.


async def test_a_store_makes_itself_a_key_with_its_first_token_and_not_before(engine: Engine, store: TestStore) -> None:
    assert await engine.keys.list() == ()
    lease = await leased(engine)
    assert await engine.keys.list() == ()
    wait = await suspended(engine, lease=lease)
    [key] = await engine.keys.list()
    assert key.state is KeyState.ACTIVE
    assert wait.token().reveal().split(".")[1] == key.kid
    other = await suspended(engine)
    assert other.token().reveal().split(".")[1] == key.kid
    [row] = await store.query("SELECT secret FROM ff.signing_key")
    assert len(row["secret"]) == 64


async def test_one_key_signs_for_all_namespaces_and_a_token_is_good_in_its_own_only(engine: Engine) -> None:
    other = engine.within("other")
    wait = await suspended(other)
    await suspended(engine)
    assert len(await engine.keys.list()) == 1
    await refused(engine.signals.deliver(wait.token(), "go"), "invalid_token", InvalidRequest)
    assert isinstance(await other.signals.deliver(wait.token(), "go"), Accepted)


# Rotation.


async def test_rotation_answers_what_it_did_and_the_old_key_verifies_on(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    assert await engine.keys.rotate("k1", ONE) == Rotated(previous=None, kid="k1", collected=0, cut_off=None)
    wait = await suspended(engine)
    answer = await engine.keys.rotate("k2", TWO, reason="yearly", principal="ada")
    assert answer == Rotated(previous="k1", kid="k2", collected=0, cut_off=None)
    listed = await engine.keys.list()
    assert [(key.kid, key.state) for key in listed] == [("k2", KeyState.ACTIVE), ("k1", KeyState.VERIFYING)]
    assert (listed[1].retired_at, listed[1].verifies_until) == (clock.now(), clock.now() + timedelta(hours=24))
    assert listed[1].in_use
    assert (await key_events(store))[-1] == ("key_rotated", "ada", "yearly")
    newer = await suspended(engine)
    assert newer.token().reveal().startswith("ffw1.k2.")
    assert isinstance(await engine.signals.deliver(wait.token(), "go"), Accepted)


async def test_the_same_key_again_is_unchanged_and_anything_else_about_a_known_kid_conflicts(
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


async def test_without_a_secret_one_is_drawn(engine: Engine, store: TestStore) -> None:
    await engine.keys.rotate("k1")
    await engine.keys.rotate("k2")
    rows = await store.query("SELECT secret FROM ff.signing_key")
    assert len({row["secret"] for row in rows}) == 2


async def test_an_old_key_verifies_for_a_day_and_as_long_as_an_open_waitpoint_needs_it(
    engine: Engine, clock: VirtualClock
) -> None:
    await engine.keys.seed("k1", ONE)
    wait = await suspended(engine)
    await engine.keys.rotate("k2", TWO)
    clock.advance("30d")
    await engine.reconcilers.tick()
    assert await states(engine) == {"k1": KeyState.VERIFYING, "k2": KeyState.ACTIVE}
    assert isinstance(await engine.signals.deliver(wait.token(), "go", key="evt"), Accepted)
    # The last waitpoint of the key is closed by that; now the window decides.
    await refused(engine.signals.deliver(wait.token(), "go", key="evt"), "invalid_token", InvalidRequest)
    await engine.reconcilers.tick()
    assert await states(engine) == {"k1": KeyState.COLLECTED, "k2": KeyState.ACTIVE}


async def test_an_explicit_grace_ends_exactly_then_and_says_whom_it_cuts_off(
    engine: Engine, clock: VirtualClock
) -> None:
    await engine.keys.seed("k1", ONE)
    wait, other = await suspended(engine), await suspended(engine, timeout="1d")
    await suspended(engine, timeout="1h")
    lease = await leased(engine)
    await engine.waitpoints.create(lease.fence, "brief", expires="30m")
    closed = await suspended(engine)
    await engine.signals.deliver(closed.token(), "go")
    answer = await engine.keys.rotate("k2", TWO, grace="1h")
    assert answer == Rotated(previous="k1", kid="k2", collected=0, cut_off=2)
    clock.advance("59m")
    clock.advance("59.999s")
    assert isinstance(await engine.signals.deliver(wait.token(), "go"), Accepted)
    clock.advance("1ms")
    await refused(engine.signals.deliver(other.token(), "go"), "invalid_token", InvalidRequest)
    assert (await states(engine))["k1"] is KeyState.EXPIRED
    assert isinstance(await engine.signals.approve(other.id, "go"), Accepted)


async def test_no_grace_at_all_cuts_off_at_once(engine: Engine) -> None:
    await engine.keys.seed("k1", ONE)
    wait = await suspended(engine)
    answer = await engine.keys.rotate("k2", TWO, grace=0)
    assert isinstance(answer, Rotated)
    assert answer.cut_off == 1
    await refused(engine.signals.deliver(wait.token(), "go"), "invalid_token", InvalidRequest)


async def test_a_token_that_was_handed_out_survives_a_rotation_before_its_suspend(engine: Engine) -> None:
    await engine.keys.seed("k1", ONE)
    lease = await leased(engine)
    early = await engine.waitpoints.create(lease.fence, "go")
    await engine.keys.rotate("k2", TWO)
    wait = await suspended(engine, [Pending("go")], lease=lease)
    assert wait.token() == early.token
    assert isinstance(await engine.signals.deliver(wait.token(), "go"), Accepted)


async def test_where_the_key_is_gone_there_is_no_token_to_show_any_more(engine: Engine) -> None:
    await engine.keys.seed("k1", ONE)
    lease = await leased(engine)
    await engine.waitpoints.create(lease.fence, "go")
    await engine.keys.rotate("k2", TWO, grace=0)
    await engine.reconcilers.tick()
    answer = await engine.leases.suspend(lease.fence, [Pending("go")])
    assert [item.token for item in getattr(answer, "waitpoints", ())] == [None]
    assert isinstance(await engine.signals.approve(lease.execution_id, "go"), Accepted)


# Collecting.


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


async def test_a_rotation_collects_what_has_expired_and_says_how_many(engine: Engine, clock: VirtualClock) -> None:
    await engine.keys.seed("k1", ONE)
    await engine.keys.rotate("k2", TWO, grace="1h")
    clock.advance("2h")
    answer = await engine.keys.rotate("k3", THREE)
    assert answer == Rotated(previous="k2", kid="k3", collected=1, cut_off=None)
    assert await states(engine) == {"k1": "collected", "k2": "verifying", "k3": "active"}


@pytest.mark.parametrize("operation", ["seed", "rotate"])
async def test_the_list_and_the_answers_show_no_secret(engine: Engine, operation: str) -> None:
    answer = await getattr(engine.keys, operation)("k1", ONE)
    assert ONE not in f"{answer!r} {await engine.keys.list()!r}"
