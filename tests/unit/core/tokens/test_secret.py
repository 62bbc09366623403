"""Tests that only `reveal` shows a secret and that keys are derived as in RFC 5869."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import asdict, dataclass
from typing import Any

import pytest

from flowfabric.core.tokens.secret import Secret, derive_key, hkdf
from tests.unit.leaks import catch_error, render_error, render_value

CANARY = "c4na9y" * 10 + "beef"
HEX = "5ec7e7" * 10 + "beef"


@dataclass(frozen=True)
class _Holder:
    name: str
    secret: Secret


@pytest.mark.parametrize(
    "value", [Secret(CANARY), [Secret(CANARY)], {"a": Secret(CANARY)}, _Holder("x", Secret(CANARY))]
)
def test_rendered_value_never_shows_a_secret(value: object) -> None:
    assert CANARY[:8] not in render_value(value)


def test_reveal_returns_the_secret() -> None:
    assert Secret(CANARY).reveal() == CANARY


def test_text_of_a_secret_is_a_fixed_word() -> None:
    assert f"{Secret(CANARY)}" == str(Secret(CANARY)) == repr(Secret(CANARY)) == f"{Secret(CANARY):>40}" == "<secret>"


def test_secret_has_no_state_and_cannot_be_pickled() -> None:
    secret: Any = Secret(CANARY)
    assert not hasattr(secret, "__dict__")
    for call in (
        secret.__getstate__,
        secret.__reduce__,
        lambda: secret.__reduce_ex__(4),
        lambda: pickle.dumps(secret),
        lambda: json.dumps(secret),
        lambda: json.dumps({"a": secret}),
    ):
        error = catch_error(call)
        assert isinstance(error, TypeError)
        assert CANARY[:8] not in render_error(error)


def test_copied_record_keeps_the_secret_wrapped() -> None:
    holder = _Holder("x", Secret(CANARY))
    for copied in (copy.copy(holder), copy.deepcopy(holder)):
        assert copied == holder and copied.secret is holder.secret
    assert CANARY[:8] not in render_value(asdict(holder))


def test_secrets_are_equal_if_their_texts_are() -> None:
    assert Secret("a") == Secret("a") and hash(Secret("a")) == hash(Secret("a"))
    assert Secret("a") != Secret("b") and Secret("ä\ud800") != Secret("ä")
    assert Secret("a") != "a"


@pytest.mark.parametrize("value", [b"c4na9y-bytes", None, 7])
def test_secret_rejects_other_types_without_showing_them(value: Any) -> None:
    error = catch_error(lambda: Secret(value))
    assert isinstance(error, TypeError)
    assert "c4na9y" not in render_error(error)


@pytest.mark.parametrize(
    ("salt", "info", "okm"),
    [
        (
            bytes(range(13)),
            bytes(range(0xF0, 0xFA)),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (b"", b"", "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"),
    ],
)
def test_keys_are_derived_as_in_the_rfc(salt: bytes, info: bytes, okm: str) -> None:
    assert hkdf(b"\x0b" * 22, salt, info, 42).hex() == okm


def test_every_purpose_has_its_own_key() -> None:
    secret = Secret(HEX)
    keys = {derive_key(secret, purpose) for purpose in ("waitpoint", "check", "cursor", "grant")}
    assert len(keys) == 4 and all(len(key) == 32 for key in keys)
    assert bytes.fromhex(HEX) not in keys
    assert derive_key(secret, "waitpoint") == derive_key(Secret(HEX), "waitpoint")
