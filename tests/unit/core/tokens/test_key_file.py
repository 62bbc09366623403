"""Tests for key files: order of keys, invalid lines, and errors that never show a secret."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flowfabric.core.tokens.key_file import (
    FileKey,
    active_key_missing,
    can_mint_with,
    keys_kept_in_file,
    parse_key_file,
    with_secrets,
)
from flowfabric.core.tokens.key_ring import Key, KeyRing, Rotation, decide_rotate, new_key
from flowfabric.core.tokens.secret import Secret
from flowfabric.engine import Conflict, InvalidRequest
from tests.unit.builders import T0
from tests.unit.leaks import catch_error, render_error, render_value

CANARY = "c0ffee" * 10 + "beef"
ONE, TWO = "1" * 64, "2" * 64
FILE_NAME = "the file keys.txt"


def _parse(text: str) -> tuple[FileKey, ...]:
    return parse_key_file(Secret(text), FILE_NAME)


def test_keys_are_read_in_order_without_comments_and_blank_lines() -> None:
    text = f"# the ring\n\nk2={TWO}\r\n  # older\n k1 = {ONE.upper()} \n"
    assert _parse(text) == (FileKey("k2", Secret(TWO)), FileKey("k1", Secret(ONE)))


def test_single_line_without_a_line_end_is_accepted() -> None:
    assert _parse(f"k1={ONE}") == _parse(f"\ufeffk1={ONE}\n") == (FileKey("k1", Secret(ONE)),)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (CANARY, 1),
        (f"k1:{CANARY}", 1),
        (f"={CANARY}", 1),
        (f"{CANARY}=k1", 1),
        (f"k1={CANARY}f", 1),
        (f"k1={CANARY[1:]}", 1),
        (f"k1={CANARY[:-1]}g", 1),
        (f"k1={CANARY} # note", 1),
        (f"k1=={CANARY}", 1),
        (f"k1='{CANARY}'", 1),
        (f"export k1={CANARY}", 1),
        (f"a.b={CANARY}", 1),
        (f"k1={ONE}\n\n#\nk2={CANARY}0", 4),
        (f"k1={CANARY}\nk1={ONE}", 2),
        (f"k1={CANARY}\u2028k2={CANARY}", 1),
    ],
    ids=str,
)
def test_invalid_line_is_rejected_by_number_and_not_shown(text: str, line: int) -> None:
    error = catch_error(lambda: _parse(text))
    assert isinstance(error, InvalidRequest) and error.code == "invalid_key_file"
    assert error.fields["line"] == line and f"line {line}:" in error.message and FILE_NAME in error.message
    assert "c0ffee" not in render_error(error)


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "x" * 100_000])
def test_empty_or_huge_file_is_rejected(text: str) -> None:
    with pytest.raises(InvalidRequest, match="the file keys"):
        _parse(text)


def test_parsed_keys_do_not_show_their_secrets() -> None:
    assert "c0ffee" not in render_value(_parse(f"k1={CANARY}"))


def _make_stored_key(kid: str, secret: str) -> Key:
    """Return a key as the store keeps it when the secrets are in a file."""
    return replace(new_key(kid, Secret(secret), T0), secret=None)


def test_ring_gets_its_secrets_from_the_file() -> None:
    ring = with_secrets(KeyRing((_make_stored_key("k1", ONE),)), _parse(f"k1={ONE}\nk0={TWO}"), FILE_NAME)
    assert ring == KeyRing((new_key("k1", Secret(ONE), T0),))


def test_stored_secret_is_kept_if_the_file_lacks_it() -> None:
    ring = KeyRing((new_key("k1", Secret(ONE), T0),))
    assert with_secrets(ring, _parse(f"k2={TWO}"), FILE_NAME) == ring


def test_different_secret_for_a_known_kid_is_rejected() -> None:
    error = catch_error(
        lambda: with_secrets(KeyRing((_make_stored_key("k1", ONE),)), (FileKey("k1", Secret(CANARY)),), FILE_NAME)
    )
    assert isinstance(error, Conflict) and error.code == "key_check_mismatch"
    assert "c0ffee" not in render_error(error)


@pytest.mark.parametrize(
    ("text", "can_mint"),
    [
        (f"k2={TWO}", True),
        (f"k2={TWO}\nk1={ONE}", True),
        (f"k1={ONE}\nk2={TWO}", True),
        (f"k1={ONE}", False),
        (f"k3={CANARY}\nk2={TWO}", False),
    ],
)
def test_active_key_mints_if_the_file_has_it_without_a_newer_key_before_it(text: str, can_mint: bool) -> None:
    ring = KeyRing((new_key("k1", Secret(ONE), T0),))
    rotated = KeyRing(decide_rotate(ring, Rotation(kid="k2", secret=Secret(TWO)), T0).writes)
    assert can_mint_with(rotated, _parse(text)) is can_mint
    assert can_mint_with(KeyRing(), _parse(text)) is False


def test_error_for_an_older_file_names_the_missing_key() -> None:
    error = active_key_missing(KeyRing((new_key("k2", Secret(TWO), T0),)), FILE_NAME)
    assert (error.code, error.fields["kid"]) == ("key_secret_missing", "k2")
    assert FILE_NAME in error.message


def test_error_for_keys_kept_in_a_file_names_the_file() -> None:
    assert (
        keys_kept_in_file(FILE_NAME).code == "keys_kept_in_file" and FILE_NAME in keys_kept_in_file(FILE_NAME).message
    )
