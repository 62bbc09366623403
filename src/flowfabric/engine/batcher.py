"""Group commit: requests that arrive while a commit is running share the next commit.

A request that arrives while nothing is in flight starts immediately, together with all other requests that arrive in
the same turn of the event loop. While a batch commits, new requests queue. When the batch is committed, up to 128 of
the queued requests run as the next batch. If 64 requests are queued while a batch is still running, they start as a
second batch beside it, so that neither the database nor this process is idle. No request waits for a timer. On an idle
engine a request takes as long as one commit; on a busy engine many requests share a commit. Each caller gets its own
outcome, after the commit that contains the writes of its request.

```text
enqueue ──> waiting ──> run_batch ──> outcome or refusal
                            │ None: repeated or busy
                            ├──> fallback, in separate batches
                            └──> run_one
```

A batch contains each key at most once; a later request for the same key waits for the next batch. A batch never waits
for a row lock. A request that the batch cannot decide runs afterwards, alone or in a batch of the operation's
`fallback`, so that it does not delay the other requests. Exclusive requests never share a batch. A batch that the
database refuses is split in halves until the request that causes the refusal is alone. Reads of running workers are
batched in the same way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from flowfabric.core.errors import FlowFabricError, InvalidRequest, Unavailable
from flowfabric.engine.repeats import LOST_CODES, RepeatingStore
from flowfabric.ops.operation import BatchOperation, BatchRejected
from flowfabric.store.ports import Body, Store

MAX_BATCH = 128
# While the database works on one batch, this process prepares a second batch, unless the second batch is too small to
# be worth a separate commit.
MAX_IN_FLIGHT = 2
SECOND_BATCH_MIN = 64
Request = TypeVar("Request")
Outcome = TypeVar("Outcome")


@dataclass(slots=True)
class _Entry(Generic[Request, Outcome]):
    request: Request
    key: Hashable
    future: asyncio.Future[Outcome]
    stop_at: float | None = None


class Batcher(Generic[Request, Outcome]):
    """The queue of one batch operation in one namespace. It belongs to the event loop that first used it."""

    def __init__(
        self,
        store: Store,
        namespace: str,
        operation: BatchOperation[Request, Outcome],
        retry_for_s: float = 0.0,
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._operation = operation
        self._retry_for_s = retry_for_s
        self._in_flight = 0
        self._is_starting = False
        self._all_busy = False
        self._waiting: list[_Entry[Request, Outcome]] = []
        self._busy_keys: set[Hashable] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._fallbacks: dict[Hashable, Batcher[Request, Outcome]] = {}

    def submit(self, request: Request) -> Awaitable[Outcome]:
        """Start the request. Await it to get its outcome or its refusal."""
        if self._operation.is_exclusive(request):
            return run_one(self._repeating(), self._namespace, self._operation, request)
        if self._operation.use_fallback(request):
            return self._run_fallback(request)
        return self.enqueue(request)

    def enqueue(self, request: Request) -> asyncio.Future[Outcome]:
        """Queue a request that is not exclusive, and return the future of its outcome."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Entry(request, self._operation.key(request), future))
        self._start()
        return future

    @property
    def is_idle(self) -> bool:
        """True if no request is waiting or running."""
        return not self._waiting and not self._tasks and all(other.is_idle for other in self._fallbacks.values())

    def _start(self) -> None:
        if self._can_start():
            self._is_starting = True
            self._spawn(self._commit())

    def _can_start(self) -> bool:
        """Return whether a batch can start now.

        It can if no batch is running, or if one batch is running and enough requests are waiting to justify a second
        commit. If the keys of all waiting requests are busy, no second batch starts until one of these keys is free.
        """
        if self._is_starting or not self._waiting:
            return False
        if self._in_flight == 0:
            return True
        is_enough = len(self._waiting) >= SECOND_BATCH_MIN
        return is_enough and self._in_flight < MAX_IN_FLIGHT and not self._all_busy

    def _free_key(self, key: Hashable) -> None:
        self._busy_keys.discard(key)
        self._all_busy = False

    def _next_batch(self) -> list[_Entry[Request, Outcome]]:
        batch: list[_Entry[Request, Outcome]] = []
        busy: list[_Entry[Request, Outcome]] = []
        scanned = 0
        for entry in self._waiting:
            if len(batch) == MAX_BATCH:
                break
            scanned += 1
            if entry.future.done():
                continue  # The caller was cancelled while its request waited.
            if entry.key in self._busy_keys:
                busy.append(entry)
            else:
                self._busy_keys.add(entry.key)
                batch.append(entry)
        self._waiting = busy + self._waiting[scanned:]
        return batch

    async def _commit(self) -> None:
        # This runs one turn of the event loop after `_start`, so the batch includes all requests of that turn.
        self._is_starting = False
        batch = self._next_batch()
        if not batch:
            self._all_busy = True
            return
        self._in_flight += 1
        self._start()
        try:
            requests = [entry.request for entry in batch]
            outcomes = await try_batch(self._repeating(batch), self._namespace, self._operation, requests)
            if isinstance(outcomes[0], Unavailable):
                self._limit_waiting(outcomes[0])
            for entry, outcome in zip(batch, outcomes, strict=True):
                self._finish(entry, outcome)
        except BaseException as error:
            for entry in batch:
                self._fail(entry, error)
        finally:
            self._in_flight -= 1
            self._start()

    def _finish(self, entry: _Entry[Request, Outcome], outcome: Outcome | FlowFabricError | None) -> None:
        if outcome is None:
            self._spawn(self._retry(entry))
            return
        if isinstance(outcome, FlowFabricError):
            self._fail(entry, outcome)
            return
        self._free_key(entry.key)
        if not entry.future.done():
            entry.future.set_result(outcome)

    async def _retry(self, entry: _Entry[Request, Outcome]) -> None:
        try:
            outcome = await self._run_fallback(entry.request)
            if not entry.future.done():
                entry.future.set_result(outcome)
            self._free_key(entry.key)
        except BaseException as error:
            self._fail(entry, error)
        self._start()

    async def _run_fallback(self, request: Request) -> Outcome:
        fallback = self._operation.fallback
        if fallback is None:
            return await run_one(self._repeating(), self._namespace, self._operation, request)
        partition = fallback.partition(request)
        if partition not in self._fallbacks:
            self._fallbacks = {key: other for key, other in self._fallbacks.items() if not other.is_idle}
            self._fallbacks[partition] = Batcher(self._store, self._namespace, fallback, self._retry_for_s)
        return await self._fallbacks[partition].submit(request)

    def _repeating(self, batch: Sequence[_Entry[Request, Outcome]] = ()) -> RepeatingStore:
        limits = [entry.stop_at for entry in batch if entry.stop_at is not None]
        stop_at = max(limits) if limits and len(limits) == len(batch) else None
        return RepeatingStore(self._store, self._retry_for_s, stop_at=stop_at)

    def _limit_waiting(self, error: Unavailable) -> None:
        """After a batch was repeated without success, limit how long the requests that waited behind it are repeated.

        Otherwise each batch would add the full time to the wait of the requests behind it.
        """
        if error.code in LOST_CODES:
            stop_at = time.monotonic() + self._retry_for_s
            for entry in self._waiting:
                entry.stop_at = stop_at if entry.stop_at is None else entry.stop_at

    def _fail(self, entry: _Entry[Request, Outcome], error: BaseException) -> None:
        self._free_key(entry.key)
        if not entry.future.done():
            entry.future.set_exception(error)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def run_batch(
    store: Store | RepeatingStore,
    namespace: str,
    operation: BatchOperation[Request, Outcome],
    requests: Sequence[Request],
) -> list[Outcome | FlowFabricError]:
    """Return the outcome or the refusal of each request of one caller, in order.

    Requests that may have to wait run last, one after another, so that they do not delay the other requests.
    """
    outcomes: dict[int, Outcome | FlowFabricError | None] = {}
    for indexes in _split_by_key(operation, requests):
        shared = [index for index in indexes if not operation.is_exclusive(requests[index])]
        if shared:
            decided = await try_batch(store, namespace, operation, [requests[index] for index in shared])
            outcomes.update(zip(shared, decided, strict=True))
        undecided = [index for index in shared if outcomes[index] is None]
        if operation.fallback is not None and undecided:
            retried = await run_batch(store, namespace, operation.fallback, [requests[index] for index in undecided])
            outcomes.update(zip(undecided, retried, strict=True))
        for index in indexes:
            if outcomes.get(index) is None:
                single = await _run_one_or_refuse(store, namespace, operation, requests[index])
                outcomes[index] = single
    return [outcome for index in range(len(requests)) if (outcome := outcomes[index]) is not None]


