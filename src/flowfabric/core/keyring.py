"""The key ring: one active key mints, older ones verify what they minted for a while longer.

    seed, rotate ──▶ active ──rotate──▶ verifying ──its window ends──▶ expired ──collect──▶ collected

Without an explicit grace the window is 24 hours and as long as an open waitpoint was minted under the key; with one, it
ends exactly then. Collecting destroys the secret. Kid and check value stay, so that no kid is ever used again.
The check value tells whether a secret is the one of a kid without holding it: the store of a ring that lives in a key
file has nothing else.
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Generic, TypeVar

from flowfabric.core import limits
from flowfabric.core.errors import Conflict, InvalidRequest
from flowfabric.core.frozen import put, replace
from flowfabric.core.secret import Secret, derive_key

GRACE = timedelta(hours=24)
KID_CHARACTERS = 32
KID = rf"[A-Za-z0-9_-]{{1,{KID_CHARACTERS}}}"

_KID = re.compile(KID)
_SECRET = re.compile(r"[0-9a-fA-F]{64}")

Answer = TypeVar("Answer")


class KeyState(StrEnum):
    """What a key is good for: minting and verifying, verifying only, or nothing more."""

    ACTIVE = "active"
    VERIFYING = "verifying"
    EXPIRED = "expired"
    COLLECTED = "collected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key. `secret` is None where it is not known: collected, or missing from the key file."""

    kid: str
    check: str
    secret: Secret | None
    created_at: datetime
    retired_at: datetime | None = None
    verifies_until: datetime | None = None
    # The end holds for open waitpoints too: the grace was explicit.
    end_is_final: bool = False
    # An open waitpoint was minted under this key; whoever reads the ring looks.
    in_use: bool = False
    collected_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class KeyRing:
    """All keys that there are, the collected ones included."""

    keys: tuple[Key, ...] = ()

    def __post_init__(self) -> None:
        kids = [key.kid for key in self.keys]
        assert len(set(kids)) == len(kids), "a kid is unique in the store"
        assert sum(key.retired_at is None for key in self.keys) <= 1, "the store holds at most one active key"

    @property
    def active(self) -> Key | None:
        """The key that mints, or None if the ring was never given one."""
        return next((key for key in self.keys if key.retired_at is None), None)

    def find(self, kid: str) -> Key | None:
        """The key of this kid, whatever its state."""
        return next((key for key in self.keys if key.kid == kid), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """A wish for another active key. `drawn` says that nobody gave the secret: the engine drew it for this call."""

    kid: str
    secret: Secret
    drawn: bool = False
    grace: limits.Duration | None = None

    def __post_init__(self) -> None:
        grace = None if self.grace is None else limits.duration(self.grace, "grace")
        put(self, kid=parse_kid(self.kid), secret=parse_secret(self.secret), grace=grace)


@dataclass(frozen=True, slots=True)
class Seeded:
    """The ring was empty; this key is active now."""

    kid: str


@dataclass(frozen=True, slots=True)
class AlreadySeeded:
    """The kid was there before and nothing changed; says whether it has this secret and is still the active one."""

    kid: str
    same_secret: bool
    active: bool


@dataclass(frozen=True, slots=True)
class Rotated:
    """The key is active. With an explicit grace, `cut_off` is how many open waitpoints lose their token at its end."""

    previous: str | None
    kid: str
    collected: int
    cut_off: int | None


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The key was active before, with the same secret."""

    kid: str


@dataclass(frozen=True, slots=True)
class KeyDecision(Generic[Answer]):
    """An answer, and the keys to be written for it, new or changed."""

    answer: Answer
    writes: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyView:
    """A key as it may be shown; `known` says whether its secret is there: collected keys have none, and a key file may
    lack the line."""

    kid: str
    state: KeyState
    created_at: datetime
    retired_at: datetime | None
    verifies_until: datetime | None
    in_use: bool
    known: bool = True


def decide_seed(ring: KeyRing, kid: str, secret: Secret, now: datetime) -> KeyDecision[Seeded | AlreadySeeded]:
    """The first key of a ring; the same kid again changes nothing, another one beside an active key is refused."""
    kid, secret, active = parse_kid(kid), parse_secret(secret), ring.active
    known = ring.find(kid)
    if known is not None:
        return KeyDecision(AlreadySeeded(kid, has_secret(known, secret), known is active))
    if active is not None:
        message = f"key {active.kid} is active; rotate to {kid} instead of seeding it"
        raise Conflict("another_key_active", message, kid=kid, active=active.kid)
    return KeyDecision(Seeded(kid), (new_key(kid, secret, now),))


def decide_rotate(
    ring: KeyRing, rotation: Rotation, now: datetime, open_waitpoints: int = 0
) -> KeyDecision[Rotated | Unchanged]:
    """Another key becomes active, the one before it verifies on, and what has expired is collected.

    `open_waitpoints` is how many were minted under the active key and would outlive an explicit grace.
    """
    known, previous = ring.find(rotation.kid), ring.active
    if known is not None and known is previous and (rotation.drawn or has_secret(known, rotation.secret)):
        return KeyDecision(Unchanged(rotation.kid))
    if known is not None:
        why = "is active with another secret" if known is previous else "was used before"
        raise Conflict("rotation_conflict", f"key {rotation.kid} {why}; rotate to a new kid", kid=rotation.kid)
    gone = collect(ring, now)
    retired = () if previous is None else (_retire(previous, rotation, now),)
    cut_off = None if rotation.grace is None else open_waitpoints
    answer = Rotated(previous.kid if previous else None, rotation.kid, len(gone), cut_off)
    return KeyDecision(answer, (*gone, *retired, new_key(rotation.kid, rotation.secret, now)))


def collect(ring: KeyRing, now: datetime) -> tuple[Key, ...]:
    """The expired keys, as they are to be written: without their secret."""
    gone = (key for key in ring.keys if state_of(key, now) is KeyState.EXPIRED)
    return tuple(replace(key, secret=None, collected_at=now) for key in gone)


def state_of(key: Key, now: datetime) -> KeyState:
    """What a key is good for at this time; it says nothing about whether its secret is known here."""
    if key.collected_at is not None:
        return KeyState.COLLECTED
    if key.retired_at is None:
        return KeyState.ACTIVE
    assert key.verifies_until is not None, "a key is retired with the end of its window"
    kept_by_waitpoints = key.in_use and not key.end_is_final
    return KeyState.VERIFYING if now < key.verifies_until or kept_by_waitpoints else KeyState.EXPIRED


def verifying_secret(ring: KeyRing, kid: str, now: datetime) -> Secret | None:
    """The secret of a kid that is inside its window, or None."""
    key = ring.find(kid)
    in_window = key is not None and state_of(key, now) in (KeyState.ACTIVE, KeyState.VERIFYING)
    return key.secret if key is not None and in_window else None


def new_key(kid: str, secret: Secret, now: datetime) -> Key:
    """A key that is active from now on."""
    return Key(kid=kid, check=check_value(kid, secret), secret=secret, created_at=now)


def has_secret(key: Key, secret: Secret) -> bool:
    """True if this is the key's secret, by its check value."""
    return hmac.compare_digest(key.check, check_value(key.kid, secret))


def check_value(kid: str, secret: Secret) -> str:
    """What tells a kid's secret from others, and from which nobody gets back to it; 32 hex characters."""
    return hmac.digest(derive_key(secret, "check"), kid.encode(), "sha256").hex()[:32]


def show_keys(ring: KeyRing, now: datetime) -> tuple[KeyView, ...]:
    """The ring as it may be shown, the newest key first."""
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
    """A kid; raises `invalid_kid` for anything else."""
    if isinstance(value, str) and _KID.fullmatch(value):
        return value
    # What was given is not shown, not even to whoever prints this frame: it may be a secret in the wrong place.
    del value
    raise InvalidRequest("invalid_kid", "a kid must be 1 to 32 characters of A-Z a-z 0-9 _ -")


def parse_secret(value: str | Secret) -> Secret:
    """A secret of 64 hex characters, in lower case; an error does not show what was given."""
    found = _secret_or_none(value)
    del value
    if found is None:
        message = "a key's secret must be 64 hex characters, such as secrets.token_hex(32) makes"
        raise InvalidRequest("invalid_secret_hex", message)
    return found


def _secret_or_none(value: object) -> Secret | None:
    text = value.reveal() if isinstance(value, Secret) else value
    return Secret(text.lower()) if isinstance(text, str) and _SECRET.fullmatch(text) else None


def _retire(key: Key, rotation: Rotation, now: datetime) -> Key:
    explicit = rotation.grace is not None
    grace = limits.duration(rotation.grace, "grace") if explicit else GRACE
    return replace(key, retired_at=now, verifies_until=now + grace, end_is_final=explicit)
