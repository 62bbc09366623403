"""The key ring inside a transaction: read for verifying, made sure of for minting, seeded, rotated and collected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from flowfabric.core import limits
from flowfabric.core.errors import Unavailable
from flowfabric.core.frozen import replace
from flowfabric.core.key_file import FileKey, active_key_missing, can_mint_with, kept_in_file, with_secrets
from flowfabric.core.keyring import (
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
from flowfabric.core.records import Event
from flowfabric.core.requests import Command
from flowfabric.core.secret import Secret
from flowfabric.store.transaction import Transaction

_MOST_ROTATIONS = 10


@dataclass(slots=True)
class KeyMemory:
    """The ring as this process has last read it: enough to doubt a token, never to accept one."""

    ring: KeyRing = field(default_factory=KeyRing)


@dataclass(frozen=True, slots=True)
class KeySource:
    """Where secrets come from: a file's keys if there is one, else the store; `draw` makes a new kid and secret."""

    draw: Callable[[], FileKey]
    file: tuple[FileKey, ...] = ()
    where: str = ""
    memory: KeyMemory = field(default_factory=KeyMemory, repr=False, compare=False)


async def read_ring(tx: Transaction, source: KeySource) -> KeyRing:
    """The ring with its secrets."""
    return completed(await tx.signing_keys.ring(), source)


def completed(ring: KeyRing, source: KeySource) -> KeyRing:
    """A ring that was read, with the secrets of the file; it is remembered."""
    source.memory.ring = with_secrets(ring, source.file, source.where) if source.file else ring
    return source.memory.ring


async def minting_ring(tx: Transaction, source: KeySource, now: datetime) -> KeyRing:
    """The ring with an active key: the file's first one, one of its others if that one was retired before, or, for the
    first token of a store, one that is drawn.

    The key is not retired while it is minted with: a rotation waits, and counts what was signed, or is waited for.
    """
    for _ in range(_MOST_ROTATIONS):
        shared = await shared_ring(tx, source)
        if shared is not None:
            return shared
        ring = await read_ring(tx, source)
        if source.file and not can_mint(ring, source):
            await _follow_file(tx, source, now)
        elif ring.active is None:
            drawn = source.draw()
            # Of two who draw at once the second one is let down here, and reads what the first one drew.
            await tx.signing_keys.add(new_key(drawn.kid, drawn.secret, now))
    raise Unavailable("retry_exhausted", f"the key was rotated {_MOST_ROTATIONS} times meanwhile; repeat the call")


async def shared_ring(tx: Transaction, source: KeySource) -> KeyRing | None:
    """The ring to mint with, if it has the active key that it should have: minting writes nothing to it then."""
    return usable(await tx.signing_keys.share(), source)


def usable(shared: KeyRing | None, source: KeySource) -> KeyRing | None:
    """A ring that was shared, if it has the active key that it should have."""
    return None if shared is None or not can_mint(shared, source) else completed(shared, source)


def can_mint(ring: KeyRing, source: KeySource) -> bool:
    """True if the ring has the active key that it should have."""
    return can_mint_with(ring, source.file) if source.file else ring.active is not None


async def seed_key(
    tx: Transaction, namespace: str, source: KeySource, key: FileKey, command: Command
) -> Seeded | AlreadySeeded:
    """The first key of a store."""
    if source.file:
        raise kept_in_file(source.where)
    now = await tx.now()
    decision = decide_seed(await tx.signing_keys.ring(), key.kid, key.secret, now)
    for new in decision.writes:
        if not await tx.signing_keys.add(new):
            # Somebody else was first: what they did decides.
            return decide_seed(await tx.signing_keys.ring(), key.kid, key.secret, now).answer
        await _note(tx, namespace, "key_seeded", key.kid, command, now)
    return decision.answer


async def rotate_key(
    tx: Transaction, namespace: str, source: KeySource, rotation: Rotation, command: Command
) -> Rotated | Unchanged:
    """Another key becomes the active one."""
    if source.file:
        raise kept_in_file(source.where)
    await tx.signing_keys.lock()
    now = await tx.now()
    answer = await _rotate(tx, rotation, now, keep_secret=True)
    if isinstance(answer, Rotated):
        await _note(tx, namespace, "key_rotated", rotation.kid, command, now)
    return answer


async def list_keys(tx: Transaction, source: KeySource) -> tuple[KeyView, ...]:
    """The ring as it may be shown."""
    return show_keys(await read_ring(tx, source), await tx.now())


async def expired_kids(tx: Transaction, now: datetime, limit: int) -> list[str]:
    """The keys with which nothing can be verified any more. Whoever mints is not held up by the look."""
    return [key.kid for key in collect(await tx.signing_keys.ring(), now)][:limit]


async def collect_keys(tx: Transaction, kids: Sequence[str]) -> int:
    """How many secrets were destroyed, of these keys, because nothing can be verified with them any more."""
    await tx.signing_keys.lock()
    gone = [key for key in collect(await tx.signing_keys.ring(), await tx.now()) if key.kid in kids]
    await tx.signing_keys.change(gone)
    return len(gone)


async def _follow_file(tx: Transaction, source: KeySource, now: datetime) -> None:
    """The file was edited: its first key becomes the active one, of which the store keeps no secret. One that was
    retired stays so, since another process has a newer file."""
    await tx.signing_keys.lock()
    ring, first = await tx.signing_keys.ring(), source.file[0]
    if ring.find(first.kid) is None:
        await _rotate(tx, Rotation(kid=first.kid, secret=first.secret), now, keep_secret=False)
    elif not can_mint(ring, source):
        raise active_key_missing(ring, source.where)


async def _rotate(tx: Transaction, rotation: Rotation, now: datetime, *, keep_secret: bool) -> Rotated | Unchanged:
    ring = await tx.signing_keys.ring()
    lost = await _cut_off(tx, ring, rotation, now)
    decision = decide_rotate(ring, rotation, now, lost)
    known = {key.kid for key in ring.keys}
    # The old key is retired first: there is never more than one active.
    await tx.signing_keys.change([key for key in decision.writes if key.kid in known])
    for key in decision.writes:
        if key.kid not in known and not await tx.signing_keys.add(_stored(key, keep_secret)):
            # The ring was empty, so nothing was locked, and somebody else's first key came before this one.
            await tx.signing_keys.lock()
            return await _rotate(tx, rotation, now, keep_secret=keep_secret)
    return decision.answer


async def _cut_off(tx: Transaction, ring: KeyRing, rotation: Rotation, now: datetime) -> int:
    """How many open waitpoints would outlive an explicit grace of the active key."""
    if ring.active is None or rotation.grace is None:
        return 0
    return await tx.signing_keys.cut_off(ring.active.kid, now + limits.duration(rotation.grace, "grace"))


def _stored(key: Key, keep_secret: bool) -> Key:
    return key if keep_secret else replace(key, secret=None)


async def _note(tx: Transaction, namespace: str, name: str, kid: str, command: Command, now: datetime) -> None:
    event = Event(
        namespace=namespace, family="operator", name=name, at=now, lane="", principal=command.principal,
        reason=command.reason, details={"kid": kid},
    )  # fmt: skip
    await tx.events.append([event])


def drawn_key(kid: str, secret_hex: str) -> FileKey:
    """A kid and a secret that were drawn for a store."""
    return FileKey(kid, Secret(secret_hex))
