"""A token opens one waitpoint of one execution; nothing else that looks like one opens anything."""

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

from flowfabric.core.keyring import KeyRing, Rotation, collect, decide_rotate, new_key
from flowfabric.core.secret import Secret
from flowfabric.core.tokens import (
    TOKEN_CHARACTERS,
    Claims,
    fingerprint,
    hash_token,
    mint_token,
    read_token,
    require_not_ended,
    verify,
)
from flowfabric.engine import InvalidRequest, Refused
from tests.unit.builders import ID, SECOND, T0
from tests.unit.leaks import refusal_of, shown, told
from tests.unit.token_cases import ALPHABET, FULL, K0, K1, PLAIN, RING, WAITPOINT, is_refused, minted, opened

# What a token is


@pytest.mark.parametrize("claims", [PLAIN, FULL, replace(PLAIN, source="ops"), replace(PLAIN, ends_at=T0)])
def test_a_token_opens_what_it_was_minted_for(claims: Claims) -> None:
    assert opened(mint_token(K1, claims, "default")) == claims
    assert opened(minted(claims)) == claims


sources = st.none() | st.text(min_size=1, max_size=256).filter(
    lambda text: text.isprintable() and text == text.strip() and len(text.encode()) <= 256
)
moments = st.none() | st.datetimes(datetime(1970, 1, 1), datetime(8999, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@given(st.uuids(), st.uuids(), st.binary(min_size=12, max_size=12), sources, moments)
def test_every_token_is_short_and_says_exactly_what_was_put_into_it(
    execution: UUID, waitpoint: UUID, nonce: bytes, source: str | None, ends_at: datetime | None
) -> None:
    claims = Claims(execution_id=execution, waitpoint_id=waitpoint, nonce=nonce, source=source, ends_at=ends_at)
    token = mint_token(K1, claims, "default")
    assert opened(token) == claims
    assert len(token.reveal()) <= TOKEN_CHARACTERS
    assert set(token.reveal()) <= {*ALPHABET, "."}


def test_the_longest_token_is_within_the_bound() -> None:
    key = new_key("k" * 32, Secret("1a" * 32), T0)
    token = mint_token(key, replace(FULL, source="ä" * 128), "default")
    assert len(token.reveal()) <= TOKEN_CHARACTERS
    assert opened(token, KeyRing((key,))).source == "ä" * 128


def test_a_token_of_the_first_version_never_changes() -> None:
    """Tokens live in mail boxes for months; whatever is rewritten here, they must still open."""
    assert minted() == (
        "ffw1.k1.AAGJAAAAAHAAgAAAAAAAAAEAAAAAAAAAAAAAAAAAAAq8dHdlbHZlIGJ5dGVz"
        ".WKwx9Ro10DxebSmt7AOctYfn-kNWrsSEW1P1mSM6bc4"
    )
    assert minted(FULL) == (
        "ffw1.k1.AwGJAAAAAHAAgAAAAAAAAAEAAAAAAAAAAAAAAAAAAAq8dHdlbHZlIGJ5dGVzAAa6F2raxAFvcHNAZXhhbXBsZS5jb20"
        ".Ve_PMMd1I0TGjXdiQuunxM5sueveDtSl-LngR_F2QQ4"
    )


def test_the_same_claims_give_the_same_token_again() -> None:
    assert minted() == minted()
    assert minted() != minted(replace(PLAIN, nonce=b"other bytes!"))


def test_a_plain_token_fits_on_two_lines_of_a_mail() -> None:
    assert len(minted()) == 112


@pytest.mark.parametrize("source", ["", " ops", "a\x00b", "x" * 257, "ä" * 129, 7])
def test_a_source_that_does_not_fitis_refused(source: Any) -> None:
    with pytest.raises(InvalidRequest):
        replace(PLAIN, source=source)


@pytest.mark.parametrize("ends_at", [datetime(2030, 1, 1), datetime(1969, 1, 1, tzinfo=UTC), "2030", 7])  # noqa: DTZ001
def test_an_end_must_be_a_moment(ends_at: Any) -> None:
    with pytest.raises(InvalidRequest):
        replace(PLAIN, ends_at=ends_at)


def test_a_key_without_its_secret_cannot_mint() -> None:
    with pytest.raises(Refused) as refused:
        mint_token(replace(K1, secret=None), PLAIN, "default")
    assert refused.value.code == "key_secret_missing"


def test_a_token_is_known_by_its_hash_and_shown_by_its_fingerprint() -> None:
    token = mint_token(K1, PLAIN, "default")
    assert len(hash_token(token)) == 32
    assert fingerprint(token) == hash_token(token).hex()[:16]
    assert fingerprint(token) != fingerprint(mint_token(K1, FULL, "default"))


# What is not one


def _spliced(claims: Claims) -> str:
    """The words of other claims under the mac of the plain ones."""
    return f"{minted(claims).rpartition('.')[0]}.{minted().rpartition('.')[2]}"


@pytest.mark.parametrize(
    "claims",
    [
        replace(PLAIN, execution_id=UUID(int=ID.int ^ 1)),
        replace(PLAIN, waitpoint_id=UUID(int=WAITPOINT.int ^ 1)),
        replace(PLAIN, execution_id=WAITPOINT, waitpoint_id=ID),
        replace(PLAIN, nonce=b"other bytes!"),
        replace(PLAIN, source="ops"),
        replace(PLAIN, ends_at=T0),
    ],
    ids=["execution", "waitpoint", "swapped", "nonce", "source", "end"],
)
def test_the_mac_covers_every_claim(claims: Claims) -> None:
    assert is_refused(_spliced(claims))


def test_another_source_or_end_under_the_same_macis_refused() -> None:
    words, _, mac = minted(FULL).rpartition(".")
    for other in (replace(FULL, source="cfo@example.com"), replace(FULL, source=None), replace(FULL, ends_at=None)):
        assert is_refused(f"{minted(other).rpartition('.')[0]}.{mac}")
    assert not is_refused(f"{words}.{mac}")


def test_another_namespaceis_refused() -> None:
    for namespace in ("Default", "defaul", "default2", "", "other"):
        with pytest.raises(InvalidRequest):
            opened(minted(), namespace=namespace)


@pytest.mark.parametrize("purpose", ["grant", "handle", "cursor", "check", "", "waitpoint2"])
def test_what_was_made_for_another_purposeis_refused(purpose: str) -> None:
    other = minted(purpose=purpose)
    assert is_refused(other)
    assert verify(read_token(other), RING, "default", T0, purpose=purpose) == PLAIN


def test_another_kid_is_refused_though_it_had_the_same_secret() -> None:
    twin = KeyRing(
        (K1, replace(new_key("k0", K1.secret or Secret(""), T0), retired_at=T0, verifies_until=K0.verifies_until))
    )
    renamed = minted().replace("ffw1.k1.", "ffw1.k0.")
    assert opened(minted(), twin) == PLAIN
    for ring in (twin, RING):
        with pytest.raises(InvalidRequest):
            opened(renamed, ring)
    assert is_refused(minted().replace("ffw1.k1.", "ffw1.unknown."))


def test_names_cannot_be_shifted_between_kid_and_namespace() -> None:
    first, second = new_key("ab", Secret("1a" * 32), T0), new_key("a", Secret("1a" * 32), T0)
    token = mint_token(first, PLAIN, "c").reveal()
    with pytest.raises(InvalidRequest):
        opened(token.replace("ffw1.ab.", "ffw1.a."), KeyRing((second,)), namespace="bc")


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "...", "ffw1", "ffw1...", "ffw1.k1..", "FFW1" + minted()[4:], "ffw2" + minted()[4:], minted()[5:],
        minted() + ".", minted() + "\n", " " + minted(), minted() + "=", minted() + "A", minted()[:-1],
        minted().replace(".", ":"), minted().replace("ffw1.k1", "ffw1.k:1"), minted().replace("ffw1.k1", "ffw1."),
        minted().replace("ffw1.k1", "ffw1." + "k" * 33), minted().replace("ffw1.k1", "ffw1." + "k" * 10_000),
        "x" * 10_000_000, "ffw1.k1." + "A" * 412 + "." + "A" * 43, "a\x00b", "a\ud800b",
        "ffw1.k1.\u0661" + minted()[9:],
    ],
    ids=range(25),
)  # fmt: skip
def test_malformed_text_has_the_one_answer(text: str) -> None:
    assert is_refused(text)


