"""Removing executions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from flowfabric.core.purging import Remains


class Purging(Protocol):
    """What is needed to remove executions whose time is over."""

    async def lock_free(self, ids: Sequence[UUID]) -> list[Remains]:
        """What there is to be removed, locked; leaves out what others have locked."""

    async def remove(self, ids: Sequence[UUID], trim_at: datetime | None) -> None:
        """Removes executions with everything that belongs to them. It is noted that their events may go from that time
        on; not noted at all without one."""
