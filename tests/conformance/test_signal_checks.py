"""The order in which a token is checked is part of the contract; before the mac nothing is told apart."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from flowfabric.core.keyring import Key
from flowfabric.core.tokens import Claims, mint_token, read_token
from flowfabric.engine import Accepted, DuplicateSignal, Engine, Fresh, InvalidRequest, Secret
from flowfabric.testing import VirtualClock
from tests.facts import error_of, nothing_written, refused
from tests.scenarios import leased, suspended
from tests.stores import TestStore


async def test_whatever_is_wrong_with_a_token_has_one_answer(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    wait, other = await suspended(engine, ["go", "b"]), await suspended(engine)
    token = wait.token().reveal()
    head, kid, body, mac = token.split(".")
    foreign_body, foreign_mac = other.token().reveal().split(".")[2:]
    guess = Key(kid=kid, check="", secret=Secret("ab" * 32), created_at=clock.now())
    claims = read_token(token).unverified
    forged = mint_token(guess, claims, "default").reveal()
    elsewhere = mint_token(await active_key(engine, store), claims, "elsewhere").reveal()
    nobody = Claims(execution_id=uuid4(), waitpoint_id=claims.waitpoint_id, nonce=claims.nonce)
    missing = Claims(execution_id=wait.id, waitpoint_id=uuid4(), nonce=claims.nonce)
    swapped = Claims(execution_id=other.id, waitpoint_id=claims.waitpoint_id, nonce=claims.nonce)
    other_nonce = Claims(execution_id=wait.id, waitpoint_id=claims.waitpoint_id, nonce=bytes(12))
    key = await active_key(engine, store)
    bad = [
        "", "x", token[:-1], token + "A", token.upper(), f"{head}.{kid}.{foreign_body}.{mac}",
        f"{head}.{kid}.{body}.{foreign_mac}", f"{head}.unknown.{body}.{mac}", f"ffw2.{kid}.{body}.{mac}", forged,
        elsewhere, f"{token}.", token.replace(".", ":"), mint_token(key, missing, "default").reveal(),
        mint_token(key, swapped, "default").reveal(), mint_token(key, other_nonce, "default").reveal(),
        mint_token(key, claims, "default", purpose="grant").reveal(),
    ]  # fmt: skip
    said = set()
    async with nothing_written(store):
        for text in bad:
            error = await refused(engine.signals.deliver(text, "go"), "invalid_token", InvalidRequest)
            said.add((error.message, tuple(error.fields)))
        error = await error_of(engine.signals.deliver(mint_token(key, nobody, "default"), "go"))
        assert error.code == "execution_not_found"
        await refused(engine.within("elsewhere").signals.deliver(token, "go"), "invalid_token", InvalidRequest)
    assert len(said) == 1, "nothing is told apart"
    assert isinstance(await engine.signals.deliver(wait.token(), "go"), Accepted)


async def test_the_token_is_looked_at_before_the_rest_and_the_repeat_before_the_time(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    lease = await leased(engine, signals=["mail"])
    early = await engine.waitpoints.create(lease.fence, "go", expires="1h")
    assert early.token is not None
    accepted = await engine.signals.deliver(early.token, "go", key="evt")
    await engine.operator.cancel(lease.execution_id)
    clock.advance("1h")
    async with nothing_written(store):
        broken = early.token.reveal()[:-2] + "AA"
        await refused(engine.signals.deliver(broken, "go", key="evt"), "invalid_token", InvalidRequest)
        assert await engine.signals.deliver(early.token, "go", key="evt") == DuplicateSignal(accepted.signal_id)
        await refused(engine.signals.deliver(early.token, "go"), "token_expired")


async def test_the_time_goes_before_the_execution_and_that_before_the_waitpoint(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    wait = await suspended(engine, timeout="1h", on_timeout="auto_resume")
    await engine.signals.deliver(wait.token(), "go")
    async with nothing_written(store):
        await refused(engine.signals.deliver(wait.token(), "late"), "waitpoint_closed")
    await engine.operator.cancel(wait.id)
    async with nothing_written(store):
        await refused(engine.signals.deliver(wait.token(), "late"), "target_not_signalable")
    clock.advance("1h")
    async with nothing_written(store):
        await refused(engine.signals.deliver(wait.token(), "late"), "token_expired")


async def test_a_hard_end_ends_the_token_and_not_the_waitpoint(engine: Engine, clock: VirtualClock) -> None:
    end = clock.now() + timedelta(minutes=1)
    wait = await suspended(engine, [Fresh("go", ends_at=end)])
    clock.advance("59.999s")
    assert isinstance(await engine.signals.deliver(wait.token(), "go"), Accepted)
    wait = await suspended(engine, [Fresh("go", ends_at=end)])
    clock.advance("1ms")
    error = await refused(engine.signals.deliver(wait.token(), "go"), "token_expired")
    assert error.fields["ended_at"] == end
    assert isinstance(await engine.signals.approve(wait.id, "go"), Accepted)


async def active_key(engine: Engine, store: TestStore) -> Key:
    """The key that the store signs with."""
    [row] = await store.query("SELECT kid, secret FROM ff.signing_key WHERE retired_at IS NULL")
    [view] = await engine.keys.list()
    return Key(kid=row["kid"], check="", secret=Secret(row["secret"]), created_at=view.created_at)
