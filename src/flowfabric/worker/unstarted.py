"""Leases that are held but not worked on yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from uuid import UUID

from flowfabric.core.outcomes import Lease
from flowfabric.core.records import Fence


class Unstarted:
    """Those that wait for a slot, in order, and those that wait for a former performance of the same execution."""

    def __init__(self) -> None:
        self._queue: deque[Lease] = deque()
        self._behind: dict[UUID, Lease] = {}

    def __len__(self) -> int:
        """How many wait for a slot."""
        return len(self._queue)

    def add(self, leases: Iterable[Lease]) -> None:
        """They wait for a slot."""
        self._queue.extend(leases)

    def next(self) -> Lease:
        """The lease that has waited longest; it waits no more."""
        return self._queue.popleft()

    def stand_behind(self, lease: Lease) -> None:
        """It waits until the execution's former performance has ended."""
        self._behind[lease.execution_id] = lease

    def step_forward(self, execution_id: UUID) -> None:
        """The former performance of this execution has ended: whatever stands behind it is the next."""
        lease = self._behind.pop(execution_id, None)
        if lease is not None:
            self._queue.appendleft(lease)

    def drop(self, fences: Collection[Fence]) -> None:
        """These are not held any more."""
        self._queue = deque(lease for lease in self._queue if lease.fence not in fences)
        self._behind = {id_: lease for id_, lease in self._behind.items() if lease.fence not in fences}

    def take_all(self) -> list[Fence]:
        """Everything that waits; nothing waits any more."""
        fences = [lease.fence for lease in (*self._queue, *self._behind.values())]
        self._queue.clear()
        self._behind.clear()
        return fences
