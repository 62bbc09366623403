"""Tests that changed and made-up tokens are rejected."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from flowfabric.core.tokens.key_ring import new_key
from flowfabric.core.tokens.secret import Secret
from flowfabric.core.tokens.token import mint_token
from tests.sizes import Size
from tests.unit.builders import T0
from tests.unit.core.tokens.token_cases import ALPHABET, K0, K1, MINIMAL, is_rejected, make_random_claims, mint_text

pytestmark = pytest.mark.full


def test_token_with_any_flipped_bit_is_rejected(size: Size) -> None:
    rng = random.Random(7)
    number = size.of(100, 1000, 1000)
    attempts = 0
    for turn in range(number):
        claims = make_random_claims(rng) if turn % 8 == 0 else replace(MINIMAL, nonce=rng.randbytes(12))
        token = bytearray(mint_text(claims, rng.choice([K1, K0])).encode())
        assert not is_rejected(token.decode())
        for bit in range(len(token) * 8):
            token[bit // 8] ^= 1 << bit % 8
            assert is_rejected(token.decode("latin-1")), bit
            token[bit // 8] ^= 1 << bit % 8
            attempts += 1
    assert attempts >= number * 112 * 8


def _make_forgeries(rng: random.Random) -> Iterator[str]:
    """Yield one forgery of each kind."""
    genuine, other = (mint_text(make_random_claims(rng), key) for key in (K1, K0))
    head, kid, payload, mac = genuine.split(".")
    _, other_kid, other_payload, other_mac = other.split(".")
    foreign_key = new_key("k1", Secret(rng.randbytes(32).hex()), T0)
    yield f"{head}.{kid}.{payload}.{_random_text(rng, 43)}"
    yield f"{head}.{kid}.{_random_text(rng, len(payload))}.{mac}"
    yield f"{head}.{kid}.{other_payload}.{mac}"
    yield f"{head}.{other_kid}.{payload}.{mac}"
    yield f"{head}.{kid}.{payload}.{other_mac}"
    yield mint_text(make_random_claims(rng), foreign_key)
    yield mint_token(K1, make_random_claims(rng), "other").reveal()
    yield mint_text(make_random_claims(rng), purpose="grant")
    yield genuine[: rng.randrange(len(genuine))]
    index = rng.randrange(len(genuine))
    yield genuine[:index] + rng.choice(ALPHABET + ".=+/ \n") + genuine[index:]
    yield _random_text(rng, rng.randrange(1, 600))


def _random_text(rng: random.Random, number: int) -> str:
    return "".join(rng.choices(ALPHABET, k=number))


def test_random_forgeries_are_rejected(size: Size) -> None:
    rng = random.Random(11)
    attempts = 0
    while attempts < size.of(10_000, 100_000, 1_000_000):
        for forgery in _make_forgeries(rng):
            assert is_rejected(forgery)
            attempts += 1
