"""Tokens for tests: a ring of two keys, plain and full claims, and whether text is refused."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from flowfabric.core.keyring import Key, KeyRing, new_key
from flowfabric.core.secret import Secret
from flowfabric.core.tokens import Claims, mint_token, read_token, verify
from flowfabric.engine import InvalidRequest
from tests.unit.builders import ID, T0

K1 = new_key("k1", Secret("1a" * 32), T0)
# The kids differ by one bit, and nothing else may be needed to tell them apart.
K0 = replace(new_key("k0", Secret("2b" * 32), T0), retired_at=T0, verifies_until=T0 + timedelta(days=1))
RING = KeyRing((K1, K0))
WAITPOINT = UUID(int=0xABC)
PLAIN = Claims(execution_id=ID, waitpoint_id=WAITPOINT, nonce=b"twelve bytes")
FULL = replace(PLAIN, source="ops@example.com", ends_at=T0 + timedelta(hours=1, microseconds=1))
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def opened(text: str | Secret, ring: KeyRing = RING, namespace: str = "default", now: datetime = T0) -> Claims:
    """What a token says, once it is read and verified."""
    return verify(read_token(text), ring, namespace, now)


def is_refused(text: str) -> bool:
    """True if text gets the one answer, with nothing more to learn from it."""
    try:
        opened(text)
    except InvalidRequest as error:
        return error.code == "invalid_token" and not error.fields
    return False


def minted(claims: Claims = PLAIN, key: Key = K1, **more: Any) -> str:
    """The text of a token."""
    return mint_token(key, claims, "default", **more).reveal()


def random_claims(chance: random.Random) -> Claims:
    """Claims with and without their optional parts."""
    return Claims(
        execution_id=UUID(int=chance.getrandbits(128)),
        waitpoint_id=UUID(int=chance.getrandbits(128)),
        nonce=chance.randbytes(12),
        source=chance.choice([None, "ops", "finanç@example.com", "x" * chance.randrange(1, 60)]),
        ends_at=chance.choice([None, T0 + timedelta(microseconds=chance.getrandbits(40))]),
    )
