"""The port for execution rows, and the hot statements on them that guard and write in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from flowfabric.core.flows import MemberEnd
from flowfabric.core.frozen import record
from flowfabric.core.outcomes import Lease, Renewed
from flowfabric.core.records import Execution, Fence
from flowfabric.core.requests import Checkpoint, Claim, Completion, Holds, Progress, Submission
from flowfabric.core.states import BlockingReason, State


@record(frozen=True, slots=True)
class NewExecution:
    """A submission that is ready to be inserted."""

    id: UUID
    namespace: str
    route_id: int
    submission: Submission
    state: State
    blocking_reason: BlockingReason
    ready_at: datetime | None
    flow_id: UUID | None = None
    member_name: str | None = None
    parent_id: UUID | None = None
    fingerprint: bytes | None = None


@record(frozen=True, slots=True)
class Claimed:
    """What a claim found: the leases taken, best first, or the news that all candidates were locked by others."""

    leases: tuple[Lease, ...]
    all_locked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Which executions to list: newest first, those with a smaller id than `before`."""

    namespace: str
    states: tuple[State, ...]
    before: UUID
    limit: int
    lane: str | None = None
    kind: str | None = None
    tags: Mapping[str, str] | None = None
    created_from: datetime | None = None
    created_until: datetime | None = None


class Executions(Protocol):
    """Execution rows: read, locked, saved and listed."""

    async def get(self, namespace: str | None, ids: Sequence[UUID]) -> dict[UUID, Execution]:
        """The executions among these ids that exist in the namespace (None: in any)."""

    async def fingerprint(self, namespace: str, id_: UUID) -> bytes | None:
        """What the submission of an execution is compared by; None if there is no such execution."""

    async def lock(self, namespace: str | None, ids: Sequence[UUID]) -> dict[UUID, Execution]:
        """The same, locked until the transaction ends; waits for other holders, in id order."""

    async def lock_free(self, ids: Sequence[UUID]) -> dict[UUID, Execution]:
        """The same in any namespace, but leaves out rows that others have locked."""

    async def save(self, changes: Sequence[tuple[Execution, Execution]]) -> None:
        """Writes each execution over what it was before; exactly that or an error."""

    async def held(self, namespace: str, instance: str) -> list[Execution]:
        """The executions that a worker instance has a live lease on."""

    async def suspended(self, namespace: str, after: UUID, limit: int) -> list[Execution]:
        """Suspended executions with a greater id, in order."""

    async def held_for_operator(self, namespace: str, holds: Holds, after: UUID, limit: int) -> list[UUID]:
        """Ids of executions that an operator holds, in id order."""

    async def page(self, listing: Listing) -> list[Execution]:
        """One page of executions, newest id first."""

    async def count(self, namespace: str, state: State, most: int) -> int:
        """How many executions are in a state, counted up to `most`."""

    async def estimate(self, namespace: str, state: State) -> int:
        """Roughly how many executions are in a state."""

    async def set_tags(self, id_: UUID, tags: Mapping[str, str]) -> None:
        """Replaces the tags of a locked execution."""


class HotStatements(Protocol):
    """The operations of the hot path, each one guarded statement over a batch. What they leave out was not written."""

    async def insert(self, items: Sequence[NewExecution]) -> set[UUID]:
        """Stores submissions of one namespace; leaves out ids that exist and lanes that drain."""

    async def claim(self, namespace: str, claim: Claim, drawn: bytes, *, past_locked: bool = False) -> Claimed:
        """Leases the best waiting executions along the routes that the claim may take; their ids are 16 bytes each of
        those that were drawn. `past_locked` looks for free ones along all routes, which costs more: locked ones of one
        route do not hide those of another then."""

    async def renew_if_owned(
        self, namespace: str, fences: Sequence[Fence], *, noted: bool = False
    ) -> dict[UUID, Renewed]:
        """Extends leases; answers the new expiry of each that was owned, and whether it is asked to stop. If it is to
        be `noted`, each leaves an event."""

    async def progress_if_owned(self, namespace: str, items: Sequence[Progress]) -> set[UUID]:
        """Stores progress reports; answers which were."""

    async def complete_if_owned(self, namespace: str, items: Sequence[Completion]) -> set[UUID]:
        """Completes plain executions; answers which were."""

    async def complete_linked_if_owned(
        self, namespace: str, items: Sequence[Completion], flows: Mapping[UUID, UUID]
    ) -> tuple[list[MemberEnd], datetime | None]:
        """Completes executions whatever hangs on them, if their flow is the locked one; answers which, and when."""

    async def pass_on(self, namespace: str, ids: Sequence[UUID], now: datetime) -> set[UUID]:
        """Goes on in the flows of members that have just completed, where nothing follows but that others start who
        waited for nobody else; answers whose ends these were. A store may leave them all to be worked out."""

    async def record_steps_if_owned(self, namespace: str, items: Sequence[Checkpoint]) -> dict[UUID, int]:
        """Records steps; answers how many were recorded per execution."""
