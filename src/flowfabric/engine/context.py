"""The context that all call groups of an engine share; they run every operation through it (`Context.call`)."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar
from uuid import UUID

from flowfabric.core import validation
from flowfabric.core.errors import FlowFabricError
from flowfabric.core.executions.outcomes import Accepted, DuplicateSignal, Lease, Renewed, Satisfied, Suspended
from flowfabric.core.executions.records import Fence
from flowfabric.core.executions.requests import AuditInfo
from flowfabric.core.flows.outcomes import ChildrenReady
from flowfabric.core.ids import IdMinter
from flowfabric.core.waits.suspend import Suspend
from flowfabric.engine.batcher import Batcher, run_batch
from flowfabric.engine.claim_namespaces import ClaimNamespaces
from flowfabric.engine.lease_locks import LeaseLocks
from flowfabric.engine.repeats import RepeatingStore
from flowfabric.notify.hub import NotifyHub
from flowfabric.ops.keys import KeySource
from flowfabric.ops.operation import BatchOperation, Operation, SingleOperation
from flowfabric.ops.waits.deliver_signal import Delivery
from flowfabric.reconcilers.loop import Reconcilers
from flowfabric.reconcilers.vacuum import Vacuum
from flowfabric.store.ports import Store

Request = TypeVar("Request")
Outcome = TypeVar("Outcome")
_MAX_BATCHERS = 100
_MAX_LINKED = 4_096
_UNKNOWN = object()


class Fenced(Protocol):
    """A request of the worker that holds a lease."""

    @property
    def fence(self) -> Fence:
        """The lease."""


LastRequest = TypeVar("LastRequest", bound=Fenced)


class Observer(Protocol):
    """A callback around every call of an operation, for spans, metrics, audit and authorization.

    The callback returns a context manager. `Context` enters the context manager before the operation runs and exits it
    afterwards. If the operation raised an exception, `__exit__` receives it. To refuse a call, raise from `__enter__`.
    If the caller passes many requests in one call, `request` is the list of them.
    """

    def __call__(
        self, operation: Operation[Any, Any], namespace: str, request: object
    ) -> AbstractContextManager[object]: ...


@dataclass(frozen=True, slots=True)
class WaitOperations:
    """The two operations on waits that need the engine's signing keys."""

    suspend: BatchOperation[Suspend, Suspended | Satisfied]
    deliver: BatchOperation[Delivery, Accepted | DuplicateSignal]


