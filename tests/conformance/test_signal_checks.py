"""Tests of the order in which a token is checked. A token that is not genuine always gets the same error."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from flowfabric.core.tokens.key_ring import Key
from flowfabric.core.tokens.token import TokenClaims, mint_token, read_token
from flowfabric.engine import Accepted, DuplicateSignal, Engine, InvalidRequest, NewWaitpoint, Secret
from flowfabric.testing import VirtualClock
from tests.expectations import error_of, nothing_written, refused
from tests.scenarios import leased, suspended
from tests.stores import TestStore


async def test_every_invalid_token_gets_the_same_error(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    wait, other_wait = await suspended(engine, ["go", "b"]), await suspended(engine)
    token = wait.token().reveal()
    head, kid, body, mac = token.split(".")
    foreign_body, foreign_mac = other_wait.token().reveal().split(".")[2:]
    guess = Key(kid=kid, check="", secret=Secret("ab" * 32), created_at=clock.now())
    claims = read_token(token).unverified
    forged = mint_token(guess, claims, "default").reveal()
    elsewhere = mint_token(await read_active_key(engine, store), claims, "elsewhere").reveal()
    unknown_execution = TokenClaims(execution_id=uuid4(), waitpoint_id=claims.waitpoint_id, nonce=claims.nonce)
    missing = TokenClaims(execution_id=wait.id, waitpoint_id=uuid4(), nonce=claims.nonce)
    swapped = TokenClaims(execution_id=other_wait.id, waitpoint_id=claims.waitpoint_id, nonce=claims.nonce)
    other_nonce = TokenClaims(execution_id=wait.id, waitpoint_id=claims.waitpoint_id, nonce=bytes(12))
    key = await read_active_key(engine, store)
    bad = [
        "", "x", token[:-1], token + "A", token.upper(), f"{head}.{kid}.{foreign_body}.{mac}",
        f"{head}.{kid}.{body}.{foreign_mac}", f"{head}.unknown.{body}.{mac}", f"ffw2.{kid}.{body}.{mac}", forged,
        elsewhere, f"{token}.", token.replace(".", ":"), mint_token(key, missing, "default").reveal(),
        mint_token(key, swapped, "default").reveal(), mint_token(key, other_nonce, "default").reveal(),
        mint_token(key, claims, "default", purpose="grant").reveal(),
    ]  # fmt: skip
    responses = set()
    async with nothing_written(store):
        for text in bad:
            error = await refused(engine.signals.deliver(text, "go"), "invalid_token", InvalidRequest)
            responses.add((error.message, tuple(error.fields)))
        error = await error_of(engine.signals.deliver(mint_token(key, unknown_execution, "default"), "go"))
        assert error.code == "execution_not_found"
        await refused(engine.for_namespace("elsewhere").signals.deliver(token, "go"), "invalid_token", InvalidRequest)
    assert len(responses) == 1, "all responses are equal"
    assert isinstance(await engine.signals.deliver(wait.token(), "go"), Accepted)


async def test_token_is_checked_before_duplicates_and_duplicates_before_expiry(
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


async def test_expiry_is_checked_before_the_execution_and_the_execution_before_the_waitpoint(
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


async def test_hard_end_expires_the_token_but_not_the_waitpoint(engine: Engine, clock: VirtualClock) -> None:
    ends_at = clock.now() + timedelta(minutes=1)
    wait = await suspended(engine, [NewWaitpoint("go", ends_at=ends_at)])
    clock.advance("59.999s")
    assert isinstance(await engine.signals.deliver(wait.token(), "go"), Accepted)
    wait = await suspended(engine, [NewWaitpoint("go", ends_at=ends_at)])
    clock.advance("1ms")
    error = await refused(engine.signals.deliver(wait.token(), "go"), "token_expired")
    assert error.fields["ended_at"] == ends_at
    assert isinstance(await engine.signals.approve(wait.id, "go"), Accepted)


async def read_active_key(engine: Engine, store: TestStore) -> Key:
    """Return the key that the store signs with."""
    [row] = await store.query("SELECT kid, secret FROM ff.signing_key WHERE retired_at IS NULL")
    [view] = await engine.keys.list()
    return Key(kid=row["kid"], check="", secret=Secret(row["secret"]), created_at=view.created_at)


async def test_suspension_key_is_scoped_to_its_execution(engine: Engine) -> None:
    tenant = engine.for_namespace("tenant-b")
    first, second = await suspended(engine, key="step-1"), await suspended(tenant, key="step-1")
    third = await suspended(engine, key="step-1")
    assert len({first.token(), second.token(), third.token()}) == 3
    assert len({first.suspension, second.suspension, third.suspension}) == 3


async def test_empty_suspension_key_is_refused(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    async with nothing_written(store):
        await refused(engine.leases.suspend(lease.fence, ["go"], key=""), "invalid_name", InvalidRequest)


async def test_error_without_a_genuine_token_does_not_reveal_existence(engine: Engine) -> None:
    wait = await suspended(engine)
    body = wait.token().reveal().rsplit(".", 1)[0]
    existing, unknown = f"{body}.{'A' * 43}", f"ffw1.nokey.{'A' * 60}.{'A' * 43}"
    errors = [
        await refused(engine.signals.deliver(text, "go"), "invalid_token", InvalidRequest)
        for text in (existing, unknown, "nonsense")
    ]
    assert len({(str(error), tuple(error.fields)) for error in errors}) == 1
