"""What stands between a worker and whoever performs the work: the worker owns leases and slots, and knows no more.

worker: claim ──► begin(engine, lease) ──► perform() ─────────────────► the slot is free
                                              ▲
          renewal, signals, bells ────────────┘  lease_lost, cancel_requested, drain, news
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from flowfabric.core.errors import FlowFabricError
from flowfabric.core.outcomes import Lease

if TYPE_CHECKING:
    from flowfabric.engine.engine import Engine


class Performance(Protocol):
    """One lease that is being worked on. All methods are called on the worker's event loop.

    What a worker tells may be overtaken by what the performance has just done itself: a lease that it ended is found
    lost by a renewal that was under way. After `perform` has returned nothing is told any more.
    """

    async def perform(self) -> None:
        """Works until the lease is ended, given up or lost; the slot is free then. Raises only CancelledError."""

    def lease_lost(self, error: FlowFabricError) -> None:
        """The lease is somebody else's now, or nobody's: stop, and write nothing more."""

    def cancel_requested(self, due_at: datetime) -> None:
        """Somebody wants the execution cancelled; what has not ended by then is cancelled by force."""

    def drain(self) -> None:
        """The process is about to end: unwind at the next durable call, then release the lease."""

    def news(self) -> None:
        """Something about this execution may have changed: look at the waits that are parked."""


class Performer(Protocol):
    """Knows how to perform executions of certain kinds."""

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds to claim; nothing else is begun."""

    def begin(self, engine: Engine, lease: Lease) -> Performance:
        """The performance of a lease, not yet started. Called on the worker's event loop."""
