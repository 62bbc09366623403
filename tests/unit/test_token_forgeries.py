"""Whatever is changed in a token, and whatever is made up, is refused with the one answer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from flowfabric.core.keyring import new_key
from flowfabric.core.secret import Secret
from flowfabric.core.tokens import mint_token
from tests.sizes import Size
from tests.unit.builders import T0
from tests.unit.token_cases import ALPHABET, K0, K1, PLAIN, is_refused, minted, random_claims


def test_every_flipped_bit_of_many_tokens_is_refused(size: Size) -> None:
    chance = random.Random(7)
    number = size.of(100, 1000, 1000)
    tried = 0
    for turn in range(number):
        claims = random_claims(chance) if turn % 8 == 0 else replace(PLAIN, nonce=chance.randbytes(12))
        token = bytearray(minted(claims, chance.choice([K1, K0])).encode())
        assert not is_refused(token.decode())
        for place in range(len(token) * 8):
            token[place // 8] ^= 1 << place % 8
            assert is_refused(token.decode("latin-1")), place
            token[place // 8] ^= 1 << place % 8
            tried += 1
    assert tried >= number * 112 * 8


def _forgeries(chance: random.Random) -> Iterator[str]:
    """One forgery of each kind."""
    genuine, other = (minted(random_claims(chance), key) for key in (K1, K0))
    head, kid, payload, mac = genuine.split(".")
    _, other_kid, other_payload, other_mac = other.split(".")
    stranger = new_key("k1", Secret(chance.randbytes(32).hex()), T0)
    yield f"{head}.{kid}.{payload}.{_letters(chance, 43)}"
    yield f"{head}.{kid}.{_letters(chance, len(payload))}.{mac}"
    yield f"{head}.{kid}.{other_payload}.{mac}"
    yield f"{head}.{other_kid}.{payload}.{mac}"
    yield f"{head}.{kid}.{payload}.{other_mac}"
    yield minted(random_claims(chance), stranger)
    yield mint_token(K1, random_claims(chance), "other").reveal()
    yield minted(random_claims(chance), purpose="grant")
    yield genuine[: chance.randrange(len(genuine))]
    place = chance.randrange(len(genuine))
    yield genuine[:place] + chance.choice(ALPHABET + ".=+/ \n") + genuine[place:]
    yield _letters(chance, chance.randrange(1, 600))


def _letters(chance: random.Random, number: int) -> str:
    return "".join(chance.choices(ALPHABET, k=number))


def test_random_forgeries_are_refused(size: Size) -> None:
    chance = random.Random(11)
    tried = 0
    while tried < size.of(10_000, 100_000, 1_000_000):
        for forgery in _forgeries(chance):
            assert is_refused(forgery)
            tried += 1