async def try_batch(
    store: Store | RepeatingStore,
    namespace: str,
    operation: BatchOperation[Request, Outcome],
    requests: Sequence[Request],
) -> list[Outcome | FlowFabricError | None]:
    """Run one batch, and return for each request its outcome, its refusal, or None if it is undecided.

    A batch that the database refuses is split in halves until the request that causes the refusal is alone. If the
    store is unavailable, return a copy of that error for each request.
    """
    try:
        outcomes = [*await _runner(store, operation)(lambda tx: operation.run_batch(tx, namespace, requests))]
    except (BatchRejected, InvalidRequest):
        pass
    except Unavailable as error:
        if error.code != "storage_error":
            return [_copy_error(error) for _ in requests]
    else:
        operation.paths[operation.batch_path] += sum(1 for outcome in outcomes if outcome is not None)
        return outcomes
    if len(requests) == 1:
        return [None]
    half = len(requests) // 2
    first = await try_batch(store, namespace, operation, requests[:half])
    return first + await try_batch(store, namespace, operation, requests[half:])


async def run_one(
    store: Store | RepeatingStore, namespace: str, operation: BatchOperation[Request, Outcome], request: Request
) -> Outcome:
    """Run one request alone, and return its outcome or raise its refusal.

    Unlike a batch, the request waits for row locks, unless it only reads or renews a lease.
    """
    operation.paths[operation.single_path] += 1
    run = store.read if operation.read_only else _urgent(store.run) if operation.is_urgent else store.run
    outcome: Outcome = await run(lambda tx: operation.run_one(tx, namespace, request))
    return outcome


