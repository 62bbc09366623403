"""The keys that sign tokens."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from flowfabric.core.tokens.key_ring import Key, KeyRing
from flowfabric.core.tokens.secret import Secret
from flowfabric.store.rows import picker, row_reader
from flowfabric.store.session import AggregateStore, Row

READ_RING = "key_ring"
READ_AND_SHARE_RING = "share_active_key"


class SigningKeyStore(AggregateStore):
    """The key ring."""

    async def read(self) -> KeyRing:
        """Return all keys."""
        return to_key_ring(await self._session.fetch(READ_RING))

    async def lock(self) -> None:
        """Lock all keys until the transaction ends. Wait for transactions that change keys or mint with them.

        It is not enough to lock only the active key. If that key is retired while a transaction waits for its lock,
        the transaction ends up with no lock.
        """
        await self._session.fetch("lock_keys")

    async def share(self) -> KeyRing | None:
        """Return all keys, and share-lock the active key, so that it stays active until the transaction ends.

        Return None if there is no active key, or if another transaction has just retired it.
        """
        return to_shared_key_ring(await self._session.fetch(READ_AND_SHARE_RING))

    async def add(self, key: Key) -> bool:
        """Store a new key. Return False if its key id (`kid`) exists already or another key is active."""
        parameters = _change_parameters(key) | {"check_value": key.check, "created_at": key.created_at}
        return bool(await self._session.fetch("add_signing_key", **parameters))

    async def change(self, keys: Sequence[Key]) -> None:
        """Overwrite the rows of existing keys."""
        await self._session.fetch_each("change_signing_key", [_change_parameters(key) for key in keys])

    async def count_invalidated(self, kid: str, end: datetime) -> int:
        """Count open waitpoints whose token was signed with this key and is valid beyond `end`."""
        [row] = await self._session.fetch("count_cut_off", kid=kid, end=end)
        return int(row["count"])


def to_key_ring(rows: Sequence[Row]) -> KeyRing:
    """Return a key ring made from rows, one row per key."""
    return KeyRing(tuple(map(_to_key, rows)))


def to_shared_key_ring(rows: Sequence[Row]) -> KeyRing | None:
    """Return the key ring if its active key is share-locked, else None."""
    return to_key_ring(rows) if any(row["shared"] for row in rows) else None


def _to_secret(row: Row) -> Secret | None:
    return None if row["secret"] is None else Secret(row["secret"])


_to_key = row_reader(Key, check="check_value", secret=_to_secret)
_change_columns = picker("kid", "retired_at", "verifies_until", "end_is_final", "collected_at")


def _change_parameters(key: Key) -> dict[str, object]:
    secret = None if key.secret is None else key.secret.reveal()
    return _change_columns(key) | {"secret": secret, "active": True if key.retired_at is None else None}
