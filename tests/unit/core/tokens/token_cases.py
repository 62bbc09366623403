"""Tokens for tests: a ring of two keys, minimal and full claims, and a check for rejected text."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from flowfabric.core.tokens.key_ring import Key, KeyRing, new_key
from flowfabric.core.tokens.secret import Secret
from flowfabric.core.tokens.token import TokenClaims, mint_token, read_token, verify_token
from flowfabric.engine import InvalidRequest
from tests.unit.builders import ID, T0

K1 = new_key("k1", Secret("1a" * 32), T0)
# The kids differ by one bit, which must be enough to distinguish the keys.
K0 = replace(new_key("k0", Secret("2b" * 32), T0), retired_at=T0, verifies_until=T0 + timedelta(days=1))
RING = KeyRing((K1, K0))
WAITPOINT = UUID(int=0xABC)
MINIMAL = TokenClaims(execution_id=ID, waitpoint_id=WAITPOINT, nonce=b"twelve bytes")
FULL = replace(MINIMAL, source="ops@example.com", ends_at=T0 + timedelta(hours=1, microseconds=1))
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def open_token(text: str | Secret, ring: KeyRing = RING, namespace: str = "default", now: datetime = T0) -> TokenClaims:
    """Return the claims of a token after it is read and verified."""
    return verify_token(read_token(text), ring, namespace, now)


def is_rejected(text: str) -> bool:
    """Return True if the text is rejected with the code `invalid_token` and without fields."""
    try:
        open_token(text)
    except InvalidRequest as error:
        return error.code == "invalid_token" and not error.fields
    return False


def mint_text(claims: TokenClaims = MINIMAL, key: Key = K1, **more: Any) -> str:
    """Return the text of a token."""
    return mint_token(key, claims, "default", **more).reveal()


def make_random_claims(rng: random.Random) -> TokenClaims:
    """Return claims with and without their optional fields."""
    return TokenClaims(
        execution_id=UUID(int=rng.getrandbits(128)),
        waitpoint_id=UUID(int=rng.getrandbits(128)),
        nonce=rng.randbytes(12),
        source=rng.choice([None, "ops", "finanç@example.com", "x" * rng.randrange(1, 60)]),
        ends_at=rng.choice([None, T0 + timedelta(microseconds=rng.getrandbits(40))]),
    )