def _runner(
    store: Store | RepeatingStore, operation: BatchOperation[Any, Any]
) -> Callable[[Body[Any]], Coroutine[Any, Any, Any]]:
    if operation.read_only:
        return store.read_single
    run = store.run_single if operation.single_statement else store.run
    return _urgent(run) if operation.is_urgent else run


def _urgent(run: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[[Body[Any]], Coroutine[Any, Any, Any]]:
    return partial(run, is_urgent=True)


async def _run_one_or_refuse(
    store: Store | RepeatingStore, namespace: str, operation: BatchOperation[Request, Outcome], request: Request
) -> Outcome | FlowFabricError:
    try:
        outcome: Outcome | FlowFabricError = await run_one(store, namespace, operation, request)
    except FlowFabricError as error:
        outcome = error
    return outcome


def _copy_error(error: Unavailable) -> Unavailable:
    """Return a copy of the error for one caller.

    Callers cannot share one error, because raising it changes its traceback.
    """
    copy = Unavailable(error.code, error.message, **error.fields)
    copy.__cause__ = error
    return copy


def _split_by_key(operation: BatchOperation[Request, Outcome], requests: Sequence[Request]) -> list[list[int]]:
    """Divide the requests into batches that contain each key at most once, and return their indexes by batch."""
    keys = [operation.key(request) for request in requests]
    if len(set(keys)) == len(keys):
        return [list(range(len(requests)))]
    batches: list[list[int]] = []
    counts: dict[Hashable, int] = {}
    for index, key in enumerate(keys):
        number = counts.get(key, 0)
        counts[key] = number + 1
        if number == len(batches):
            batches.append([])
        batches[number].append(index)
    return batches
