"""What every group of operations shares: the store, the namespace, sources of ids and chance, and the reconcilers."""

from __future__ import annotations

import random
import secrets
import time
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from flowfabric.core import limits
from flowfabric.core.ids import IdMinter
from flowfabric.core.records import Route
from flowfabric.core.requests import Command
from flowfabric.reconcilers.loop import Reconcilers
from flowfabric.store.transaction import Store


@dataclass(frozen=True, slots=True)
class Context:
    """An engine's surroundings; views of other namespaces share all but the namespace."""

    store: Store
    namespace: str
    reconcilers: Reconcilers
    ids: IdMinter = field(default_factory=lambda: IdMinter(_now_ms, secrets.randbits))
    routes: dict[Route, int] = field(default_factory=dict)

    def within(self, namespace: str) -> Context:
        """The same surroundings for another namespace."""
        return replace(self, namespace=limits.name(namespace, "namespace"))

    def new_lease_id(self) -> UUID:
        """128 random bits."""
        return UUID(int=secrets.randbits(128))

    def chance(self) -> float:
        """A draw from [0, 1) for jitter."""
        return random.random()

    def due_at(self, due: datetime | None) -> None:
        """Tells the reconcilers of this process about a due time, None if only the store knows it."""
        self.reconcilers.hint(due)


def command(principal: object, reason: object) -> Command:
    """Who does something and why, checked."""
    return Command(principal=limits.name(principal, "principal"), reason=limits.text(reason, "reason"))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
