"""Tokens and secrets never appear in logs or errors, tokens are never stored, and forged tokens are refused."""

from __future__ import annotations

import base64
import logging
import random
from pathlib import Path
from typing import Any

import pytest

from flowfabric.engine import Accepted, Engine, FlowFabricError, InvalidRequest, NewWaitpoint, PendingWaitpoint, Secret
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written, refused
from tests.scenarios import leased, suspended
from tests.sizes import Size
from tests.stores import TABLES, TestStore, opened
from tests.unit.leaks import render_value

pytestmark = pytest.mark.full

SECRET = "5ec4e7" + "ab" * 29
CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


async def dump(store: TestStore) -> str:
    """Return everything stored, including blobs, as text."""
    tables = await store.queries([f"SELECT * FROM ff.{table}" for table in TABLES])
    return repr(tables)


async def run_lifecycle(engine: Engine, seen: list[Any]) -> list[Secret]:
    """Call every operation that handles tokens, collect the results, and return the tokens."""
    lease = await leased(engine)
    early = await engine.waitpoints.create(lease.fence, "early", expires="1h")
    wait = await suspended(
        engine, [NewWaitpoint("go", approver="ada"), PendingWaitpoint("early")], lease=lease, key="k", timeout="1d"
    )
    tokens = [wait.token(), wait.token("early")]
    seen += [early, wait, wait.answer]
    seen += [await engine.executions.describe(wait.id), await engine.waitpoints.list(wait.id)]
    seen += [await engine.waitpoints.list_suspended(), await engine.keys.list()]
    for text in (tokens[0].reveal()[:-1], tokens[0].reveal().replace("ffw1", "ffw2")):
        try:
            await engine.signals.deliver(text, "go")
        except FlowFabricError as error:
            seen.append(error)
    for token in tokens:
        seen.append(await engine.signals.deliver(token, "go", b"p", key="evt"))
    try:
        await engine.signals.deliver(tokens[0], "go")
    except FlowFabricError as error:
        seen.append(error)
    seen += [await engine.signals.list(wait.id), await engine.executions.history(wait.id)]
    return tokens


async def test_no_token_or_secret_appears_in_logs_reprs_or_errors(
    store: TestStore, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[Any] = []
    async with opened(store, clock) as engine:
        seen.append(await engine.keys.seed("k1", SECRET))
        tokens = await run_lifecycle(engine, seen)
        seen.append(await engine.keys.rotate("k2", Secret("cd" * 32)))
        for call in (engine.keys.seed("k1", SECRET + "0"), engine.keys.rotate("k1", "ee" * 32)):
            try:
                await call
            except FlowFabricError as error:
                seen.append(error)
        seen.append(engine)
    text = "\n".join(render_value(item) for item in seen) + caplog.text
    for hidden in (SECRET, "cd" * 32, "ee" * 32, *(token.reveal() for token in tokens)):
        assert hidden not in text
        assert hidden[-43:] not in text, "the mac alone must not appear either"


async def test_no_token_is_stored_in_the_database(store: TestStore, clock: VirtualClock) -> None:
    async with opened(store, clock) as engine:
        await engine.keys.seed("k1", SECRET)
        tokens = await run_lifecycle(engine, [])
    stored = await dump(store)
    assert SECRET in stored, "the search must find the store's own key, or the test proves nothing"
    for token in tokens:
        head, _, body, mac = token.reveal().split(".")
        assert not any(shape in stored for part in (body, mac) for shape in shapes(part)), head
    [row] = await store.query("SELECT nonce FROM ff.waitpoint WHERE key = 'go'")
    assert shapes_of(bytes(row["nonce"]))[0] in stored, "the search must find stored bytes, or the test proves nothing"


def shapes(text: str) -> list[str]:
    """Return the forms in which a part of a token could appear in a dump: as text and as decoded bytes."""
    return [text, *shapes_of(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))]


def shapes_of(content: bytes) -> list[str]:
    """Return the forms in which these bytes could appear in a dump: as Python prints them, and as hex digits."""
    return [repr(content)[2:-1], content.hex(), content.hex().upper()]


async def test_no_secret_is_stored_in_the_database_with_a_key_file(
    store: TestStore, clock: VirtualClock, tmp_path: Path
) -> None:
    path = tmp_path / "ring.keys"
    path.write_text(f"k1={SECRET}\n", encoding="utf-8")
    async with opened(store, clock, key_file=str(path)) as engine:
        tokens = await run_lifecycle(engine, [])
    stored = await dump(store)
    assert "k1" in stored
    for hidden in (SECRET, repr(bytes.fromhex(SECRET))[2:-1], *(token.reveal() for token in tokens)):
        assert hidden not in stored


async def test_forged_tokens_all_get_the_same_refusal_and_write_nothing(
    engine: Engine, store: TestStore, size: Size
) -> None:
    wait = await suspended(engine, [NewWaitpoint("go", approver="ada"), "b"])
    genuine = wait.token().reveal()
    draw = random.Random(7)
    messages = set()
    async with nothing_written(store):
        for _ in range(size.of(200, 1000, 1000)):
            place = draw.randrange(len(genuine))
            other = draw.choice([char for char in CHARACTERS if char != genuine[place]])
            forged = genuine[:place] + other + genuine[place + 1 :]
            error = await refused(engine.signals.deliver(forged, "go"), "invalid_token", InvalidRequest)
            messages.add((type(error), str(error), tuple(error.fields)))
    assert len(messages) == 1
    assert isinstance(await engine.signals.deliver(genuine, "go"), Accepted)
