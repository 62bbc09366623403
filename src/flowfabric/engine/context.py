"""What every group of operations shares: the store, the namespace, sources of ids and chance, and the reconcilers."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from flowfabric.batching import Batcher
from flowfabric.core import limits
from flowfabric.core.ids import IdMinter
from flowfabric.core.outcomes import Accepted, DuplicateSignal, Lease, Renewed, Satisfied, Suspended
from flowfabric.core.records import Fence
from flowfabric.core.requests import Command
from flowfabric.core.suspending import Suspend
from flowfabric.engine.shared_reads import Found, Read, SharedRead
from flowfabric.ops.deliver_signal import Delivery
from flowfabric.ops.hot import HotOperation
from flowfabric.ops.key_ring import KeySource
from flowfabric.reconcilers.loop import Reconcilers
from flowfabric.store.transaction import Store
from flowfabric.wakeups.wakeups import Wakeups

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
_MOST_BATCHERS = 100
_MOST_LINKED = 100_000


@dataclass(frozen=True, slots=True)
class WaitOperations:
    """The operations on waits, which need the keys of their engine."""

    suspend: HotOperation[Suspend, Suspended | Satisfied]
    deliver: HotOperation[Delivery, Accepted | DuplicateSignal]


@dataclass(frozen=True, slots=True)
class Context:
    """An engine's surroundings; views of other namespaces share all but the namespace."""

    store: Store
    namespace: str
    reconcilers: Reconcilers
    wakeups: Wakeups
    keys: KeySource
    waits: WaitOperations
    renew: HotOperation[Fence, Renewed]
    ids: IdMinter = field(default_factory=lambda: IdMinter(_now_ms, random.Random().getrandbits))
    routes: dict[tuple[Any, ...], int] = field(default_factory=dict)
    batchers: dict[tuple[int, str], Batcher[Any, Any]] = field(default_factory=dict)
    reads: dict[tuple[Read[Any], str], SharedRead[Any]] = field(default_factory=dict)
    linked: set[UUID] = field(default_factory=set)

    async def one(self, operation: HotOperation[Item, Outcome], item: Item) -> Outcome:
        """The outcome of one item of a hot operation, which shares its commit with whatever else is under way."""
        return await self._batcher(operation).submit(item)

    def begun(self, operation: HotOperation[Item, Outcome], item: Item) -> asyncio.Future[Outcome]:
        """The same, to come, of an item that is not solitary."""
        return self._batcher(operation).enter(item)

    def _batcher(self, operation: HotOperation[Item, Outcome]) -> Batcher[Item, Outcome]:
        key = (id(operation), self.namespace)
        batcher = self.batchers.get(key)
        if batcher is None:
            if len(self.batchers) >= _MOST_BATCHERS:
                self._drop_idle_batchers()
            batcher = self.batchers[key] = Batcher(self.store, self.namespace, operation)
        return batcher

    async def read(self, what: Read[Found], id_: UUID) -> Found:
        """What is read about an execution, by a statement that callers of this namespace share."""
        key = (what, self.namespace)
        if key not in self.reads:
            if len(self.reads) > _MOST_BATCHERS:
                self.reads.clear()
            self.reads[key] = SharedRead(self.store, self.namespace, what)
        shared: SharedRead[Found] = self.reads[key]
        return await shared.of(id_)

    def note_leases(self, leases: Sequence[Lease]) -> None:
        """Remembers which leases are on executions with something attached, so that their ends go the right way at
        once. It is a hint: a forgotten one only takes the longer way."""
        if len(self.linked) > _MOST_LINKED:
            self.linked.clear()
        self.linked.update(lease.fence.lease_id for lease in leases if not lease.plain)

    def _drop_idle_batchers(self) -> None:
        for key in [key for key, batcher in self.batchers.items() if batcher.is_idle]:
            del self.batchers[key]

    def within(self, namespace: str) -> Context:
        """The same surroundings for another namespace."""
        return replace(self, namespace=limits.name(namespace, "namespace"))

    def new_lease_id(self) -> UUID:
        """128 random bits."""
        return UUID(bytes=os.urandom(16))

    def lease_bits(self, number: int) -> bytes:
        """128 random bits for each of so many leases; most claims need few of them, so nobody makes ids of all."""
        return os.urandom(16 * number)

    def chance(self) -> float:
        """A draw from [0, 1) for jitter."""
        return random.random()

    def due_at(self, due: datetime | None) -> None:
        """Tells the reconcilers about a due time, None if only the store knows it."""
        self.wakeups.due_at(due)

    def due_in(self, delay: timedelta) -> None:
        """The same for something that is due so much later than now."""
        self.wakeups.due_at(self.wakeups.store_now() + delay)


def command(principal: object, reason: object) -> Command:
    """Who does something and why, checked."""
    return Command(principal=limits.name(principal, "principal"), reason=limits.text(reason, "reason"))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
