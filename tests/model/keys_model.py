"""The reference model of `engine.keys`, the ring that signs tokens."""

from __future__ import annotations

from datetime import timedelta

from flowfabric.engine import AlreadySeeded, Conflict, KeyState, KeyView, Rotated, Seeded, Unchanged
from tests.model.wait_records import RingKey
from tests.model.world import World

DEFAULT_GRACE = timedelta(hours=24)


class Keys:
    """Seed, rotate and list keys."""

    def __init__(self, world: World) -> None:
        self._world = world

    def seed(self, namespace: str, *, kid: str, secret: str) -> Seeded | AlreadySeeded:
        """Add the first key.

        If the kid is already known, change nothing. If the key ring has only keys with other kids, reject the call.
        """
        existing = find_key(self._world, kid)
        if existing is not None:
            return AlreadySeeded(kid, existing.secret == secret, existing.retired_at is None)
        if self._world.ring.keys:
            raise Conflict("another_key_active", "")
        self._add(namespace, kid, secret, "key_seeded")
        return Seeded(kid)

    def rotate(self, namespace: str, *, kid: str, secret: str, grace: timedelta | None) -> Rotated | Unchanged:
        """Replace the active key.

        The previous key verifies tokens until the grace ends. Without an explicit grace, it also verifies as long as
        open waitpoints need it.
        """
        world, active, existing = self._world, active_key(self._world), find_key(self._world, kid)
        if existing is active and active.secret == secret:
            return Unchanged(kid)
        if existing is not None:
            raise Conflict("rotation_conflict", "")
        collected = collect(world)
        active.retired_at = world.now
        active.verifies_until = world.now + (DEFAULT_GRACE if grace is None else grace)
        active.is_final = grace is not None
        self._add(namespace, kid, secret, "key_rotated")
        return Rotated(active.kid, kid, collected, None if grace is None else _cut_off(world, active))

    def list(self, namespace: str) -> tuple[KeyView, ...]:
        """Return all keys, first the active key, then the retired keys from newest to oldest."""
        ordered = sorted(self._world.ring.keys, key=lambda key: (key.retired_at is None, key.created_at), reverse=True)
        return tuple(
            KeyView(
                key.kid,
                state_of(self._world, key),
                key.created_at,
                key.retired_at,
                key.verifies_until,
                key.retired_at is not None and key.collected_at is None and count_waitpoints(self._world, key) > 0,
                known=key.collected_at is None,
            )
            for key in ordered
        )

    def _add(self, namespace: str, kid: str, secret: str, event: str) -> None:
        self._world.ring.keys.append(RingKey(kid, secret, self._world.now))
        self._world.lane_events.append((namespace, "", event))


def active_key(world: World) -> RingKey:
    """Return the active key, which signs new tokens."""
    return next(key for key in world.ring.keys if key.retired_at is None)


def find_key(world: World, kid: str | None) -> RingKey | None:
    """Return the key with this kid, whatever its state, or None."""
    return next((key for key in world.ring.keys if key.kid == kid), None)


def state_of(world: World, key: RingKey) -> KeyState:
    """Return the state of a key at the current time."""
    if key.collected_at is not None:
        return KeyState.COLLECTED
    if key.verifies_until is None:
        return KeyState.ACTIVE
    needed = not key.is_final and count_waitpoints(world, key) > 0
    return KeyState.VERIFYING if world.now < key.verifies_until or needed else KeyState.EXPIRED


def verifies(world: World, kid: str | None) -> bool:
    """Return True while tokens of this kid are valid."""
    key = find_key(world, kid)
    return key is not None and state_of(world, key) in (KeyState.ACTIVE, KeyState.VERIFYING)


def count_waitpoints(world: World, key: RingKey) -> int:
    """Return how many open waitpoints have a token of this key."""
    slots = (slot for execution in world.executions.values() for slot in execution.slots)
    return sum(slot.is_open and slot.kid == key.kid for slot in slots)


def _cut_off(world: World, key: RingKey) -> int:
    """Return how many open waitpoints with tokens of this key accept signals for longer than the key verifies."""
    slots = (slot for execution in world.executions.values() for slot in execution.slots if slot.kid == key.kid)
    ends = [(slot.expires_at, slot.token_ends_at) for slot in slots if slot.is_open]
    assert key.verifies_until is not None, "the key has just been retired"
    return sum(all(end is None or end > key.verifies_until for end in both) for both in ends)


def collect(world: World) -> int:
    """Destroy the secrets of expired keys. Return the number of these keys."""
    expired = [key for key in world.ring.keys if state_of(world, key) is KeyState.EXPIRED]
    for key in expired:
        key.collected_at = world.now
    return len(expired)
