"""The shape of an operation: a unit of work that runs inside one transaction.

```text
Operation                the argument of Context.call
├── SingleOperation      run        one request per transaction; made by @operation()
└── BatchOperation       run_batch  many requests, usually by one guarded statement
                         run_one    one request: lock, decide, write or explain
```

An operation never opens a transaction, and awaits nothing but the `tx` that it is given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import Any, Generic, TypeVar

from flowfabric.core.errors import FlowFabricError
from flowfabric.store.transaction import Transaction

Request = TypeVar("Request")
Outcome_co = TypeVar("Outcome_co", covariant=True)
Run = Callable[[Any, str, Request], Coroutine[Any, Any, Outcome_co]]
CanRepeat = bool | Callable[[Request], bool]


class BatchRejected(Exception):
    """Raised by `run_batch` if one request makes the whole batch fail. The batcher rolls back and splits the batch."""


class Operation(Generic[Request, Outcome_co]):
    """A named unit of work, with the kind of transaction that it needs.

    `read_only` operations write and lock nothing. `single_statement` operations write with one statement, so they need
    no explicit transaction. `paths` counts how often each way through the operation was taken in this process. The
    counts are only for people to read: with concurrent threads, a count may be too low.
    """

    name: str
    read_only = False
    single_statement = False
    paths: Counter[str]

    def can_repeat(self, request: Request) -> bool:
        """Return True if the engine may repeat the request after a lost reply, because a repeat changes nothing."""
        return True


class SingleOperation(Operation[Request, Outcome_co]):
    """An operation that handles one request per transaction."""

    def __init__(
        self,
        run: Run[Request, Outcome_co],
        *,
        read_only: bool,
        single_statement: bool,
        runs_user_code: bool,
        can_repeat: CanRepeat[Request],
    ) -> None:
        self.name = getattr(run, "__name__", type(run).__name__)
        self.__doc__ = run.__doc__
        self.run = run
        self.read_only = read_only
        self.single_statement = single_statement
        self.runs_user_code = runs_user_code
        self.paths = Counter()
        self._can_repeat = can_repeat

    def can_repeat(self, request: Request) -> bool:
        return self._can_repeat if isinstance(self._can_repeat, bool) else self._can_repeat(request)


def operation(
    *,
    read_only: bool = False,
    single_statement: bool = False,
    runs_user_code: bool = False,
    can_repeat: CanRepeat[Any] = True,
) -> Callable[[Run[Request, Outcome_co]], SingleOperation[Request, Outcome_co]]:
    """Turn an async function of `(tx, namespace, request)` into an operation of the same name.

    An operation that `runs_user_code` gets a `SharedTransaction`. `can_repeat` says whether a repeat after a lost reply
    is safe, for every request or by a function of the request.
    """
    return lambda run: SingleOperation(
        run,
        read_only=read_only,
        single_statement=single_statement,
        runs_user_code=runs_user_code,
        can_repeat=can_repeat,
    )


class BatchOperation(Operation[Request, Outcome_co], ABC):
    """An operation whose requests share transactions; the batcher collects them.

    If `run_batch` returns None for a request, the request goes to a batch of the `fallback`. Without a fallback, it
    goes to `run_one`. An operation and its fallbacks share one counter of paths. A store with one writer runs urgent
    operations before all others.
    """

    single_statement = True
    batch_path = "batch"
    single_path = "locked_single"
    is_urgent = False

    def __init__(self, fallback: BatchOperation[Request, Outcome_co] | None = None) -> None:
        self.fallback = fallback
        self.paths = Counter() if fallback is None else fallback.paths

    @abstractmethod
    def key(self, request: Request) -> Hashable:
        """Return the key that a batch may contain only once, such as the id of the execution.

        The hot operations return the integer of the id, whose hash needs no Python call.
        """

    @abstractmethod
    async def run_batch(
        self, tx: Transaction, namespace: str, requests: Sequence[Request]
    ) -> Sequence[Outcome_co | FlowFabricError | None]:
        """Return, in order, an outcome or a refusal for each request, or None if `run_one` must decide the request."""

    @abstractmethod
    async def run_one(self, tx: Transaction, namespace: str, request: Request) -> Outcome_co:
        """Lock and wait for what one request needs, and return its outcome or raise its refusal."""

    def is_exclusive(self, request: Request) -> bool:
        """Return True if the request must not share a batch with requests of other callers."""
        return False

    def use_fallback(self, request: Request) -> bool:
        """Return True if the request goes to the fallback without trying `run_batch` first."""
        return False

    def partition(self, request: Request) -> Hashable:
        """Return the partition of a request. The fallback never batches requests of different partitions together.

        A batch that waits for a lock then delays only requests that need the same lock.
        """
        return None
