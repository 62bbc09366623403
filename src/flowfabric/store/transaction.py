"""One transaction on a SQL database, with a store object per aggregate."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Generic, TypeVar

from flowfabric.core.executions.requests import Step
from flowfabric.store.commit_hints import CommitHints
from flowfabric.store.due import DueStore
from flowfabric.store.events import EventStore, SubscriberStore, TrimStore
from flowfabric.store.executions import ExecutionStore, GrantStore, IdempotencyKeyStore, PurgeStore, WriteSet
from flowfabric.store.flows import FlowStore
from flowfabric.store.hot_path import HotStatements
from flowfabric.store.journal import AttemptStore, StepStore
from flowfabric.store.lanes import LaneStore, RouteStore
from flowfabric.store.rows import attempt_parameters, event_parameters
from flowfabric.store.session import Session
from flowfabric.store.signing_keys import SigningKeyStore
from flowfabric.store.snapshot import OptimisticStore, SnapshotStore
from flowfabric.store.waits import WaitStore, touched_executions, write_waits
from flowfabric.store.workers import WorkerStore

Aggregate = TypeVar("Aggregate")
UserBody = Callable[[Any], Any]
StepRecorder = Callable[[Any], Step]
RecordedResult = tuple[Any, Step]


class _LazyStore(Generic[Aggregate]):
    """A store object of a transaction, created on first use. Most operations need two or three of them."""

    def __init__(self, make: Callable[[Transaction], Aggregate]) -> None:
        self._make = make
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, tx: Transaction, owner: type) -> Aggregate:
        aggregate = tx.__dict__[self._name] = self._make(tx)
        return aggregate


class Transaction:
    """The store objects over one session, and the hints to send after its commit."""

    def __init__(
        self,
        session: Session,
        hot_path: type[HotStatements] = HotStatements,
        optimistic: type[OptimisticStore] = OptimisticStore,
    ) -> None:
        self.session = session
        self.hints = CommitHints()
        self.hot_path = hot_path(session, self.hints)
        self.optimistic_class = optimistic

    executions = _LazyStore(lambda tx: ExecutionStore(tx.session))
    attempts = _LazyStore(lambda tx: AttemptStore(tx.session))
    steps = _LazyStore(lambda tx: StepStore(tx.session))
    events = _LazyStore(lambda tx: EventStore(tx.session, tx.hints))
    lanes = _LazyStore(lambda tx: LaneStore(tx.session))
    routes = _LazyStore(lambda tx: RouteStore(tx.session))
    grants = _LazyStore(lambda tx: GrantStore(tx.session))
    idempotency_keys = _LazyStore(lambda tx: IdempotencyKeyStore(tx.session))
    waits = _LazyStore(lambda tx: WaitStore(tx.session))
    optimistic = _LazyStore(lambda tx: tx.optimistic_class(tx.session, tx.executions, tx.waits, tx.hints))
    snapshots = _LazyStore(lambda tx: SnapshotStore(tx.session))
    signing_keys = _LazyStore(lambda tx: SigningKeyStore(tx.session))
    flows = _LazyStore(lambda tx: FlowStore(tx.session, tx.hints))
    due = _LazyStore(lambda tx: DueStore(tx.session))
    subscribers = _LazyStore(lambda tx: SubscriberStore(tx.session))
    trim = _LazyStore(lambda tx: TrimStore(tx.session))
    purge = _LazyStore(lambda tx: PurgeStore(tx.session))
    workers = _LazyStore(lambda tx: WorkerStore(tx.session))

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

    async def now(self) -> datetime:
        """Return the store's time now. After a lock, it is later than the wait for the lock."""
        return await self.session.now()


class JoinedTransaction(Transaction):
    """A transaction of the caller, which only the caller commits or rolls back."""

    async def notify_on_commit(self, hints: CommitHints) -> None:
        """Send hints when the caller commits. A backend that cannot do this sends none, and listeners poll."""
        raise NotImplementedError


class SharedTransaction(Transaction):
    """A transaction of the engine in which user code takes part."""

    async def run_user_code(self, body: UserBody, record: StepRecorder) -> RecordedResult:
        """Run user code on the connection. Return its result and the step to record for it."""
        raise NotImplementedError