@pytest.mark.parametrize("odd", [None, 7, b"ffw1.k1.A.A", [], object(), PLAIN])
def test_what_is_no_text_has_the_one_answer(odd: Any) -> None:
    assert is_refused(odd)


def test_a_token_has_one_spelling_only() -> None:
    """The last character of a mac has two bits to spare; the other three ways to write it are not tokens."""
    token = minted()
    same = [other for other in ALPHABET if _bytes_of(token[:-1] + other) == _bytes_of(token)]
    assert len(same) == 4
    assert [other for other in same if not is_refused(token[:-1] + other)] == [token[-1]]


def test_a_payload_has_one_spelling_only() -> None:
    words, _, mac = minted(replace(PLAIN, source="ops!")).rpartition(".")
    same = [other for other in ALPHABET if _bytes_of(words[:-1] + other) == _bytes_of(words)]
    assert len(same) > 1
    assert [other for other in same if not is_refused(f"{words[:-1]}{other}.{mac}")] == [words[-1]]


def _bytes_of(text: str) -> bytes:
    part = text.rpartition(".")[2]
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def _raw(payload: bytes) -> str:
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
def test_a_payload_that_says_nothing_sensible_is_malformed_before_any_mac(payload: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_token(_raw(payload))
    assert refused.value.code == "invalid_token"


# Keys and time


def test_a_token_survives_a_rotation_until_its_keys_window_ends() -> None:
    decision = decide_rotate(KeyRing((K1,)), Rotation(kid="k2", secret=Secret("3c" * 32), grace="1h"), T0)
    ring = KeyRing(decision.writes)
    assert opened(minted(), ring, now=T0 + timedelta(minutes=59)) == PLAIN
    for late in (ring, KeyRing((*collect(ring, T0 + timedelta(hours=1)), *ring.keys[1:]))):
        with pytest.raises(InvalidRequest) as refused:
            opened(minted(), late, now=T0 + timedelta(hours=1))
        assert refused.value.code == "invalid_token"


def test_an_old_key_verifies_as_long_as_an_open_waitpoint_needs_it() -> None:
    old = minted(key=K0)
    assert opened(old, now=T0 + timedelta(hours=23)) == PLAIN
    assert opened(old, KeyRing((K1, replace(K0, in_use=True))), now=T0 + timedelta(days=300)) == PLAIN
    with pytest.raises(InvalidRequest):
        opened(old, now=T0 + timedelta(days=1))


def test_a_hard_end_is_told_only_of_a_genuine_token_and_only_when_asked() -> None:
    ended = replace(PLAIN, ends_at=T0)
    claims = opened(minted(ended), now=T0 + SECOND)
    assert claims == ended
    with pytest.raises(Refused) as refused:
        require_not_ended(claims, T0)
    assert refused.value.code == "token_expired"
    require_not_ended(claims, T0 - SECOND)
    require_not_ended(PLAIN, T0 + timedelta(days=3650))


def test_macs_are_compared_by_the_function_that_takes_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[Any, Any]] = []

    def compare(left: Any, right: Any) -> bool:
        compared.append((left, right))
        return bool(left == right)

    monkeypatch.setattr("hmac.compare_digest", compare)
    assert opened(minted()) == PLAIN
    assert [right for _, right in compared] == [minted().rpartition(".")[2]]


