"""Tests for the key ring: seeding, rotation, verification windows, and records that never show a secret."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.tokens.key_ring import (
    AlreadySeeded,
    Key,
    KeyRing,
    KeyState,
    Rotated,
    Rotation,
    Seeded,
    Unchanged,
    check_value,
    collect,
    decide_rotate,
    decide_seed,
    has_secret,
    new_key,
    parse_kid,
    parse_secret,
    show_keys,
    state_of,
    verifying_secret,
)
from flowfabric.core.tokens.secret import Secret
from flowfabric.engine import Conflict, InvalidRequest
from tests.unit.builders import SECOND, T0
from tests.unit.leaks import catch_error, render_error, render_value

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
ONE, TWO, THREE = (Secret(digit * 64) for digit in "123")
K1 = new_key("k1", ONE, T0)


def _apply(ring: KeyRing, writes: tuple[Key, ...]) -> KeyRing:
    keys_by_kid = {key.kid: key for key in ring.keys} | {key.kid: key for key in writes}
    return KeyRing(tuple(keys_by_kid.values()))


def _rotate(ring: KeyRing, kid: str, secret: Secret, now: datetime, grace: Any = None) -> KeyRing:
    decision = decide_rotate(ring, Rotation(kid=kid, secret=secret, grace=grace), now)
    assert isinstance(decision.outcome, Rotated)
    return _apply(ring, decision.writes)


# Seed


def test_an_empty_ring_is_seeded_with_its_first_key() -> None:
    decision = decide_seed(KeyRing(), "k1", ONE, T0)
    assert decision.outcome == Seeded("k1")
    assert decision.writes == (K1,)
    assert KeyRing(decision.writes).active == K1


@pytest.mark.parametrize(("secret", "same"), [(ONE, True), (TWO, False)])
def test_repeated_seed_changes_nothing_and_reports_if_the_secret_is_the_same(secret: Secret, same: bool) -> None:
    decision = decide_seed(KeyRing((K1,)), "k1", secret, T0 + DAY)
    assert decision.outcome == AlreadySeeded("k1", same_secret=same, active=True)
    assert decision.writes == ()


def test_seed_of_a_retired_kid_is_already_seeded_and_inactive() -> None:
    ring = _rotate(KeyRing((K1,)), "k2", TWO, T0)
    assert decide_seed(ring, "k1", ONE, T0).outcome == AlreadySeeded("k1", same_secret=True, active=False)


def test_seed_beside_another_active_key_is_rejected_and_suggests_rotation() -> None:
    with pytest.raises(Conflict, match="rotate") as refused:
        decide_seed(KeyRing((K1,)), "k2", TWO, T0)
    assert (refused.value.code, refused.value.fields["active"]) == ("another_key_active", "k1")


# Rotate


def test_rotation_retires_the_active_key_and_installs_the_new_one() -> None:
    decision = decide_rotate(KeyRing((K1,)), Rotation(kid="k2", secret=TWO), T0 + HOUR)
    assert decision.outcome == Rotated(previous="k1", kid="k2", collected=0, cut_off=None)
    ring = _apply(KeyRing((K1,)), decision.writes)
    assert ring.active == new_key("k2", TWO, T0 + HOUR)
    assert ring.find("k1") == replace(K1, retired_at=T0 + HOUR, verifies_until=T0 + HOUR + DAY)


def test_rotation_of_an_empty_ring_has_no_previous_key() -> None:
    decision = decide_rotate(KeyRing(), Rotation(kid="k1", secret=ONE), T0)
    assert decision.outcome == Rotated(previous=None, kid="k1", collected=0, cut_off=None)
    assert decision.writes == (K1,)


def test_rotation_to_the_active_key_is_unchanged_in_either_case() -> None:
    rotation = Rotation(kid="k1", secret=Secret(ONE.reveal().upper()))
    assert decide_rotate(KeyRing((K1,)), rotation, T0) == decide_rotate(
        KeyRing((K1,)), replace(rotation, grace="1h"), T0
    )
    assert decide_rotate(KeyRing((K1,)), rotation, T0).outcome == Unchanged("k1")


def test_repeated_rotation_with_a_generated_secret_is_unchanged() -> None:
    repeated = Rotation(kid="k1", secret=THREE, is_generated=True)
    assert decide_rotate(KeyRing((K1,)), repeated, T0).outcome == Unchanged("k1")


def test_active_kid_with_another_secret_is_a_conflict() -> None:
    with pytest.raises(Conflict) as refused:
        decide_rotate(KeyRing((K1,)), Rotation(kid="k1", secret=TWO), T0)
    assert refused.value.code == "rotation_conflict"


@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.parametrize("later", [HOUR, 2 * DAY])
def test_retired_kid_is_a_conflict_even_with_its_own_secret(later: timedelta, drawn: bool) -> None:
    ring = _rotate(KeyRing((K1,)), "k2", TWO, T0)
    ring = _apply(ring, collect(ring, T0 + later))
    with pytest.raises(Conflict) as refused:
        decide_rotate(ring, Rotation(kid="k1", secret=ONE, is_generated=drawn), T0 + later)
    assert refused.value.code == "rotation_conflict"


def test_rotation_collects_expired_keys_but_not_the_one_it_retires() -> None:
    ring = _rotate(_rotate(KeyRing((K1,)), "k2", TWO, T0), "k3", THREE, T0 + 23 * HOUR)
    decision = decide_rotate(ring, Rotation(kid="k4", secret=Secret("4" * 64), grace=0), T0 + 24 * HOUR, 7)
    assert decision.outcome == Rotated(previous="k3", kid="k4", collected=1, cut_off=7)
    after = _apply(ring, decision.writes)
    states = {key.kid: state_of(key, T0 + 24 * HOUR) for key in after.keys}
    assert states == {"k1": "collected", "k2": "verifying", "k3": "expired", "k4": "active"}


def test_only_an_explicit_grace_cuts_off_waitpoints() -> None:
    assert decide_rotate(KeyRing((K1,)), Rotation(kid="k2", secret=TWO), T0, 5).outcome == Rotated("k1", "k2", 0, None)
    explicit = Rotation(kid="k2", secret=TWO, grace="1h")
    assert decide_rotate(KeyRing((K1,)), explicit, T0, 5).outcome == Rotated("k1", "k2", 0, 5)


@pytest.mark.parametrize("grace", [-1, "soon", float("nan"), True, timedelta(days=4000)])
def test_invalid_grace_is_rejected(grace: Any) -> None:
    with pytest.raises(InvalidRequest):
        Rotation(kid="k2", secret=TWO, grace=grace)


# Windows


@pytest.mark.parametrize(
    ("grace", "in_use", "after", "state"),
    [
        (None, False, DAY - SECOND, KeyState.VERIFYING),
        (None, False, DAY, KeyState.EXPIRED),
        (None, True, DAY, KeyState.VERIFYING),
        (None, True, 1000 * DAY, KeyState.VERIFYING),
        ("1h", True, HOUR - SECOND, KeyState.VERIFYING),
        ("1h", True, HOUR, KeyState.EXPIRED),
        ("1h", False, HOUR, KeyState.EXPIRED),
        ("7d", False, 6 * DAY, KeyState.VERIFYING),
        (0, True, timedelta(0), KeyState.EXPIRED),
    ],
)
def test_retired_key_verifies_only_inside_its_window(
    grace: Any, in_use: bool, after: timedelta, state: KeyState
) -> None:
    old = _rotate(KeyRing((K1,)), "k2", TWO, T0, grace).find("k1")
    assert old is not None
    ring = KeyRing((replace(old, in_use=in_use),))
    assert state_of(ring.keys[0], T0 + after) is state
    assert (verifying_secret(ring, "k1", T0 + after) == ONE) == (state is KeyState.VERIFYING)


def test_the_active_key_never_expires() -> None:
    assert state_of(K1, T0 + 10_000 * DAY) is KeyState.ACTIVE
    assert verifying_secret(KeyRing((K1,)), "k1", T0 + 10_000 * DAY) == ONE


def test_collected_key_verifies_nothing_even_with_its_secret() -> None:
    ring = _rotate(KeyRing((K1,)), "k2", TWO, T0)
    (collected,) = collect(ring, T0 + DAY)
    assert (collected.secret, collected.check, collected.collected_at) == (None, K1.check, T0 + DAY)
    assert verifying_secret(KeyRing((replace(collected, secret=ONE, in_use=True),)), "k1", T0) is None
    assert collect(_apply(ring, (collected,)), T0 + 2 * DAY) == ()


def test_key_without_its_secret_verifies_nothing() -> None:
    assert verifying_secret(KeyRing((replace(K1, secret=None),)), "k1", T0) is None
    assert verifying_secret(KeyRing((K1,)), "k2", T0) is None


rotations = st.lists(
    st.tuples(
        st.sampled_from(["k1", "k2", "k3", "k4"]),
        st.sampled_from("123"),
        st.integers(0, 40),
        st.sampled_from([None, 0, 3600, 10**6]),
    ),
    max_size=12,
)


@given(rotations)
def test_random_rotations_keep_one_active_key_and_never_reuse_a_kid(steps: list[tuple[str, str, int, Any]]) -> None:
    ring, now, used = KeyRing((K1,)), T0, ["k1"]
    for kid, digit, hours, grace in steps:
        now += hours * HOUR
        rotation = Rotation(kid=kid, secret=Secret(digit * 64), grace=grace)
        try:
            decision = decide_rotate(ring, rotation, now)
        except Conflict:
            assert kid in used
            continue
        ring = _apply(ring, decision.writes)
        if isinstance(decision.outcome, Rotated):
            assert kid not in used and decision.outcome.previous == used[-1]
            used.append(kid)
        assert ring.active is not None and ring.active.kid == used[-1] == kid
        assert [key.kid for key in ring.keys if key.secret is None] == [
            key.kid for key in ring.keys if state_of(key, now) is KeyState.COLLECTED
        ]


# Kids, secrets, check values


@pytest.mark.parametrize("kid", ["k", "K_1-z", "0" * 32, "-", "_"])
def test_valid_kid_is_kept_unchanged(kid: str) -> None:
    assert parse_kid(kid) == kid


@pytest.mark.parametrize("kid", ["", "k" * 33, "a:b", "a.b", "a/b", "a=b", "a b", "a\n", "ä", "a\x00", None, 7, b"k"])
def test_invalid_kid_is_rejected(kid: Any) -> None:
    error = catch_error(lambda: parse_kid(kid))
    assert isinstance(error, InvalidRequest) and error.code == "invalid_kid"


@pytest.mark.parametrize(
    "secret",
    ["", "1" * 63, "1" * 65, "g" * 64, "1" * 63 + "\n", " " + "1" * 63, "1" * 63 + "\u0661", None, 7, b"1" * 64],
)
def test_a_secret_must_be_64_hex_characters(secret: Any) -> None:
    error = catch_error(lambda: parse_secret(secret))
    assert isinstance(error, InvalidRequest) and error.code == "invalid_secret_hex"


def test_secret_is_case_insensitive() -> None:
    assert parse_secret("AB" * 32) == parse_secret(Secret("ab" * 32))


def test_check_value_depends_on_kid_and_secret_and_contains_neither() -> None:
    values = {check_value(kid, secret) for kid in ("k1", "k2") for secret in (ONE, TWO)}
    assert len(values) == 4 and all(len(value) == 32 and "1111" not in value for value in values)
    assert has_secret(K1, ONE) and not has_secret(K1, TWO)


# Views and secrecy


def test_keys_are_listed_newest_first_without_their_secrets() -> None:
    ring = _rotate(_rotate(KeyRing((K1,)), "k2", TWO, T0 + HOUR), "k3", THREE, T0 + DAY)
    views = show_keys(ring, T0 + DAY)
    assert [(view.kid, view.state) for view in views] == [
        ("k3", KeyState.ACTIVE),
        ("k2", KeyState.VERIFYING),
        ("k1", KeyState.VERIFYING),
    ]
    assert "1111" not in render_value(views) and "2222" not in render_value(views)


CANARY = "c0ffee" * 10 + "beef"


def test_no_record_of_the_ring_shows_a_secret() -> None:
    secret = Secret(CANARY)
    key = new_key("k9", secret, T0)
    rotation = Rotation(kid="k9", secret=secret)
    records = [key, KeyRing((key,)), rotation, decide_seed(KeyRing(), "k9", secret, T0),
               decide_rotate(KeyRing((K1,)), rotation, T0), show_keys(KeyRing((key,)), T0)]  # fmt: skip
    for record in records:
        assert "c0ffee" not in render_value(record)


def test_no_error_of_the_ring_shows_a_secret() -> None:
    secret = Secret(CANARY)
    ring = KeyRing((new_key("k9", secret, T0),))
    invalid_secret: Any = CANARY + "ff"
    calls: list[Any] = [
        lambda: decide_seed(ring, "k2", secret, T0),
        lambda: decide_seed(ring, "k2", Secret(invalid_secret), T0),
        lambda: decide_rotate(ring, Rotation(kid="k9", secret=ONE), T0),
        lambda: decide_rotate(_rotate(ring, "k2", TWO, T0), Rotation(kid="k9", secret=secret), T0),
        lambda: Rotation(kid="k2", secret=Secret(invalid_secret)),
        lambda: Rotation(kid="k2", secret=secret, grace=-1),
        lambda: parse_secret(invalid_secret),
        lambda: parse_kid(invalid_secret),
    ]
    for call in calls:
        error = catch_error(call)
        assert isinstance(error, InvalidRequest | Conflict)
        assert "c0ffee" not in render_error(error)
