"""The duty that lets the store remove dead rows after about 20,000 claims of this process."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from flowfabric.core.errors import FlowFabricError
from flowfabric.store.ports import Store

VACUUM_CLAIMS = 20_000
_log = logging.getLogger("flowfabric.reconcilers")


def draw_claims() -> int:
    """Return a number of claims around 20,000, so that processes with equal load take turns."""
    return random.randint(VACUUM_CLAIMS // 2, VACUUM_CLAIMS * 3 // 2)


class Vacuum:
    """Vacuums the store whenever `claims_left`, which each claim reduces, has reached zero.

    Only claims start a vacuum, so a worker that drains starts none. It runs beside the other duties, which must not
    wait for it.
    """

    def __init__(self, store: Store, *, enabled: bool, draw: Callable[[], int] = draw_claims) -> None:
        self._store = store
        self._enabled = enabled
        self._draw = draw
        self.claims_left = draw()
        self._is_due = asyncio.Event()
        self._has_warned = False

    def request(self) -> None:
        """Vacuum soon, because no claims are left, and count the next ones."""
        self.claims_left = self._draw()
        if self._enabled:
            self._is_due.set()

    async def run(self) -> None:
        """Vacuum whenever it was requested, until this task is cancelled."""
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            try:
                await self._vacuum()
            except FlowFabricError as error:
                _log.warning("Vacuum failed, retrying after more claims: %s", error)
            except Exception:
                _log.exception("Vacuum failed unexpectedly, retrying after more claims")

    async def _vacuum(self) -> None:
        if not await self._store.vacuum() and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "This role may not vacuum the tables of the store, so claims slow down between the visits of "
                "autovacuum; let the owner of the tables run the workers, grant MAINTAIN, or set vacuum=False"
            )
