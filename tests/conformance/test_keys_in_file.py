"""Tests of a key ring in a file or an environment variable, whose secrets the store does not keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowfabric.engine import Accepted, Conflict, InvalidRequest, KeyState, Refused
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written, refused
from tests.scenarios import leased, suspended
from tests.stores import TestStore, opened

ONE, TWO = "11" * 32, "22" * 32


async def read_secrets(store: TestStore) -> dict[str, Any]:
    """Return the stored secret of each key."""
    rows = await store.query("SELECT kid, secret FROM ff.signing_key ORDER BY kid")
    return {row["kid"]: row["secret"] for row in rows}


def write_ring(folder: Path, *lines: str, name: str = "ring.keys") -> str:
    """Write a key file with these lines and return its path."""
    path = folder / name
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


async def test_file_signs_and_the_store_keeps_no_secret(store: TestStore, clock: VirtualClock, tmp_path: Path) -> None:
    path = write_ring(tmp_path, "# the ring", "", f"k1={ONE}")
    async with opened(store, clock, key_file=path) as engine:
        assert await engine.keys.list() == ()
        wait = await suspended(engine)
        assert wait.token().reveal().startswith("ffw1.k1.")
        assert await read_secrets(store) == {"k1": None}
        assert isinstance(await engine.signals.deliver(wait.token(), "go"), Accepted)
        assert [(key.kid, key.state) for key in await engine.keys.list()] == [("k1", KeyState.ACTIVE)]


async def test_new_first_line_becomes_active_and_the_old_key_still_verifies(
    store: TestStore, clock: VirtualClock, tmp_path: Path
) -> None:
    async with opened(store, clock, key_file=write_ring(tmp_path, f"k1={ONE}")) as engine:
        early = await suspended(engine)
        unsigned_wait = await suspended(engine)
    async with opened(store, clock, key_file=write_ring(tmp_path, f"k2={TWO}", f"k1={ONE}")) as engine:
        assert isinstance(await engine.signals.deliver(early.token(), "go"), Accepted)
        later = await suspended(engine)
        assert later.token().reveal().startswith("ffw1.k2.")
        assert await read_secrets(store) == {"k1": None, "k2": None}
        states = {key.kid: key.state for key in await engine.keys.list()}
        assert states == {"k1": KeyState.VERIFYING, "k2": KeyState.ACTIVE}
    async with opened(store, clock, key_file=write_ring(tmp_path, f"k2={TWO}")) as engine:
        await refused(engine.signals.deliver(unsigned_wait.token(), "go"), "invalid_token", InvalidRequest)
        assert isinstance(await engine.signals.deliver(later.token(), "go"), Accepted)


async def test_process_with_the_old_key_order_mints_with_the_active_key(
    store: TestStore, clock: VirtualClock, tmp_path: Path
) -> None:
    line_1, line_2 = f"k1={ONE}", f"k2={TWO}"
    old, new = (
        write_ring(tmp_path, line_1, line_2, name="old.keys"),
        write_ring(tmp_path, line_2, line_1, name="new.keys"),
    )
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
        states = {key.kid: key.state for key in await slow.keys.list()}
        assert states == {"k1": KeyState.VERIFYING, "k2": KeyState.ACTIVE}


async def test_moving_an_old_line_to_the_top_does_not_change_the_active_key(
    store: TestStore, clock: VirtualClock, tmp_path: Path
) -> None:
    lines = [f"k1={ONE}", f"k2={TWO}"]
    for order, kid in ((lines[:1], "k1"), (lines[::-1], "k2"), (lines, "k2")):
        async with opened(store, clock, key_file=write_ring(tmp_path, *order)) as engine:
            assert (await suspended(engine)).token().reveal().startswith(f"ffw1.{kid}.")


async def test_process_without_the_active_key_gets_the_missing_line_in_the_error(
    store: TestStore, clock: VirtualClock, tmp_path: Path
) -> None:
    old, new = (
        write_ring(tmp_path, f"k1={ONE}", name="old.keys"),
        write_ring(tmp_path, f"k2={TWO}", f"k1={ONE}", name="new.keys"),
    )
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


async def test_seed_and_rotate_are_refused_and_name_the_file(
    store: TestStore, clock: VirtualClock, tmp_path: Path
) -> None:
    path = write_ring(tmp_path, f"k1={ONE}")
    async with opened(store, clock, key_file=path) as engine, nothing_written(store):
        for call in (engine.keys.seed("k2", TWO), engine.keys.rotate("k2", TWO), engine.keys.rotate("k2")):
            error = await refused(call, "keys_kept_in_file")
            assert path in error.message


async def test_secret_that_does_not_match_its_kid_is_refused(
    store: TestStore, clock: VirtualClock, tmp_path: Path
) -> None:
    async with opened(store, clock, key_file=write_ring(tmp_path, f"k1={ONE}")) as engine:
        wait = await suspended(engine)
    async with opened(store, clock, key_file=write_ring(tmp_path, f"k1={TWO}")) as engine, nothing_written(store):
        error = await refused(engine.signals.deliver(wait.token(), "go"), "key_check_mismatch", Conflict)
        assert TWO not in f"{error} {dict(error.fields)}"
        assert (await engine.executions.describe(wait.id)).waitpoints


async def test_store_without_its_key_file_cannot_sign(store: TestStore, clock: VirtualClock, tmp_path: Path) -> None:
    async with opened(store, clock, key_file=write_ring(tmp_path, f"k1={ONE}")) as engine:
        wait = await suspended(engine)
    async with opened(store, clock) as engine:
        lease = await leased(engine)
        async with nothing_written(store):
            await refused(engine.leases.suspend(lease.fence, ["go"]), "key_secret_missing", Refused)
            await refused(engine.waitpoints.create(lease.fence, "go"), "key_secret_missing", Refused)
            await refused(engine.signals.deliver(wait.token(), "go"), "invalid_token", InvalidRequest)


async def test_environment_can_name_or_contain_the_ring(
    store: TestStore, clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWFABRIC_KEYS", f"k1={ONE}")
    async with opened(store, clock) as engine:
        assert (await suspended(engine)).token().reveal().startswith("ffw1.k1.")
        error = await refused(engine.keys.rotate("k2"), "keys_kept_in_file")
        assert "FLOWFABRIC_KEYS" in error.message
    monkeypatch.setenv("FLOWFABRIC_KEY_FILE", write_ring(tmp_path, f"k2={TWO}", f"k1={ONE}"))
    async with opened(store, clock) as engine:
        assert (await suspended(engine)).token().reveal().startswith("ffw1.k2.")
    assert await read_secrets(store) == {"k1": None, "k2": None}


async def test_store_with_its_own_key_can_switch_to_a_file(
    store: TestStore, clock: VirtualClock, tmp_path: Path
) -> None:
    async with opened(store, clock) as engine:
        await engine.keys.seed("own", ONE)
        wait = await suspended(engine)
    async with opened(store, clock, key_file=write_ring(tmp_path, f"k2={TWO}")) as engine:
        assert (await suspended(engine)).token().reveal().startswith("ffw1.k2.")
        assert isinstance(await engine.signals.deliver(wait.token(), "go"), Accepted)
        clock.advance("2d")
        await engine.reconcilers.tick()
    assert await read_secrets(store) == {"k2": None, "own": None}


async def test_unusable_file_is_refused_without_showing_its_content(
    store: TestStore, clock: VirtualClock, tmp_path: Path
) -> None:
    for lines in ([], ["k1"], [f"k1={ONE}1"], [f"k 1={ONE}"], [f"k1={ONE}", f"k1={TWO}"], [ONE]):
        with pytest.raises(InvalidRequest) as caught:
            await store.connecting(clock, key_file=write_ring(tmp_path, *lines))
        assert caught.value.code == "invalid_key_file"
        assert not any(secret in str(caught.value) for secret in (ONE, TWO))
