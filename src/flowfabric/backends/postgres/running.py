"""Running a body in a transaction on a pooled connection; conflicts between transactions are retried inside."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from flowfabric.backends.postgres.errors import is_conflict, translated
from flowfabric.core.errors import Unavailable

if TYPE_CHECKING:
    from asyncpg.pool import Pool, PoolConnectionProxy

_TRIES = 10
_FIRST_BACKOFF_S = 0.005
_LONGEST_BACKOFF_S = 0.1

Answer = TypeVar("Answer")
Transaction = TypeVar("Transaction")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a transaction is begun, and how long a connection is waited for. Behind a pooler the session is shared with
    others, so settings last for the transaction only: those in `locally`."""

    wait_s: float
    isolation: Literal["read_committed", "repeatable_read"] = "read_committed"
    readonly: bool = False
    locally: str = ""


async def run_in_transaction(
    pool: Pool[Any], manner: Manner, make: Callable[[PoolConnectionProxy[Any]], Transaction],
    body: Callable[[Transaction], Coroutine[Any, Any, Answer]],
) -> tuple[Answer, Transaction]:  # fmt: skip
    """The body's answer, and the transaction that was committed with it."""
    for tries in range(_TRIES):
        if tries:
            await asyncio.sleep(random.uniform(0, longest_backoff_s(tries)))
        async with borrowed(pool, manner.wait_s) as connection:
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


@asynccontextmanager
async def borrowed(pool: Pool[Any], wait_s: float) -> AsyncIterator[PoolConnectionProxy[Any]]:
    """A connection of the pool; the driver's errors leave it translated, conflicts as they are."""
    try:
        async with pool.acquire(timeout=wait_s) as connection:
            yield connection
    except Exception as error:
        ours = translated(error)
        if is_conflict(error) or ours is error:
            raise
        raise ours from error


def longest_backoff_s(tries: int) -> float:
    """How long a transaction waits at most before it runs again, after so many conflicts."""
    return min(_FIRST_BACKOFF_S * 2.0**tries, _LONGEST_BACKOFF_S)
