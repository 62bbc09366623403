"""The port for operations that lock nothing before they write: one look, then one write that a touched row refuses.

Whoever changes what hangs on an execution writes its row too, in the same transaction. So a row that is as it was seen
vouches for everything that was seen with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from flowfabric.core.frozen import record
from flowfabric.core.keyring import KeyRing
from flowfabric.core.records import Execution
from flowfabric.core.waits import Suspension, Waitpoint
from flowfabric.store.waiting import Asked, Heard

if TYPE_CHECKING:
    from flowfabric.store.transaction import Written


@record(frozen=True, slots=True, kw_only=True)
class Seen:
    """Executions, without their payloads, and what hangs on them, as they were in one moment. The suspensions are those
    that are open or, before suspending, those that have the key that was asked for. `marks` tell a row that was touched
    since. The ring is None if it cannot be minted with and must be."""

    now: datetime
    executions: Mapping[UUID, Execution]
    marks: Mapping[UUID, str]
    waitpoints: Mapping[UUID, Sequence[Waitpoint]]
    suspensions: Mapping[UUID, Suspension]
    heard: Heard
    ring: KeyRing | None


class Unlocked(Protocol):
    """Looks at executions, and writes those that nobody has touched since."""

    async def before_suspending(self, asked: Sequence[tuple[UUID, str | None]], *, minting: bool) -> Seen | None:
        """What suspending these executions needs to know, each with the key of its suspension; None if there are none.
        One statement."""

    async def before_signalling(self, asked: Sequence[Asked]) -> Seen | None:
        """What delivering these signals needs to know, each to another execution. One statement."""

    async def write(
        self, written: Written, seen: Seen, *, owned: Collection[UUID] = (), kid: str | None = None
    ) -> Collection[UUID]:
        """Writes what concerns executions whose row is free and as it was seen, and answers which; of the rest nothing.
        The leases of those that are `owned` must not have run out. If `kid` is no longer the active key, nothing is
        written. One statement."""
