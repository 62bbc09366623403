"""The port for the register of workers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from flowfabric.core.workers import Worker


class Workers(Protocol):
    """Worker instances as they have registered themselves."""

    async def lock(self, namespace: str, instance: str) -> Worker | None:
        """The worker, locked."""

    async def add(self, worker: Worker) -> bool:
        """Adds the worker; False if the instance is there already, whoever is just adding it."""

    async def change(self, worker: Worker) -> None:
        """Replaces what is known of a locked one."""

    async def beat(self, namespace: str, instance: str, busy: int) -> datetime | None:
        """Until when a live one counts as live now; None if it does not any more."""

    async def remove(self, namespace: str, instance: str) -> None:
        """Takes one out of the register."""

    async def page(self, namespace: str, after: str, limit: int) -> list[Worker]:
        """Those with a later instance, by instance."""

    async def on_lane(self, namespace: str, lane: str, now: datetime, limit: int) -> list[Worker]:
        """Live ones that claim on the lane."""

    async def lapsed(self, now: datetime, limit: int) -> list[tuple[str, str]]:
        """Namespaces and instances that were not heard of in time, longest silent first; nothing is locked."""

    async def remove_lapsed(self, instances: Sequence[tuple[str, str]], now: datetime) -> list[Worker]:
        """Takes those of them out of the register that nobody else is at; answers them as they were."""
