"""A key file or an environment variable as the ring: the store keeps kids, windows and check values, no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowfabric.engine import Accepted, Conflict, InvalidRequest, KeyState, Refused
from flowfabric.testing import VirtualClock
from tests.facts import nothing_written, refused
from tests.scenarios import leased, suspended
from tests.stores import TestStore, opened

ONE, TWO = "11" * 32, "22" * 32


async def secrets(store: TestStore) -> dict[str, Any]:
    """What the store has of each key."""
    rows = await store.query("SELECT kid, secret FROM ff.signing_key ORDER BY kid")
    return {row["kid"]: row["secret"] for row in rows}


def ring(folder: Path, *lines: str, name: str = "ring.keys") -> str:
    """The path of a key file with these lines."""
    path = folder / name
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


async def test_the_file_signs_and_the_store_keeps_no_secret(
    store: TestStore, clock: VirtualClock, tmp_path: Path
) -> None:
    path = ring(tmp_path, "# the ring", "", f"k1={ONE}")
    async with opened(store, clock, key_file=path) as engine:
        assert await engine.keys.list() == ()
        wait = await suspended(engine)
        assert wait.token().reveal().startswith("ffw1.k1.")
        assert await secrets(store) == {"k1": None}
        assert isinstance(await engine.signals.deliver(wait.token(), "go"), Accepted)
        assert [(key.kid, key.state) for key in await engine.keys.list()] == [("k1", KeyState.ACTIVE)]


async def test_a_new_line_at_the_top_becomes_active_and_the_old_one_verifies_on(
    store: TestStore, clock: VirtualClock, tmp_path: Path
) -> None:
    async with opened(store, clock, key_file=ring(tmp_path, f"k1={ONE}")) as engine:
        early = await suspended(engine)
        lost = await suspended(engine)
    async with opened(store, clock, key_file=ring(tmp_path, f"k2={TWO}", f"k1={ONE}")) as engine:
        assert isinstance(await engine.signals.deliver(early.token(), "go"), Accepted)
        later = await suspended(engine)
        assert later.token().reveal().startswith("ffw1.k2.")
        assert await secrets(store) == {"k1": None, "k2": None}
        listed = {key.kid: key.state for key in await engine.keys.list()}
        assert listed == {"k1": KeyState.VERIFYING, "k2": KeyState.ACTIVE}
    async with opened(store, clock, key_file=ring(tmp_path, f"k2={TWO}")) as engine:
        await refused(engine.signals.deliver(lost.token(), "go"), "invalid_token", InvalidRequest)
        assert isinstance(await engine.signals.deliver(later.token(), "go"), Accepted)


async def test_a_process_whose_file_still_has_the_old_order_mints_with_the_key_that_is_active(
    store: TestStore, clock: VirtualClock, tmp_path: Path
) -> None:
    one, two = f"k1={ONE}", f"k2={TWO}"
    old, new = ring(tmp_path, one, two, name="old.keys"), ring(tmp_path, two, one, name="new.keys")
    async with opened(store, clock, key_file=old) as slow, opened(store, clock, key_file=new) as quick:
        assert (await suspended(slow)).token().reveal().startswith("ffw1.k1.")
        assert (await suspended(quick)).token().reveal().startswith("ffw1.k2.")
        lease = await leased(slow)
        early = await slow.waitpoints.create(lease.fence, "early")
        waits = [await suspended(slow, lease=lease), await suspended(quick)]
        for token in (early.token, *(wait.token() for wait in waits)):
            assert token is not None
            assert token.reveal().startswith("ffw1.k2.")
        for wait, side in zip(waits, (quick, slow), strict=True):
            assert isinstance(await side.signals.deliver(wait.token(), "go"), Accepted)
        listed = {key.kid: key.state for key in await slow.keys.list()}
        assert listed == {"k1": KeyState.VERIFYING, "k2": KeyState.ACTIVE}


async def test_moving_an_old_line_up_again_changes_no_key_and_stops_nobody(
    store: TestStore, clock: VirtualClock, tmp_path: Path
) -> None:
    lines = [f"k1={ONE}", f"k2={TWO}"]
    for order, kid in ((lines[:1], "k1"), (lines[::-1], "k2"), (lines, "k2")):
        async with opened(store, clock, key_file=ring(tmp_path, *order)) as engine:
            assert (await suspended(engine)).token().reveal().startswith(f"ffw1.{kid}.")


async def test_a_process_whose_file_lacks_the_active_key_is_told_which_line_to_add(
    store: TestStore, clock: VirtualClock, tmp_path: Path
) -> None:
    old, new = ring(tmp_path, f"k1={ONE}", name="old.keys"), ring(tmp_path, f"k2={TWO}", f"k1={ONE}", name="new.keys")
    async with opened(store, clock, key_file=old) as slow, opened(store, clock, key_file=new) as quick:
        early, wait = await suspended(slow), await suspended(quick)
        lease = await leased(slow)
        async with nothing_written(store):
            for call in (slow.leases.suspend(lease.fence, ["go"]), slow.waitpoints.create(lease.fence, "go")):
                error = await refused(call, "key_secret_missing")
                assert "k2" in error.message
                assert old in error.message
            await refused(slow.signals.deliver(wait.token(), "go"), "invalid_token", InvalidRequest)
        assert isinstance(await slow.signals.deliver(early.token(), "go"), Accepted)


async def test_seed_and_rotate_are_refused_and_say_what_to_edit(
    store: TestStore, clock: VirtualClock, tmp_path: Path
) -> None:
    path = ring(tmp_path, f"k1={ONE}")
    async with opened(store, clock, key_file=path) as engine, nothing_written(store):
        for call in (engine.keys.seed("k2", TWO), engine.keys.rotate("k2", TWO), engine.keys.rotate("k2")):
            error = await refused(call, "keys_kept_in_file")
            assert path in error.message


async def test_a_secret_that_is_not_the_one_of_its_kid_is_refused(
    store: TestStore, clock: VirtualClock, tmp_path: Path
) -> None:
    async with opened(store, clock, key_file=ring(tmp_path, f"k1={ONE}")) as engine:
        wait = await suspended(engine)
    async with opened(store, clock, key_file=ring(tmp_path, f"k1={TWO}")) as engine, nothing_written(store):
        error = await refused(engine.signals.deliver(wait.token(), "go"), "key_check_mismatch", Conflict)
        assert TWO not in f"{error} {dict(error.fields)}"
        assert (await engine.executions.describe(wait.id)).waitpoints


async def test_the_store_without_its_file_cannot_sign_with_a_key_it_does_not_have(
    store: TestStore, clock: VirtualClock, tmp_path: Path
) -> None:
    async with opened(store, clock, key_file=ring(tmp_path, f"k1={ONE}")) as engine:
        wait = await suspended(engine)
    async with opened(store, clock) as engine:
        lease = await leased(engine)
        async with nothing_written(store):
            await refused(engine.leases.suspend(lease.fence, ["go"]), "key_secret_missing", Refused)
            await refused(engine.waitpoints.create(lease.fence, "go"), "key_secret_missing", Refused)
            await refused(engine.signals.deliver(wait.token(), "go"), "invalid_token", InvalidRequest)


async def test_the_environment_can_name_or_hold_the_ring(
    store: TestStore, clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWFABRIC_KEYS", f"k1={ONE}")
    async with opened(store, clock) as engine:
        assert (await suspended(engine)).token().reveal().startswith("ffw1.k1.")
        error = await refused(engine.keys.rotate("k2"), "keys_kept_in_file")
        assert "FLOWFABRIC_KEYS" in error.message
    monkeypatch.setenv("FLOWFABRIC_KEY_FILE", ring(tmp_path, f"k2={TWO}", f"k1={ONE}"))
    async with opened(store, clock) as engine:
        assert (await suspended(engine)).token().reveal().startswith("ffw1.k2.")
    assert await secrets(store) == {"k1": None, "k2": None}


async def test_a_store_that_had_its_own_key_goes_over_to_a_file(
    store: TestStore, clock: VirtualClock, tmp_path: Path
) -> None:
    async with opened(store, clock) as engine:
        await engine.keys.seed("own", ONE)
        wait = await suspended(engine)
    async with opened(store, clock, key_file=ring(tmp_path, f"k2={TWO}")) as engine:
        assert (await suspended(engine)).token().reveal().startswith("ffw1.k2.")
        assert isinstance(await engine.signals.deliver(wait.token(), "go"), Accepted)
        clock.advance("2d")
        await engine.reconcilers.tick()
    assert await secrets(store) == {"k2": None, "own": None}


async def test_a_file_that_cannot_be_used_is_refused_without_showing_it(
    store: TestStore, clock: VirtualClock, tmp_path: Path
) -> None:
    for lines in ([], ["k1"], [f"k1={ONE}1"], [f"k 1={ONE}"], [f"k1={ONE}", f"k1={TWO}"], [ONE]):
        with pytest.raises(InvalidRequest) as caught:
            await store.connecting(clock, key_file=ring(tmp_path, *lines))
        assert caught.value.code == "invalid_key_file"
        assert not any(secret in str(caught.value) for secret in (ONE, TWO))
