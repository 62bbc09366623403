"""Tests for tokens: contents, forgeries, key rotation, and errors that never show a token."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.tokens.key_ring import KeyRing, Rotation, collect, decide_rotate, new_key
from flowfabric.core.tokens.secret import Secret
from flowfabric.core.tokens.token import (
    MAX_TOKEN_CHARACTERS,
    TokenClaims,
    fingerprint,
    hash_token,
    mint_token,
    read_token,
    require_not_ended,
    verify_token,
)
from flowfabric.engine import InvalidRequest, Refused
from tests.unit.builders import ID, SECOND, T0
from tests.unit.core.tokens.token_cases import (
    ALPHABET,
    FULL,
    K0,
    K1,
    MINIMAL,
    RING,
    WAITPOINT,
    is_rejected,
    mint_text,
    open_token,
)
from tests.unit.leaks import catch_error, render_error, render_value

# Valid tokens


@pytest.mark.parametrize("claims", [MINIMAL, FULL, replace(MINIMAL, source="ops"), replace(MINIMAL, ends_at=T0)])
def test_token_verifies_with_its_claims(claims: TokenClaims) -> None:
    assert open_token(mint_token(K1, claims, "default")) == claims
    assert open_token(mint_text(claims)) == claims


sources = st.none() | st.text(min_size=1, max_size=256).filter(
    lambda text: text.isprintable() and text == text.strip() and len(text.encode()) <= 256
)
timestamps = st.none() | st.datetimes(datetime(1970, 1, 1), datetime(8999, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@given(st.uuids(), st.uuids(), st.binary(min_size=12, max_size=12), sources, timestamps)
def test_token_is_short_and_contains_exactly_its_claims(
    execution: UUID, waitpoint: UUID, nonce: bytes, source: str | None, ends_at: datetime | None
) -> None:
    claims = TokenClaims(execution_id=execution, waitpoint_id=waitpoint, nonce=nonce, source=source, ends_at=ends_at)
    token = mint_token(K1, claims, "default")
    assert open_token(token) == claims
    assert len(token.reveal()) <= MAX_TOKEN_CHARACTERS
    assert set(token.reveal()) <= {*ALPHABET, "."}


def test_longest_token_is_within_the_limit() -> None:
    key = new_key("k" * 32, Secret("1a" * 32), T0)
    token = mint_token(key, replace(FULL, source="ä" * 128), "default")
    assert len(token.reveal()) <= MAX_TOKEN_CHARACTERS
    assert open_token(token, KeyRing((key,))).source == "ä" * 128


def test_token_of_the_first_version_never_changes() -> None:
    """Tokens stay in mailboxes for months, so every later release must accept them."""
    assert mint_text() == (
        "ffw1.k1.AAGJAAAAAHAAgAAAAAAAAAEAAAAAAAAAAAAAAAAAAAq8dHdlbHZlIGJ5dGVz"
        ".WKwx9Ro10DxebSmt7AOctYfn-kNWrsSEW1P1mSM6bc4"
    )
    assert mint_text(FULL) == (
        "ffw1.k1.AwGJAAAAAHAAgAAAAAAAAAEAAAAAAAAAAAAAAAAAAAq8dHdlbHZlIGJ5dGVzAAa6F2raxAFvcHNAZXhhbXBsZS5jb20"
        ".Ve_PMMd1I0TGjXdiQuunxM5sueveDtSl-LngR_F2QQ4"
    )


def test_equal_claims_give_equal_tokens() -> None:
    assert mint_text() == mint_text()
    assert mint_text() != mint_text(replace(MINIMAL, nonce=b"other bytes!"))


def test_minimal_token_has_112_characters() -> None:
    assert len(mint_text()) == 112


@pytest.mark.parametrize("source", ["", " ops", "a\x00b", "x" * 257, "ä" * 129, 7])
def test_invalid_source_is_rejected(source: Any) -> None:
    with pytest.raises(InvalidRequest):
        replace(MINIMAL, source=source)


@pytest.mark.parametrize("ends_at", [datetime(2030, 1, 1), datetime(1969, 1, 1, tzinfo=UTC), "2030", 7])  # noqa: DTZ001
def test_end_must_be_a_timestamp(ends_at: Any) -> None:
    with pytest.raises(InvalidRequest):
        replace(MINIMAL, ends_at=ends_at)


def test_key_without_its_secret_cannot_mint() -> None:
    with pytest.raises(Refused) as refused:
        mint_token(replace(K1, secret=None), MINIMAL, "default")
    assert refused.value.code == "key_secret_missing"


def test_fingerprint_is_a_prefix_of_the_token_hash() -> None:
    token = mint_token(K1, MINIMAL, "default")
    assert len(hash_token(token)) == 32
    assert fingerprint(token) == hash_token(token).hex()[:16]
    assert fingerprint(token) != fingerprint(mint_token(K1, FULL, "default"))


# Forgeries


def _splice(claims: TokenClaims) -> str:
    """Return a token with the given claims and the mac of the minimal claims."""
    return f"{mint_text(claims).rpartition('.')[0]}.{mint_text().rpartition('.')[2]}"


@pytest.mark.parametrize(
    "claims",
    [
        replace(MINIMAL, execution_id=UUID(int=ID.int ^ 1)),
        replace(MINIMAL, waitpoint_id=UUID(int=WAITPOINT.int ^ 1)),
        replace(MINIMAL, execution_id=WAITPOINT, waitpoint_id=ID),
        replace(MINIMAL, nonce=b"other bytes!"),
        replace(MINIMAL, source="ops"),
        replace(MINIMAL, ends_at=T0),
    ],
    ids=["execution", "waitpoint", "swapped", "nonce", "source", "end"],
)
def test_the_mac_covers_every_claim(claims: TokenClaims) -> None:
    assert is_rejected(_splice(claims))


def test_different_source_or_end_under_the_same_mac_is_rejected() -> None:
    signed_part, _, mac = mint_text(FULL).rpartition(".")
    for other in (replace(FULL, source="cfo@example.com"), replace(FULL, source=None), replace(FULL, ends_at=None)):
        assert is_rejected(f"{mint_text(other).rpartition('.')[0]}.{mac}")
    assert not is_rejected(f"{signed_part}.{mac}")


def test_token_of_another_namespace_is_rejected() -> None:
    for namespace in ("Default", "defaul", "default2", "", "other"):
        with pytest.raises(InvalidRequest):
            open_token(mint_text(), namespace=namespace)


@pytest.mark.parametrize("purpose", ["grant", "handle", "cursor", "check", "", "waitpoint2"])
def test_token_for_another_purpose_is_rejected(purpose: str) -> None:
    other = mint_text(purpose=purpose)
    assert is_rejected(other)
    assert verify_token(read_token(other), RING, "default", T0, purpose=purpose) == MINIMAL


def test_different_kid_is_rejected_even_with_the_same_secret() -> None:
    same_secrets = KeyRing(
        (K1, replace(new_key("k0", K1.secret or Secret(""), T0), retired_at=T0, verifies_until=K0.verifies_until))
    )
    renamed = mint_text().replace("ffw1.k1.", "ffw1.k0.")
    assert open_token(mint_text(), same_secrets) == MINIMAL
    for ring in (same_secrets, RING):
        with pytest.raises(InvalidRequest):
            open_token(renamed, ring)
    assert is_rejected(mint_text().replace("ffw1.k1.", "ffw1.unknown."))


def test_characters_cannot_move_between_kid_and_namespace() -> None:
    first, second = new_key("ab", Secret("1a" * 32), T0), new_key("a", Secret("1a" * 32), T0)
    token = mint_token(first, MINIMAL, "c").reveal()
    with pytest.raises(InvalidRequest):
        open_token(token.replace("ffw1.ab.", "ffw1.a."), KeyRing((second,)), namespace="bc")


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "...",
        "ffw1",
        "ffw1...",
        "ffw1.k1..",
        "FFW1" + mint_text()[4:],
        "ffw2" + mint_text()[4:],
        mint_text()[5:],
        mint_text() + ".",
        mint_text() + "\n",
        " " + mint_text(),
        mint_text() + "=",
        mint_text() + "A",
        mint_text()[:-1],
        mint_text().replace(".", ":"),
        mint_text().replace("ffw1.k1", "ffw1.k:1"),
        mint_text().replace("ffw1.k1", "ffw1."),
        mint_text().replace("ffw1.k1", "ffw1." + "k" * 33),
        mint_text().replace("ffw1.k1", "ffw1." + "k" * 10_000),
        "x" * 10_000_000,
        "ffw1.k1." + "A" * 412 + "." + "A" * 43,
        "a\x00b",
        "a\ud800b",
        "ffw1.k1.\u0661" + mint_text()[9:],
    ],
    ids=range(25),
)
def test_malformed_text_is_rejected(text: str) -> None:
    assert is_rejected(text)


@pytest.mark.parametrize("odd", [None, 7, b"ffw1.k1.A.A", [], object(), MINIMAL])
def test_other_types_are_rejected(odd: Any) -> None:
    assert is_rejected(odd)


def test_mac_has_one_valid_encoding() -> None:
    """The last character of a mac has two unused bits, so four characters decode to the same mac. Only one is valid."""
    token = mint_text()
    equivalent = [other for other in ALPHABET if _decode_last_part(token[:-1] + other) == _decode_last_part(token)]
    assert len(equivalent) == 4
    assert [other for other in equivalent if not is_rejected(token[:-1] + other)] == [token[-1]]


def test_payload_has_one_valid_encoding() -> None:
    signed_part, _, mac = mint_text(replace(MINIMAL, source="ops!")).rpartition(".")
    equivalent = [
        other for other in ALPHABET if _decode_last_part(signed_part[:-1] + other) == _decode_last_part(signed_part)
    ]
    assert len(equivalent) > 1
    assert [other for other in equivalent if not is_rejected(f"{signed_part[:-1]}{other}.{mac}")] == [signed_part[-1]]


def _decode_last_part(text: str) -> bytes:
    part = text.rpartition(".")[2]
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def _make_unsigned_token(payload: bytes) -> str:
    body = base64.urlsafe_b64encode(payload).decode().rstrip("=")
    return f"ffw1.k1.{body}.{'A' * 43}"


@pytest.mark.parametrize(
    "payload",
    [
        b"\x04" + bytes(44),
        b"\x80" + bytes(44),
        b"\x00" + bytes(45),
        b"\x02" + bytes(44),
        b"\x02" + bytes(44) + b"\xff",
        b"\x02" + bytes(44) + b" ops",
        b"\x02" + bytes(44) + b"a\x00",
        b"\x01" + bytes(44),
        b"\x01" + bytes(44 + 7),
        b"\x01" + bytes(44 + 9),
        b"\x01" + bytes(44) + b"\xff" * 8,
        b"\x03" + bytes(44 + 8),
        b"\x02" + bytes(44) + b"x" * 257,
    ],
    ids=bytes.hex,
)
def test_malformed_payload_is_rejected_before_the_mac_is_checked(payload: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_token(_make_unsigned_token(payload))
    assert refused.value.code == "invalid_token"


# Keys and time


def test_token_survives_a_rotation_until_its_key_expires() -> None:
    decision = decide_rotate(KeyRing((K1,)), Rotation(kid="k2", secret=Secret("3c" * 32), grace="1h"), T0)
    ring = KeyRing(decision.writes)
    assert open_token(mint_text(), ring, now=T0 + timedelta(minutes=59)) == MINIMAL
    for expired_ring in (ring, KeyRing((*collect(ring, T0 + timedelta(hours=1)), *ring.keys[1:]))):
        with pytest.raises(InvalidRequest) as refused:
            open_token(mint_text(), expired_ring, now=T0 + timedelta(hours=1))
        assert refused.value.code == "invalid_token"


def test_retired_key_verifies_while_an_open_waitpoint_uses_it() -> None:
    old = mint_text(key=K0)
    assert open_token(old, now=T0 + timedelta(hours=23)) == MINIMAL
    assert open_token(old, KeyRing((K1, replace(K0, in_use=True))), now=T0 + timedelta(days=300)) == MINIMAL
    with pytest.raises(InvalidRequest):
        open_token(old, now=T0 + timedelta(days=1))


def test_end_of_a_token_is_checked_separately_after_verification() -> None:
    ended = replace(MINIMAL, ends_at=T0)
    claims = open_token(mint_text(ended), now=T0 + SECOND)
    assert claims == ended
    with pytest.raises(Refused) as refused:
        require_not_ended(claims, T0)
    assert refused.value.code == "token_expired"
    require_not_ended(claims, T0 - SECOND)
    require_not_ended(MINIMAL, T0 + timedelta(days=3650))


def test_macs_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[Any, Any]] = []

    def compare(left: Any, right: Any) -> bool:
        compared.append((left, right))
        return bool(left == right)

    monkeypatch.setattr("hmac.compare_digest", compare)
    assert open_token(mint_text()) == MINIMAL
    assert [right for _, right in compared] == [mint_text().rpartition(".")[2]]


# Secrecy


CANARY = replace(MINIMAL, source="canary-source")


def _list_secrets() -> list[str]:
    token = mint_text(CANARY)
    return [token, *token.split(".")[2:], "1a1a1a1a", "2b2b2b2b"]


def _list_rejected_calls() -> list[Callable[[], object]]:
    token = mint_text(CANARY)
    return [
        lambda: read_token(token + "x"),
        lambda: read_token(token[:-2]),
        lambda: read_token(Secret(token + "!")),
        lambda: read_token(_encode(token)),
        lambda: _verify(token, namespace="other"),
        lambda: _verify(token, ring=KeyRing()),
        lambda: _verify(token, ring=KeyRing((new_key("k1", Secret("2b" * 32), T0),))),
        lambda: mint_token(replace(K1, secret=None), CANARY, "default"),
        lambda: require_not_ended(_verify(mint_text(replace(CANARY, ends_at=T0))), T0),
    ]


def _encode(token: str) -> Any:
    return token.encode()


def _verify(token: str, ring: KeyRing = RING, namespace: str = "default") -> TokenClaims:
    return verify_token(read_token(token), ring, namespace, T0)


@pytest.mark.parametrize("number", range(9))
def test_no_error_shows_a_token_or_a_secret(number: int) -> None:
    text = render_error(catch_error(_list_rejected_calls()[number]))
    assert [secret for secret in _list_secrets() if secret in text] == []


def test_no_record_shows_a_token_or_a_secret() -> None:
    token = mint_token(K1, CANARY, "default")
    for record in (token, read_token(token), [read_token(token)], RING):
        assert [secret for secret in _list_secrets() if secret in render_value(record)] == []


def test_search_for_leaks_finds_a_leak() -> None:
    """Check the search that the tests above use, because a search that finds nothing would make them pass."""
    token = mint_text(CANARY)
    assert token in render_value([token])
    assert token in render_error(ValueError(token))
