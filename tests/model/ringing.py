"""The reference model of `engine.keys`: the ring that signs tokens."""

from __future__ import annotations

from datetime import timedelta

from flowfabric.engine import AlreadySeeded, Conflict, KeyState, KeyView, Rotated, Seeded, Unchanged
from tests.model.waits import RingKey
from tests.model.world import World

USUAL_GRACE = timedelta(hours=24)


class Keys:
    """Seeding, rotating, listing."""

    def __init__(self, world: World) -> None:
        self._world = world

    def seed(self, namespace: str, *, kid: str, secret: str) -> Seeded | AlreadySeeded:
        """The first key; a kid that is known changes nothing, another one is refused."""
        known = known_key(self._world, kid)
        if known is not None:
            return AlreadySeeded(kid, known.secret == secret, known.retired_at is None)
        if self._world.ring.keys:
            raise Conflict("another_key_active", "")
        self._add(namespace, kid, secret, "key_seeded")
        return Seeded(kid)

    def rotate(self, namespace: str, *, kid: str, secret: str, grace: timedelta | None) -> Rotated | Unchanged:
        """Another key mints; the one before verifies for its grace, and, if none was given, while it is needed."""
        world, active, known = self._world, active_key(self._world), known_key(self._world, kid)
        if known is active and active.secret == secret:
            return Unchanged(kid)
        if known is not None:
            raise Conflict("rotation_conflict", "")
        collected = collect(world)
        active.retired_at = world.now
        active.verifies_until = world.now + (USUAL_GRACE if grace is None else grace)
        active.is_final = grace is not None
        self._add(namespace, kid, secret, "key_rotated")
        return Rotated(active.kid, kid, collected, None if grace is None else _cut_off(world, active))

    def list(self, namespace: str) -> tuple[KeyView, ...]:
        """What there is, the active key first, then the latest."""
        newest = sorted(self._world.ring.keys, key=lambda key: (key.retired_at is None, key.created_at), reverse=True)
        return tuple(
            KeyView(
                key.kid, state_of(self._world, key), key.created_at, key.retired_at, key.verifies_until,
                key.retired_at is not None and key.collected_at is None and minted_under(self._world, key) > 0,
                known=key.collected_at is None,
            )
            for key in newest
        )  # fmt: skip

    def _add(self, namespace: str, kid: str, secret: str, event: str) -> None:
        self._world.ring.keys.append(RingKey(kid, secret, self._world.now))
        self._world.lane_events.append((namespace, "", event))


def active_key(world: World) -> RingKey:
    """The key that mints."""
    return next(key for key in world.ring.keys if key.retired_at is None)


def known_key(world: World, kid: str | None) -> RingKey | None:
    """The key of this kid, whatever has become of it."""
    return next((key for key in world.ring.keys if key.kid == kid), None)


def state_of(world: World, key: RingKey) -> KeyState:
    """What a key is good for now."""
    if key.collected_at is not None:
        return KeyState.COLLECTED
    if key.verifies_until is None:
        return KeyState.ACTIVE
    needed = not key.is_final and minted_under(world, key) > 0
    return KeyState.VERIFYING if world.now < key.verifies_until or needed else KeyState.EXPIRED


def verifies(world: World, kid: str | None) -> bool:
    """True while tokens of this kid are genuine."""
    key = known_key(world, kid)
    return key is not None and state_of(world, key) in (KeyState.ACTIVE, KeyState.VERIFYING)


def minted_under(world: World, key: RingKey) -> int:
    """How many open waitpoints have their token from a key."""
    slots = (slot for execution in world.executions.values() for slot in execution.slots)
    return sum(slot.is_open and slot.kid == key.kid for slot in slots)


def _cut_off(world: World, key: RingKey) -> int:
    """How many open waitpoints would take signals longer than the key that their token is from."""
    slots = (slot for execution in world.executions.values() for slot in execution.slots if slot.kid == key.kid)
    ends = [(slot.expires_at, slot.token_ends_at) for slot in slots if slot.is_open]
    assert key.verifies_until is not None, "it has just been retired"
    return sum(all(end is None or end > key.verifies_until for end in both) for both in ends)


def collect(world: World) -> int:
    """How many secrets were destroyed because their time is over."""
    expired = [key for key in world.ring.keys if state_of(world, key) is KeyState.EXPIRED]
    for key in expired:
        key.collected_at = world.now
    return len(expired)
