"""The ports for what decides who may work on what: lanes, routes, grants and submission keys."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from flowfabric.core.records import Grant, Route
from flowfabric.core.views import Backlog


class LaneState(StrEnum):
    """Active; paused: accepts submissions, gives out none; draining: gives out what it has, accepts none."""

    ACTIVE = "active"
    PAUSED = "paused"
    DRAINING = "draining"


class Lanes(Protocol):
    """The state of lanes; a lane that nobody touched is active."""

    async def put(self, namespace: str, lane: str, state: LaneState, now: datetime) -> bool:
        """Sets the state; False if it was that already."""

    async def state(self, namespace: str, lane: str) -> LaneState:
        """The state of a lane."""

    async def all(self, namespace: str) -> dict[str, LaneState]:
        """Every lane that was used or touched, by name."""


class Routes(Protocol):
    """Namespace, lane, kind and requirements as one number that the queue leads with."""

    async def ensure(self, route: Route) -> int:
        """The id of a route, which is made if it is new."""

    async def requires(self, route_id: int) -> tuple[str, ...]:
        """The capabilities that a route requires."""

    async def backlog(self, namespace: str, most: int) -> list[Backlog]:
        """What waits on each route, by lane and kind, counted up to that many."""

    async def forget(self, namespace: str) -> None:
        """Removes the routes of a namespace that nobody uses any more."""


class Grants(Protocol):
    """Grants to take over an execution that is kept for a hand-off."""

    async def add(self, grant: Grant) -> None:
        """Stores a grant."""

    async def get(self, id_: UUID) -> Grant | None:
        """A grant by its id."""

    async def open(self, execution_id: UUID, now: datetime) -> Grant | None:
        """The grant of an execution that is neither used nor past its time."""

    async def end(self, execution_id: UUID) -> None:
        """Makes the grants of an execution that were not used worthless."""

    async def consume(self, id_: UUID, lease_id: UUID) -> bool:
        """Marks a grant as used by a lease; False if it was used before."""


class Keys(Protocol):
    """Idempotency keys of submissions."""

    async def take(
        self, namespace: str, key: str, execution_id: UUID, fingerprint: bytes, window: timedelta
    ) -> tuple[UUID, bytes] | None:
        """Takes a free or expired key for that long from now; else answers the id and fingerprint that hold it."""

    async def expired(self, now: datetime, limit: int) -> list[tuple[str, str]]:
        """Namespaces and names of keys whose window has passed; nothing is locked."""

    async def drop_expired(self, keys: Sequence[tuple[str, str]], now: datetime) -> int:
        """Removes those of them whose window has passed and that nobody else is at; answers how many."""
