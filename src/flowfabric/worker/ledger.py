"""The leases that a worker holds, and when something must be done about them, by the local clock alone.

    add ──► unstarted ──start──► started ──remove──► (ended by its performance)
                │                   │
                │ a third of        │ a third of the term since it was last extended: to be renewed
                │ its term          │ its whole term: lost
                ▼                   ▼
            given back             lost

The worker's loop and the renewing thread share it; whoever takes a lease out has it. A term is counted from before the
store was asked, so a lease counts as lost here before it does there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from flowfabric.core.outcomes import Lease
from flowfabric.core.records import Fence

RENEW_AFTER = 1 / 3
START_WITHIN = 1 / 3


@dataclass(slots=True)
class _Held:
    fence: Fence
    ttl_s: float
    taken_at: float
    extended_at: float
    is_started: bool = False


class Ledger:
    """What is held. Every method may be called from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._held: dict[UUID, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def lease_ids(self) -> set[UUID]:
        """The leases that are held now."""
        with self._lock:
            return set(self._held)

    def add(self, leases: Sequence[Lease], asked_at: float) -> list[Lease]:
        """Notes leases that the store was asked for at that time; answers those that were not known yet."""
        with self._lock:
            fresh = [lease for lease in leases if lease.fence.lease_id not in self._held]
            for lease in fresh:
                held = _Held(lease.fence, lease.ttl.total_seconds(), asked_at, asked_at)
                self._held[lease.fence.lease_id] = held
        return fresh

    def start(self, lease_id: UUID) -> bool:
        """True if the lease may be worked on; False if it was given back or lost meanwhile."""
        with self._lock:
            held = self._held.get(lease_id)
            if held is None:
                return False
            held.is_started = True
            return True

    def remove(self, lease_id: UUID) -> bool:
        """Takes out a lease that needs no more care; False if it was out already."""
        with self._lock:
            return self._held.pop(lease_id, None) is not None

    def take_lost(self) -> list[Fence]:
        """Takes out the leases whose term has passed without a renewal."""
        now = self._clock()
        return self._take(lambda held: held.extended_at + held.ttl_s <= now)

    def take_idle(self) -> list[Fence]:
        """Takes out the leases that could not be started in time; somebody else may be able to."""
        now = self._clock()
        return self._take(lambda held: not held.is_started and held.taken_at + held.ttl_s * START_WITHIN <= now)

    def due(self) -> list[Fence]:
        """The leases that should be renewed by now, the most urgent first."""
        now = self._clock()
        with self._lock:
            due = [held for held in self._held.values() if held.extended_at + held.ttl_s * RENEW_AFTER <= now]
        return [held.fence for held in sorted(due, key=lambda held: held.extended_at + held.ttl_s)]

    def extend(self, lease_id: UUID, asked_at: float) -> bool:
        """Notes a renewal that was asked for at that time; False if the lease is not held any more."""
        with self._lock:
            held = self._held.get(lease_id)
            if held is None:
                return False
            held.extended_at = asked_at
            return True

    def next_loss_in(self, most_s: float) -> float:
        """In how many seconds the first lease runs out, at most so many."""
        with self._lock:
            ends = [held.extended_at + held.ttl_s for held in self._held.values()]
        return max(0.0, min([most_s, *(end - self._clock() for end in ends)]))

    def _take(self, wanted: Callable[[_Held], bool]) -> list[Fence]:
        with self._lock:
            taken = [held.fence for held in self._held.values() if wanted(held)]
            for fence in taken:
                del self._held[fence.lease_id]
        return taken
