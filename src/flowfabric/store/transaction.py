"""One transaction on a SQL database, with a store object per aggregate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Generic, TypeVar
from uuid import UUID

from flowfabric.core.executions.requests import Claim, Step
from flowfabric.store.commit_hints import CommitHints
from flowfabric.store.due import DueStore
from flowfabric.store.events import EraStore, EventStore, SubscriberStore, TrimStore
from flowfabric.store.executions import ExecutionStore, GrantStore, IdempotencyKeyStore, PurgeStore, WriteSet
from flowfabric.store.flows import EdgeStore, FlowStore, MemberStore
from flowfabric.store.journal import AttemptStore, StepStore
from flowfabric.store.lanes import LaneStore, RouteStore
from flowfabric.store.records import Claimed
from flowfabric.store.rows import attempt_parameters, event_parameters
from flowfabric.store.session import AggregateStore, Session
from flowfabric.store.signing_keys import SigningKeyStore
from flowfabric.store.snapshot import OptimisticStore, SnapshotStore
from flowfabric.store.waits import WaitStore, touched_executions, write_waits
from flowfabric.store.workers import WorkerStore

Store_co = TypeVar("Store_co", covariant=True)
UserBody = Callable[[Any], Any]
StepRecorder = Callable[[Any], Step]
RecordedResult = tuple[Any, Step]


class TestMarkStore(AggregateStore):
    """The mark of a store that a testing kit created, which allows a test to move the store's time."""

    __test__ = False

    async def read(self) -> tuple[bool, bool]:
        """Return whether the store has the mark, and whether it has been used."""
        [row] = await self._session.fetch("test_mark")
        return bool(row["is_test"]), bool(row["is_used"])

    async def set(self) -> None:
        """Mark the store."""
        await self._session.fetch("mark_as_test")


class _LazyStore(Generic[Store_co]):
    """A descriptor that creates a store of a transaction on first use. Most operations need only a few stores."""

    def __init__(self, make: Callable[[Session, CommitHints], Store_co]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, tx: Transaction, owner: type) -> Store_co:
        store = tx.__dict__[self._name] = self._make(tx.session, tx.hints)
        return store


class Transaction:
    """The stores over one session, and the hints to send after its commit."""

    optimistic_class: type[OptimisticStore] = OptimisticStore

    def __init__(self, session: Session) -> None:
        self.session = session
        self.hints = CommitHints()

    executions = _LazyStore(ExecutionStore)
    attempts = _LazyStore(AttemptStore)
    steps = _LazyStore(StepStore)
    events = _LazyStore(EventStore)
    eras = _LazyStore(EraStore)
    lanes = _LazyStore(LaneStore)
    routes = _LazyStore(RouteStore)
    grants = _LazyStore(GrantStore)
    idempotency_keys = _LazyStore(IdempotencyKeyStore)
    waits = _LazyStore(WaitStore)
    snapshots = _LazyStore(SnapshotStore)
    signing_keys = _LazyStore(SigningKeyStore)
    flows = _LazyStore(FlowStore)
    edges = _LazyStore(EdgeStore)
    members = _LazyStore(MemberStore)
    due = _LazyStore(DueStore)
    subscribers = _LazyStore(SubscriberStore)
    trim = _LazyStore(TrimStore)
    purge = _LazyStore(PurgeStore)
    workers = _LazyStore(WorkerStore)
    test_mark = _LazyStore(TestMarkStore)

    @cached_property
    def optimistic(self) -> OptimisticStore:
        """The store for reads and writes without locks."""
        return self.optimistic_class(self.session, self.hints, self.executions, self.waits)

    async def write(self, write_set: WriteSet) -> None:
        """Write all rows of `write_set`, or raise."""
        saved_ids = {after.id for _, after in write_set.executions}
        await write_waits(
            self.session,
            write_set.waits,
            *self.executions.save_batches(write_set.executions),
            ("touch_executions", [{"execution_id": id_} for id_ in touched_executions(write_set.waits) - saved_ids]),
            ("append_attempt", [attempt_parameters(item) for item in write_set.attempts]),
            ("append_event", [event_parameters(item) for item in write_set.events]),
        )
        self.hints.note_events(write_set.events)
        self.hints.note_interrupted(write_set.executions)

    async def claim(self, namespace: str, claim: Claim, lease_bits: bytes, *, past_locked: bool = False) -> Claimed:
        """Lease the best waiting executions along the routes that the claim may take.

        Each lease id takes 16 bytes of `lease_bits`. With `past_locked`, look for free executions along all routes, so
        that locked executions of one route do not hide free executions of another route. That costs more, and only
        matters if there are several writers.
        """
        raise NotImplementedError

    async def pass_on(self, namespace: str, ids: Sequence[UUID], now: datetime) -> set[UUID]:
        """Release members that waited for the completed members `ids`. Return the completed members that are done.

        This shortcut handles only completed members whose dependents wait for nothing else. `resolve` must handle the
        others. A backend without such a statement returns an empty set.
        """
        return set()

    async def now(self) -> datetime:
        """Return the store's time now. If the transaction waited for a lock, the time is after the end of that wait."""
        return await self.session.now()


class JoinedTransaction(Transaction):
    """A transaction of the caller, which only the caller commits or rolls back."""

    async def notify_on_commit(self, hints: CommitHints) -> None:
        """Send hints when the caller commits. A backend that cannot do this sends none, and listeners poll."""
        raise NotImplementedError


class SharedTransaction(Transaction):
    """A transaction of the engine in which user code takes part.

    With `outlasts_leases`, the transaction may take longer than the lease under which it runs, because it locks the
    row of the execution. Otherwise the backend limits the time of user code.
    """

    outlasts_leases = False

    async def run_user_code(self, body: UserBody, record: StepRecorder, lease_ttl: timedelta) -> RecordedResult:
        """Run user code on the connection. Return its result and the step to record for it."""
        raise NotImplementedError
