"""Removing executions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID


class Purging(Protocol):
    """What is needed to remove executions whose time is over."""

    async def lock_ends(self, ids: Sequence[UUID]) -> dict[UUID, datetime | None]:
        """When each may be removed, None for one that has not ended; locked, without those that others have locked."""

    async def remove(self, ids: Sequence[UUID]) -> None:
        """Removes executions with everything that belongs to them; their events stay."""

    async def bury(self, ids: Sequence[UUID], trim_at: datetime) -> None:
        """Notes executions that are about to go, and when their events may."""
