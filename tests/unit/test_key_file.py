"""A key file gives kids and secrets in its order; what is wrong with it is said without showing any of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flowfabric.core.key_file import (
    FileKey,
    active_key_missing,
    can_mint_with,
    kept_in_file,
    parse_key_file,
    with_secrets,
)
from flowfabric.core.keyring import Key, KeyRing, Rotation, decide_rotate, new_key
from flowfabric.core.secret import Secret
from flowfabric.engine import Conflict, InvalidRequest
from tests.unit.builders import T0
from tests.unit.leaks import refusal_of, shown, told

CANARY = "c0ffee" * 10 + "beef"
ONE, TWO = "1" * 64, "2" * 64
WHERE = "the file keys.txt"


def _parsed(text: str) -> tuple[FileKey, ...]:
    return parse_key_file(Secret(text), WHERE)


def test_lines_are_read_in_their_order_without_comments_and_blank_lines() -> None:
    text = f"# the ring\n\nk2={TWO}\r\n  # older\n k1 = {ONE.upper()} \n"
    assert _parsed(text) == (FileKey("k2", Secret(TWO)), FileKey("k1", Secret(ONE)))


def test_one_line_without_an_end_is_enough() -> None:
    assert _parsed(f"k1={ONE}") == _parsed(f"\ufeffk1={ONE}\n") == (FileKey("k1", Secret(ONE)),)


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
def test_a_bad_line_is_refused_by_its_number_and_not_shown(text: str, line: int) -> None:
    error = refusal_of(lambda: _parsed(text))
    assert isinstance(error, InvalidRequest) and error.code == "invalid_key_file"
    assert error.fields["line"] == line and f"line {line}:" in error.message and WHERE in error.message
    assert "c0ffee" not in told(error)


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "x" * 100_000])
def test_an_empty_or_huge_file_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="the file keys"):
        _parsed(text)


def test_parsed_keys_do_not_show_their_secrets() -> None:
    assert "c0ffee" not in shown(_parsed(f"k1={CANARY}"))


def _stored(kid: str, secret: str) -> Key:
    """A key as the store of a file's ring keeps it."""
    return replace(new_key(kid, Secret(secret), T0), secret=None)


def test_the_ring_gets_its_secrets_from_the_file() -> None:
    ring = with_secrets(KeyRing((_stored("k1", ONE),)), _parsed(f"k1={ONE}\nk0={TWO}"), WHERE)
    assert ring == KeyRing((new_key("k1", Secret(ONE), T0),))


def test_a_secret_that_the_store_still_has_is_kept_when_the_file_lacks_it() -> None:
    ring = KeyRing((new_key("k1", Secret(ONE), T0),))
    assert with_secrets(ring, _parsed(f"k2={TWO}"), WHERE) == ring


def test_another_secret_under_a_known_kid_is_refused() -> None:
    error = refusal_of(lambda: with_secrets(KeyRing((_stored("k1", ONE),)), (FileKey("k1", Secret(CANARY)),), WHERE))
    assert isinstance(error, Conflict) and error.code == "key_check_mismatch"
    assert "c0ffee" not in told(error)


@pytest.mark.parametrize(
    ("text", "mints"),
    [
        (f"k2={TWO}", True),
        (f"k2={TWO}\nk1={ONE}", True),
        (f"k1={ONE}\nk2={TWO}", True),
        (f"k1={ONE}", False),
        (f"k3={CANARY}\nk2={TWO}", False),
    ],
)
def test_the_active_key_mints_if_the_file_has_it_and_nothing_new_before_it(text: str, mints: bool) -> None:
    ring = KeyRing((new_key("k1", Secret(ONE), T0),))
    rotated = KeyRing(decide_rotate(ring, Rotation(kid="k2", secret=Secret(TWO)), T0).writes)
    assert can_mint_with(rotated, _parsed(text)) is mints
    assert can_mint_with(KeyRing(), _parsed(text)) is False


def test_whoever_has_an_older_file_is_told_which_key_it_lacks() -> None:
    error = active_key_missing(KeyRing((new_key("k2", Secret(TWO), T0),)), WHERE)
    assert (error.code, error.fields["kid"]) == ("key_secret_missing", "k2")
    assert WHERE in error.message


def test_a_seed_or_rotation_beside_a_file_says_what_to_edit() -> None:
    assert kept_in_file(WHERE).code == "keys_kept_in_file" and WHERE in kept_in_file(WHERE).message
