"""Running a body in a transaction on a pooled connection; conflicts between transactions are retried inside."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from flowfabric.backends.postgres.errors import is_conflict, translated
from flowfabric.core.errors import Unavailable

if TYPE_CHECKING:
    import asyncpg

_TRIES = 10
_FIRST_BACKOFF_S = 0.005
_LONGEST_BACKOFF_S = 0.1

Answer = TypeVar("Answer")
Transaction = TypeVar("Transaction")


class Lender(Protocol):
    """What is needed of a pool: ours, or the driver's."""

    def acquire(self, *, timeout: float) -> AbstractAsyncContextManager[Any]:
        """A connection for the time of a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a transaction is begun, and how long a connection is waited for. Behind a pooler the session is shared with
    others, so settings last for the transaction only: those in `locally`."""

    wait_s: float
    isolation: Literal["read_committed", "repeatable_read"] = "read_committed"
    readonly: bool = False
    locally: str = ""


async def run_in_transaction(
    pool: Lender, manner: Manner, make: Callable[[asyncpg.Connection[Any]], Transaction],
    body: Callable[[Transaction], Coroutine[Any, Any, Answer]],
) -> tuple[Answer, Transaction]:  # fmt: skip
    """The body's answer, and the transaction that was committed with it."""
    for tries in range(_TRIES):
        if tries:
            await asyncio.sleep(random.uniform(0, longest_backoff_s(tries)))
        async with Borrowed(pool, manner.wait_s) as connection:
            try:
                transaction = make(connection)
                async with connection.transaction(isolation=manner.isolation, readonly=manner.readonly):
                    if manner.locally:
                        await connection.execute(manner.locally)
                    answer = await body(transaction)
            except Exception as error:
                if not is_conflict(error):
                    raise
            else:
                return answer, transaction
    raise Unavailable("retry_exhausted", f"the transaction lost {_TRIES} conflicts in a row; repeat the call")


class Borrowed:
    """A connection of the pool for the time of a block; the driver's errors leave it translated, conflicts as they
    are."""

    __slots__ = ("_lent",)

    def __init__(self, pool: Lender, wait_s: float) -> None:
        self._lent = pool.acquire(timeout=wait_s)

    async def __aenter__(self) -> asyncpg.Connection[Any]:
        try:
            connection: asyncpg.Connection[Any] = await self._lent.__aenter__()
        except Exception as error:
            _raise_translated(error)
            raise
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._lent.__aexit__(kind, error, traceback)
        except Exception as failed:
            _raise_translated(failed)
            raise
        if isinstance(error, Exception):
            _raise_translated(error)


def _raise_translated(error: Exception) -> None:
    ours = translated(error)
    if ours is not error and not is_conflict(error):
        raise ours from error


def longest_backoff_s(tries: int) -> float:
    """How long a transaction waits at most before it runs again, after so many conflicts."""
    return min(_FIRST_BACKOFF_S * 2.0**tries, _LONGEST_BACKOFF_S)