@dataclass(frozen=True, slots=True)
class Context:
    """The state that all calls of an engine share; `for_namespace` replaces only the namespace.

    With `claim_namespaces`, claims cover these. A call with a fence then acts in the namespace of the lease.

    Every call of an engine goes through `call`, `call_nowait`, `call_many`, `call_within` or `call_within_sync`. With
    an `observer`, each call runs inside the observer's context manager. Without an observer, the only extra cost is one
    comparison per call.
    """

    store: Store
    namespace: str
    reconcilers: Reconcilers
    vacuum: Vacuum
    wakeups: NotifyHub
    keys: KeySource
    waits: WaitOperations
    renew: BatchOperation[Fence, Renewed]
    ids: IdMinter = field(default_factory=lambda: IdMinter(_now_ms, random.Random().getrandbits))
    batchers: dict[tuple[int, str], Batcher[Any, Any]] = field(default_factory=dict)
    linked: dict[UUID, None] = field(default_factory=dict)
    lease_locks: LeaseLocks = field(default_factory=LeaseLocks)
    observer: Observer | None = None
    retry_for_s: float = 0.0
    claim_namespaces: ClaimNamespaces | None = None

    def call(self, operation: Operation[Request, Outcome], request: Request) -> Awaitable[Outcome]:
        """Start one request of an operation. Await the call to get its outcome or its refusal.

        A request of a batch operation shares its commit with other requests that run at the same time.
        """
        if self.claim_namespaces is not None and (other := self.for_lease(request)) is not self:
            return other.call(operation, request)
        if self.observer is not None:
            return self._call_observed(operation, request)
        # The other order would be slow, because BatchOperation is an abstract class.
        if isinstance(operation, SingleOperation):
            return self._run(operation, request)
        assert isinstance(operation, BatchOperation), "there are two kinds of operations"
        return self._batcher(operation).submit(request)

    async def _call_observed(self, operation: Operation[Request, Outcome], request: Request) -> Outcome:
        assert self.observer is not None, "the caller checks this"
        with self.observer(operation, self.namespace, request):
            return await self._unobserved().call(operation, request)

    async def call_last(self, operation: Operation[LastRequest, Outcome], request: LastRequest) -> Outcome:
        """Run a request that gives up its lease, and return its outcome or raise its refusal."""
        lease_id = request.fence.lease_id
        is_linked = self.forget_linked(lease_id)
        outcome = await self.call(operation, request)
        if is_linked and isinstance(outcome, Satisfied | ChildrenReady):
            self.note_linked(lease_id)  # The execution need not wait, so the lease was kept.
        return outcome

    def call_nowait(self, operation: BatchOperation[Request, Outcome], request: Request) -> asyncio.Future[Outcome]:
        """Start a request that is not exclusive, and return the future of its outcome."""
        if self.claim_namespaces is not None and (other := self.for_lease(request)) is not self:
            return other.call_nowait(operation, request)
        if self.observer is not None:
            return asyncio.ensure_future(self.call(operation, request))
        return self._batcher(operation).enqueue(request)

    async def call_many(
        self, operation: BatchOperation[Request, Outcome], requests: Sequence[Request]
    ) -> list[Outcome | FlowFabricError]:
        """Run many requests of one caller, and return the outcome or the refusal of each, in order."""
        if self.claim_namespaces is not None:
            return await self._call_each_namespace(operation, requests)
        if self.observer is not None:
            with self.observer(operation, self.namespace, requests):
                return await self._unobserved().call_many(operation, requests)
        return await run_batch(RepeatingStore(self.store, self.retry_for_s), self.namespace, operation, requests)

    async def _call_each_namespace(
        self, operation: BatchOperation[Request, Outcome], requests: Sequence[Request]
    ) -> list[Outcome | FlowFabricError]:
        """Run the requests in the namespaces of their leases, as one batch for each namespace."""
        places: dict[str, list[int]] = {}
        for place, request in enumerate(requests):
            places.setdefault(self.for_lease(request).namespace, []).append(place)
        batches = (
            self.for_namespace(namespace).call_many(operation, [requests[place] for place in batch])
            for namespace, batch in places.items()
        )
        outcomes: dict[int, Outcome | FlowFabricError] = {}
        for batch, replies in zip(places.values(), await asyncio.gather(*batches), strict=True):
            outcomes |= zip(batch, replies, strict=True)
        return [outcomes[place] for place in range(len(requests))]

    async def call_within(
        self, connection: object, operation: SingleOperation[Request, Outcome], request: Request, *, savepoint: bool
    ) -> Outcome:
        """Run one request in the open transaction of a caller's asynchronous connection."""
        if self.observer is not None:
            with self.observer(operation, self.namespace, request):
                return await self._unobserved().call_within(connection, operation, request, savepoint=savepoint)
        namespace = self.namespace
        return await self.store.run_within(
            connection, lambda tx: operation.run(tx, namespace, request), savepoint=savepoint
        )

    def call_within_sync(
        self, connection: object, operation: SingleOperation[Request, Outcome], request: Request, *, savepoint: bool
    ) -> Outcome:
        """Run one request in the open transaction of a caller's synchronous connection, in the caller's thread."""
        if self.observer is not None:
            with self.observer(operation, self.namespace, request):
                return self._unobserved().call_within_sync(connection, operation, request, savepoint=savepoint)
        namespace = self.namespace
        return self.store.run_within_sync(
            connection, lambda tx: operation.run(tx, namespace, request), savepoint=savepoint
        )

    async def _run(self, operation: SingleOperation[Request, Outcome], request: Request) -> Outcome:
        namespace = self.namespace
        store = RepeatingStore(self.store, self.retry_for_s, only_unsent=not operation.can_repeat(request))
        if operation.runs_user_code:
            return await store.run_shared(lambda tx: operation.run(tx, namespace, request))
        if operation.read_only:
            run = store.read_single if operation.single_statement else store.read
        else:
            run = store.run_single if operation.single_statement else store.run
        return await run(lambda tx: operation.run(tx, namespace, request))

    def _batcher(self, operation: BatchOperation[Request, Outcome]) -> Batcher[Request, Outcome]:
        key = (id(operation), self.namespace)
        batcher = self.batchers.get(key)
        if batcher is None:
            if len(self.batchers) >= _MAX_BATCHERS:
                self._drop_idle_batchers()
            batcher = self.batchers[key] = Batcher(self.store, self.namespace, operation, self.retry_for_s)
        return batcher

    def _drop_idle_batchers(self) -> None:
        for key in [key for key, batcher in self.batchers.items() if batcher.is_idle]:
            del self.batchers[key]

    def _unobserved(self) -> Context:
        return replace(self, observer=None)

    def note_leases(self, leases: Sequence[Lease]) -> None:
        """Remember which leases are on linked executions, so that `complete` takes the right path immediately.

        This is only a hint: if a lease was not remembered, `complete` still works, but takes the longer path.
        """
        for lease in leases:
            if not lease.is_standalone:
                self.note_linked(lease.fence.lease_id)

    def note_linked(self, lease_id: UUID) -> None:
        """Remember a lease on a linked execution. If there are too many such leases, forget the oldest."""
        self.linked[lease_id] = None
        if len(self.linked) > _MAX_LINKED:
            del self.linked[next(iter(self.linked))]

    def forget_linked(self, lease_id: UUID) -> bool:
        """Forget a lease that has ended or is about to end. Return whether its execution is known to be linked."""
        return self.linked.pop(lease_id, _UNKNOWN) is None

    def for_namespace(self, namespace: str) -> Context:
        """Return the same context for another namespace, from which alone it claims."""
        return replace(self, namespace=validation.name(namespace, "namespace"), claim_namespaces=None)

    def for_lease(self, request: object) -> Context:
        """Return the context for the namespace of a fence, or of the request's fence, if this engine claims there."""
        fence = request if isinstance(request, Fence) else getattr(request, "fence", None)
        namespace = None if fence is None else fence.namespace
        if namespace is None or namespace == self.namespace:
            return self
        is_claimed = self.claim_namespaces is not None and namespace in self.claim_namespaces.names
        return self.for_namespace(namespace) if is_claimed else self

    @property
    def leased_namespaces(self) -> tuple[str, ...]:
        """The namespaces in which this engine may have leases."""
        return (self.namespace, *(() if self.claim_namespaces is None else self.claim_namespaces.names))

    def new_lease_id(self) -> UUID:
        """Return an id of 128 random bits."""
        return UUID(bytes=os.urandom(16))

    def lease_bits(self, number: int) -> bytes:
        """Return 128 random bits for each of `number` leases.

        The bytes are not converted to ids here, because most claims use only a few of them.
        """
        return os.urandom(16 * number)

    def chance(self) -> float:
        """Return a random number in [0, 1) for jitter."""
        return random.random()

    def due_at(self, due: datetime | None) -> None:
        """Notify the reconcilers that work becomes due at this time. None means that only the store knows the time."""
        self.wakeups.due_at(due)

    def due_in(self, delay: timedelta) -> None:
        """Notify the reconcilers that work becomes due after `delay`."""
        self.wakeups.due_at(self.wakeups.store_now() + delay)


def audit_info(principal: object, reason: object) -> AuditInfo:
    """Validate the principal and the reason of an action, and return them as one record."""
    return AuditInfo(principal=validation.name(principal, "principal"), reason=validation.text(reason, "reason"))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
