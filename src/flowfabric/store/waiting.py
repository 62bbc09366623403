"""The ports for waits: suspensions, waitpoints and signals of locked executions, and the keys that sign tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from flowfabric.core.evaluating import SignalFacts
from flowfabric.core.flow_outcomes import Input
from flowfabric.core.frozen import record
from flowfabric.core.keyring import Key, KeyRing
from flowfabric.core.looking import Look, Looking, Recalling
from flowfabric.core.records import RecordedStep
from flowfabric.core.views import Glance
from flowfabric.core.waits import Signal, Suspension, WaitChanges, Waitpoint


@record(frozen=True, slots=True)
class Asked:
    """A signal that may have come before: under its id to the execution, or under its key to the waitpoint."""

    execution_id: UUID
    id: UUID
    waitpoint_id: UUID | None
    key: str | None


@record(frozen=True, slots=True)
class Heard:
    """Signals by execution: those that have counted in its open suspension, and the one that came before."""

    counting: Mapping[UUID, tuple[SignalFacts, ...]]
    accepted: Mapping[UUID, UUID]


class Waits(Protocol):
    """Suspensions, waitpoints and signals. Whoever changes them has locked their execution."""

    async def apply(self, changes: Sequence[WaitChanges]) -> None:
        """Writes what decisions say; exactly that or an error. The rows of the executions must be new or be written in
        this transaction too: whoever looks without a lock (`store/unlocked.py`) tells changes by them."""

    async def end(self, execution_ids: Sequence[UUID], now: datetime, *, were_active: bool = False) -> None:
        """Closes whatever is open on executions that have ended; those that were active had no open suspension."""

    async def before_suspending(
        self, execution_ids: Sequence[UUID], asked: Sequence[tuple[UUID, int, str]], *, minting: bool
    ) -> tuple[dict[UUID, list[Waitpoint]], dict[UUID, Suspension], KeyRing | None]:
        """The open waitpoints of executions; of those asked for with a generation and an idempotency key, the
        suspension that has it; and the key ring, for minting as `SigningKeys.share` answers it."""

    async def before_signalling(
        self, execution_ids: Sequence[UUID], asked: Sequence[Asked]
    ) -> tuple[dict[UUID, list[Waitpoint]], dict[UUID, Suspension], Heard, KeyRing]:
        """The open waitpoints and suspensions of executions, what has come to them, and the key ring."""

    async def open_suspensions(self, execution_ids: Sequence[UUID]) -> dict[UUID, Suspension]:
        """The open suspension of each execution that has one."""

    async def last_suspension(
        self, execution_id: UUID, *, id_: UUID | None = None, lease_id: UUID | None = None
    ) -> Suspension | None:
        """The newest suspension of an execution; the one with this id, or the newest that was opened by this lease."""

    async def open_waitpoints(self, execution_ids: Sequence[UUID]) -> dict[UUID, list[Waitpoint]]:
        """The open waitpoints of each execution that has some, by key."""

    async def bound_waitpoints(self, execution_id: UUID, number: int) -> list[Waitpoint]:
        """The waitpoints that a suspension has bound, closed ones too."""

    async def waitpoints(self, ids: Sequence[UUID]) -> dict[UUID, Waitpoint]:
        """The waitpoints among these ids that exist."""

    async def last_waitpoint(self, execution_id: UUID, key: str, by: datetime) -> Waitpoint | None:
        """The newest waitpoint of this key that was there by then, open or closed."""

    async def list_waitpoints(self, execution_id: UUID, after: UUID, limit: int) -> list[Waitpoint]:
        """The waitpoints of an execution with a greater id, in order."""

    async def standing_keys(self, execution_id: UUID) -> list[str]:
        """The keys of the standing waitpoints that were declared for an execution."""

    async def unused(self, waitpoint_ids: Sequence[UUID]) -> dict[UUID, tuple[SignalFacts, ...]]:
        """What has come to waitpoints and belongs to no suspension yet, in order of acceptance."""

    async def heard(self, execution_ids: Sequence[UUID], asked: Sequence[Asked] = ()) -> Heard:
        """What has come to these executions, and whether what is asked for came before."""

    async def signals(
        self, asked: Sequence[tuple[UUID, int, int]], *, include_unmatched: bool, limit: int
    ) -> dict[UUID, list[Signal]]:
        """The signals that belong to a suspension of each execution, given with its number and with the place to begin
        after: those that counted, or all; in order of acceptance, so many at most."""


class Looks(Protocol):
    """What callers ask for at the same time, read for all of them by one statement in one round trip."""

    async def look(self, namespace: str, asked: Sequence[Looking], most: int) -> dict[UUID, Look]:
        """Of each execution that is there, none of which is asked about twice: signals at waitpoints by key, behind
        these places and so many of each; the ends of these executions; and waits that an operator ended."""

    async def journals(self, namespace: str, asked: Sequence[Recalling]) -> dict[UUID, list[RecordedStep]]:
        """Of each execution that is there, none of which is asked about twice, the steps that answer."""

    async def glances(self, namespace: str, ids: Sequence[UUID]) -> dict[UUID, Glance]:
        """Where these executions are."""

    async def inputs(self, namespace: str, ids: Sequence[UUID]) -> dict[UUID, dict[str, Input]]:
        """What the upstreams of these executions left for them, by the names of their inputs."""


class SigningKeys(Protocol):
    """The key ring as the store has it."""

    async def ring(self) -> KeyRing:
        """All keys."""

    async def lock(self) -> None:
        """Waits until nobody else changes keys or mints with them, and keeps them from it until the transaction ends.

        All keys are locked, not only the active one: whoever waited for a key that is retired now would hold nothing.
        """

    async def share(self) -> KeyRing | None:
        """All keys, of which the active one stays so until the transaction ends; None if there is none, or if it was
        being retired."""

    async def add(self, key: Key) -> bool:
        """Stores a new key; False if its kid exists, or if it is active beside another one."""

    async def change(self, keys: Sequence[Key]) -> None:
        """Writes known keys over what they were."""

    async def cut_off(self, kid: str, end: datetime) -> int:
        """How many open waitpoints have a token that this key has signed and that is good for longer than this."""
