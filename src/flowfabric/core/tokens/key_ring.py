"""The key ring: one active key mints tokens, and retired keys still verify the tokens that they minted for a while.

    seed, rotate ──▶ active ──rotate──▶ verifying ──its window ends──▶ expired ──collect──▶ collected

A retired key verifies tokens for 24 hours, and after that for as long as an open waitpoint has a token of the key. A
rotation with an explicit grace sets a fixed time instead. Collecting a key destroys its secret. Its kid and check value
stay stored, so that no kid is used twice. The check value shows whether a secret belongs to a kid, but does not reveal
the secret. If the secrets are in a key file, the store does not have them.
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Generic, TypeVar

from flowfabric.core import validation
from flowfabric.core.errors import Conflict, InvalidRequest
from flowfabric.core.fast_dataclass import put, replace
from flowfabric.core.tokens.secret import Secret, derive_key

GRACE = timedelta(hours=24)
MAX_KID_CHARACTERS = 32
KID = rf"[A-Za-z0-9_-]{{1,{MAX_KID_CHARACTERS}}}"

_KID = re.compile(KID)
_SECRET = re.compile(r"[0-9a-fA-F]{64}")

OutcomeT = TypeVar("OutcomeT")


class KeyState(StrEnum):
    """The state of a key. An active key mints and verifies tokens, and a verifying key only verifies them."""

    ACTIVE = "active"
    VERIFYING = "verifying"
    EXPIRED = "expired"
    COLLECTED = "collected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key of the ring. `secret` has the value None if the key was collected or is missing from the key file."""

    kid: str
    check: str
    secret: Secret | None
    created_at: datetime
    retired_at: datetime | None = None
    verifies_until: datetime | None = None
    # True if the rotation set an explicit grace: the key then stops at `verifies_until`, even if it is in use.
    end_is_final: bool = False
    # True if an open waitpoint had a token of this key when the ring was read.
    in_use: bool = False
    collected_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class KeyRing:
    """All keys of the store, including the collected keys."""

    keys: tuple[Key, ...] = ()

    def __post_init__(self) -> None:
        kids = [key.kid for key in self.keys]
        assert len(set(kids)) == len(kids), "a kid is unique in the store"
        assert sum(key.retired_at is None for key in self.keys) <= 1, "the store holds at most one active key"

    @property
    def active(self) -> Key | None:
        """The key that mints new tokens; None if the ring is empty."""
        return next((key for key in self.keys if key.retired_at is None), None)

    def find(self, kid: str) -> Key | None:
        """Return the key with this kid in any state."""
        return next((key for key in self.keys if key.kid == kid), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """A request for a new active key. `is_generated` means that the engine generated the secret for this call."""

    kid: str
    secret: Secret
    is_generated: bool = False
    grace: validation.Duration | None = None

    def __post_init__(self) -> None:
        grace = None if self.grace is None else validation.duration(self.grace, "grace")
        put(self, kid=parse_kid(self.kid), secret=parse_secret(self.secret), grace=grace)


@dataclass(frozen=True, slots=True)
class Seeded:
    """The ring had no keys; the key `kid` is now its active key."""

    kid: str


@dataclass(frozen=True, slots=True)
class AlreadySeeded:
    """The ring already had a key with this kid, so nothing changed. The fields compare it with the request."""

    kid: str
    same_secret: bool
    active: bool


@dataclass(frozen=True, slots=True)
class Rotated:
    """The key `kid` is now active.

    If a grace was given, the tokens of `cut_off` open waitpoints stop working after it.
    """

    previous: str | None
    kid: str
    collected: int
    cut_off: int | None


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The key was already active with the same secret."""

    kid: str


@dataclass(frozen=True, slots=True)
class KeyDecision(Generic[OutcomeT]):
    """The result of a seed or rotation (`outcome`), and the keys that it writes."""

    outcome: OutcomeT
    writes: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyView:
    """The public view of a key. `known` is False if the key was collected or is missing from the key file."""

    kid: str
    state: KeyState
    created_at: datetime
    retired_at: datetime | None
    verifies_until: datetime | None
    in_use: bool
    known: bool = True


def decide_seed(ring: KeyRing, kid: str, secret: Secret, now: datetime) -> KeyDecision[Seeded | AlreadySeeded]:
    """Add the first key of a ring. If the ring has this kid, change nothing; if another key is active, raise."""
    kid, secret, active = parse_kid(kid), parse_secret(secret), ring.active
    existing = ring.find(kid)
    if existing is not None:
        return KeyDecision(AlreadySeeded(kid, has_secret(existing, secret), existing is active))
    if active is not None:
        message = f"key {active.kid} is active; rotate to {kid} instead of seeding it"
        raise Conflict("another_key_active", message, kid=kid, active=active.kid)
    return KeyDecision(Seeded(kid), (new_key(kid, secret, now),))


def decide_rotate(
    ring: KeyRing, rotation: Rotation, now: datetime, open_waitpoints: int = 0
) -> KeyDecision[Rotated | Unchanged]:
    """Activate a new key, retire the current key and collect expired keys.

    `open_waitpoints` is the number of open waitpoints whose token is from the current key and would otherwise work
    longer than the explicit grace.
    """
    existing, previous = ring.find(rotation.kid), ring.active
    if existing is not None:
        is_active = existing is previous
        if is_active and (rotation.is_generated or has_secret(existing, rotation.secret)):
            return KeyDecision(Unchanged(rotation.kid))
        why = "is active with another secret" if is_active else "was used before"
        raise Conflict("rotation_conflict", f"key {rotation.kid} {why}; rotate to a new kid", kid=rotation.kid)
    collected = collect(ring, now)
    retired = () if previous is None else (_retire(previous, rotation, now),)
    cut_off = None if rotation.grace is None else open_waitpoints
    outcome = Rotated(previous.kid if previous else None, rotation.kid, len(collected), cut_off)
    return KeyDecision(outcome, (*collected, *retired, new_key(rotation.kid, rotation.secret, now)))


def collect(ring: KeyRing, now: datetime) -> tuple[Key, ...]:
    """Return copies of the expired keys without their secrets, which the caller must write."""
    gone = (key for key in ring.keys if state_of(key, now) is KeyState.EXPIRED)
    return tuple(replace(key, secret=None, collected_at=now) for key in gone)


def state_of(key: Key, now: datetime) -> KeyState:
    """Return the state of a key, even if this process does not have its secret."""
    if key.collected_at is not None:
        return KeyState.COLLECTED
    if key.retired_at is None:
        return KeyState.ACTIVE
    assert key.verifies_until is not None, "retiring a key sets the end of its window"
    kept_by_waitpoints = key.in_use and not key.end_is_final
    return KeyState.VERIFYING if now < key.verifies_until or kept_by_waitpoints else KeyState.EXPIRED


def verifying_secret(ring: KeyRing, kid: str, now: datetime) -> Secret | None:
    """Return the secret of the key with this kid, or None if that key cannot verify tokens now."""
    key = ring.find(kid)
    in_window = key is not None and state_of(key, now) in (KeyState.ACTIVE, KeyState.VERIFYING)
    return key.secret if key is not None and in_window else None


def new_key(kid: str, secret: Secret, now: datetime) -> Key:
    """Return a key that is active from now on."""
    return Key(kid=kid, check=check_value(kid, secret), secret=secret, created_at=now)


def has_secret(key: Key, secret: Secret) -> bool:
    """Return True if the check value shows that this is the key's secret."""
    return hmac.compare_digest(key.check, check_value(key.kid, secret))


def check_value(kid: str, secret: Secret) -> str:
    """Return 32 hex characters that identify a kid's secret without revealing it."""
    return hmac.digest(derive_key(secret, "check"), kid.encode(), "sha256").hex()[:32]


def show_keys(ring: KeyRing, now: datetime) -> tuple[KeyView, ...]:
    """Return the public view of the ring, newest key first."""
    newest_first = sorted(ring.keys, key=lambda key: (key.retired_at is None, key.created_at), reverse=True)
    return tuple(
        KeyView(
            key.kid,
            state_of(key, now),
            key.created_at,
            key.retired_at,
            key.verifies_until,
            key.in_use,
            key.secret is not None,
        )
        for key in newest_first
    )


def parse_kid(value: object) -> str:
    """Return the value if it is a valid kid; otherwise raise `invalid_kid`."""
    if isinstance(value, str) and _KID.fullmatch(value):
        return value
    # Neither the message nor a traceback shows the value, which may be a secret passed by mistake.
    del value
    raise InvalidRequest("invalid_kid", "a kid must be 1 to 32 characters of A-Z a-z 0-9 _ -")


def parse_secret(value: str | Secret) -> Secret:
    """Return a secret of 64 lower-case hex characters. Errors do not show the value."""
    secret = _secret_or_none(value)
    del value
    if secret is None:
        message = "a key's secret must be 64 hex characters, such as secrets.token_hex(32) returns"
        raise InvalidRequest("invalid_secret_hex", message)
    return secret


def _secret_or_none(value: object) -> Secret | None:
    text = value.reveal() if isinstance(value, Secret) else value
    return Secret(text.lower()) if isinstance(text, str) and _SECRET.fullmatch(text) else None


def _retire(key: Key, rotation: Rotation, now: datetime) -> Key:
    explicit = rotation.grace is not None
    grace = validation.duration(rotation.grace, "grace") if explicit else GRACE
    return replace(key, retired_at=now, verifies_until=now + grace, end_is_final=explicit)
