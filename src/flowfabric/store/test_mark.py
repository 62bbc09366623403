"""The mark of stores that the testing kit created."""

from __future__ import annotations

from flowfabric.store.session import AggregateStore


class TestMarkStore(AggregateStore):
    """The mark that allows a test to move the store's time."""

    __test__ = False

    async def read(self) -> tuple[bool, bool]:
        """Return whether the store has the mark, and whether it has been used."""
        [row] = await self._session.fetch("test_mark")
        return bool(row["is_test"]), bool(row["is_used"])

    async def set(self) -> None:
        """Mark the store."""
        await self._session.fetch("mark_as_test")