# Nothing shows a token


CANARY = replace(PLAIN, source="canary-source")


def _secrets() -> list[str]:
    token = minted(CANARY)
    return [token, *token.split(".")[2:], "1a1a1a1a", "2b2b2b2b"]


def _refusals() -> list[Callable[[], object]]:
    token = minted(CANARY)
    return [
        lambda: read_token(token + "x"),
        lambda: read_token(token[:-2]),
        lambda: read_token(Secret(token + "!")),
        lambda: read_token(_mangled(token)),
        lambda: _verified(token, namespace="other"),
        lambda: _verified(token, ring=KeyRing()),
        lambda: _verified(token, ring=KeyRing((new_key("k1", Secret("2b" * 32), T0),))),
        lambda: mint_token(replace(K1, secret=None), CANARY, "default"),
        lambda: require_not_ended(_verified(minted(replace(CANARY, ends_at=T0))), T0),
    ]


def _mangled(token: str) -> Any:
    return token.encode()


def _verified(token: str, ring: KeyRing = RING, namespace: str = "default") -> Claims:
    return verify(read_token(token), ring, namespace, T0)


@pytest.mark.parametrize("number", range(9))
def test_no_error_shows_a_token_or_a_secret(number: int) -> None:
    text = told(refusal_of(_refusals()[number]))
    assert [secret for secret in _secrets() if secret in text] == []


def test_no_record_shows_a_token_or_a_secret() -> None:
    token = mint_token(K1, CANARY, "default")
    for record in (token, read_token(token), [read_token(token)], RING):
        assert [secret for secret in _secrets() if secret in shown(record)] == []


def test_the_search_for_leaks_finds_one() -> None:
    """A check of the tests above: a search that finds nothing would always agree."""
    token = minted(CANARY)
    assert token in shown([token])
    assert token in told(ValueError(token))
