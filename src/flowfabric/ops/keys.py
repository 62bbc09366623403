"""Operations on the key ring: read it, store the first key (seed), rotate the active key, delete old secrets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from flowfabric.core import validation
from flowfabric.core.errors import Unavailable
from flowfabric.core.executions.records import Event, Fence
from flowfabric.core.executions.requests import AuditInfo
from flowfabric.core.fast_dataclass import replace
from flowfabric.core.tokens.key_file import FileKey, active_key_missing, can_mint_with, keys_kept_in_file, with_secrets
from flowfabric.core.tokens.key_ring import (
    AlreadySeeded,
    Key,
    KeyRing,
    KeyView,
    Rotated,
    Rotation,
    Seeded,
    Unchanged,
    collect,
    decide_rotate,
    decide_seed,
    new_key,
    show_keys,
)
from flowfabric.ops.operation import operation
from flowfabric.store.transaction import Transaction

_MAX_ROTATIONS = 10
Request = TypeVar("Request")


@dataclass(slots=True)
class KeyRingCache:
    """The key ring as this process last read it. It may be out of date, so tokens are checked again with the store."""

    ring: KeyRing = field(default_factory=KeyRing)


@dataclass(frozen=True, slots=True)
class KeySource:
    """Where secrets come from: the keys of a file if there is one, else the store. `draw` creates a new key."""

    draw: Callable[[], FileKey]
    file: tuple[FileKey, ...] = ()
    where: str = ""
    memory: KeyRingCache = field(default_factory=KeyRingCache, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class WithKeys(Generic[Request]):
    """A request to an operation that needs signing keys, with the key source of the engine."""

    request: Request
    keys: KeySource

    @property
    def fence(self) -> Fence | None:
        """The fence of the request, if it has one."""
        return getattr(self.request, "fence", None)


async def read_ring(tx: Transaction, source: KeySource) -> KeyRing:
    """Read the key ring of the store, and return it with the secrets of all keys."""
    return complete_ring(await tx.signing_keys.read(), source)


def complete_ring(ring: KeyRing, source: KeySource) -> KeyRing:
    """Return the key ring, with secrets from the key file if there is one, and remember the result in this process."""
    source.memory.ring = with_secrets(ring, source.file, source.where) if source.file else ring
    return source.memory.ring


async def ensure_minting_ring(tx: Transaction, source: KeySource, now: datetime) -> KeyRing:
    """Return the key ring. If the store has no active key, create one first.

    With a key file, the active key is the first key of the file, or a later one if the first was retired. A rotation
    waits for the commit of this transaction, so the key is not retired while this transaction mints with it.
    """
    for _ in range(_MAX_ROTATIONS):
        shared = usable_ring(await tx.signing_keys.share(), source)
        if shared is not None:
            return shared
        ring = await read_ring(tx, source)
        if source.file and not can_mint(ring, source):
            await _follow_file(tx, source, now)
        elif ring.active is None:
            key = source.draw()
            # If a different process has added a key first, this key is not added, and the next round reads that key.
            await tx.signing_keys.add(new_key(key.kid, key.secret, now))
    raise Unavailable("retry_exhausted", f"the key was rotated {_MAX_ROTATIONS} times during the call; repeat it")


def usable_ring(shared: KeyRing | None, source: KeySource) -> KeyRing | None:
    """Return the share-locked ring `shared` with its secrets if it can mint, else None."""
    return None if shared is None or not can_mint(shared, source) else complete_ring(shared, source)


def can_mint(ring: KeyRing, source: KeySource) -> bool:
    """Return True if the ring has an active key. With a key file, that key must be in the file (`can_mint_with`)."""
    return can_mint_with(ring, source.file) if source.file else ring.active is not None


@dataclass(frozen=True, slots=True)
class SeedRequest:
    """The first key of a store, and who seeds it."""

    key: FileKey
    audit: AuditInfo


@operation()
async def seed_key(tx: Transaction, namespace: str, seed: WithKeys[SeedRequest]) -> Seeded | AlreadySeeded:
    """Store the first signing key. Change nothing if it is stored already; raise if a different key is active."""
    if seed.keys.file:
        raise keys_kept_in_file(seed.keys.where)
    key, now = seed.request.key, await tx.now()
    decision = decide_seed(await tx.signing_keys.read(), key.kid, key.secret, now)
    for new in decision.writes:
        if not await tx.signing_keys.add(new):
            # Another process was first, so its key decides.
            return decide_seed(await tx.signing_keys.read(), key.kid, key.secret, now).outcome
        await _append_event(tx, namespace, "key_seeded", key.kid, seed.request.audit, now)
    return decision.outcome


@dataclass(frozen=True, slots=True)
class RotateRequest:
    """The key that becomes active, and who rotates."""

    rotation: Rotation
    audit: AuditInfo


@operation()
async def rotate_key(tx: Transaction, namespace: str, rotate: WithKeys[RotateRequest]) -> Rotated | Unchanged:
    """Make another key the active one."""
    if rotate.keys.file:
        raise keys_kept_in_file(rotate.keys.where)
    await tx.signing_keys.lock()
    rotation, now = rotate.request.rotation, await tx.now()
    outcome = await _rotate(tx, rotation, now, keep_secret=True)
    if isinstance(outcome, Rotated):
        await _append_event(tx, namespace, "key_rotated", rotation.kid, rotate.request.audit, now)
    return outcome


@operation(read_only=True)
async def list_keys(tx: Transaction, namespace: str, source: KeySource) -> tuple[KeyView, ...]:
    """Return the ring without its secrets."""
    return show_keys(await read_ring(tx, source), await tx.now())


async def expired_kids(tx: Transaction, now: datetime, limit: int) -> list[str]:
    """Return the ids of keys that can no longer verify any token. The read takes no lock, so minting can continue."""
    return [key.kid for key in collect(await tx.signing_keys.read(), now)][:limit]


async def collect_keys(tx: Transaction, kids: Sequence[str]) -> int:
    """Delete the secrets of those `kids` that can no longer verify any token, and return how many were deleted."""
    await tx.signing_keys.lock()
    expired = [key for key in collect(await tx.signing_keys.read(), await tx.now()) if key.kid in kids]
    await tx.signing_keys.change(expired)
    return len(expired)


async def _follow_file(tx: Transaction, source: KeySource, now: datetime) -> None:
    """Make the first key of an edited file the active one, without storing its secret.

    If that key was retired, it stays retired, because then a different process must have a newer version of the file.
    """
    await tx.signing_keys.lock()
    ring, first = await tx.signing_keys.read(), source.file[0]
    if ring.find(first.kid) is None:
        await _rotate(tx, Rotation(kid=first.kid, secret=first.secret), now, keep_secret=False)
    elif not can_mint(ring, source):
        raise active_key_missing(ring, source.where)


async def _rotate(tx: Transaction, rotation: Rotation, now: datetime, *, keep_secret: bool) -> Rotated | Unchanged:
    ring = await tx.signing_keys.read()
    cut_off = await _count_cut_off(tx, ring, rotation, now)
    decision = decide_rotate(ring, rotation, now, cut_off)
    existing = {key.kid for key in ring.keys}
    # The old key is retired first, so that there is never more than one active key.
    await tx.signing_keys.change([key for key in decision.writes if key.kid in existing])
    for key in decision.writes:
        if key.kid not in existing and not await tx.signing_keys.add(_stored_key(key, keep_secret=keep_secret)):
            # The ring was empty, so there was no row to lock, and a different process added the first key.
            await tx.signing_keys.lock()
            return await _rotate(tx, rotation, now, keep_secret=keep_secret)
    return decision.outcome


async def _count_cut_off(tx: Transaction, ring: KeyRing, rotation: Rotation, now: datetime) -> int:
    """Return how many open waitpoints lose their valid token, because this rotation sets an explicit grace."""
    if ring.active is None or rotation.grace is None:
        return 0
    return await tx.signing_keys.count_invalidated(ring.active.kid, now + validation.duration(rotation.grace, "grace"))


def _stored_key(key: Key, *, keep_secret: bool) -> Key:
    return key if keep_secret else replace(key, secret=None)


async def _append_event(tx: Transaction, namespace: str, name: str, kid: str, audit: AuditInfo, now: datetime) -> None:
    event = Event(
        namespace=namespace,
        family="operator",
        name=name,
        at=now,
        lane="",
        principal=audit.principal,
        reason=audit.reason,
        details={"kid": kid},
    )
    await tx.events.append([event])
