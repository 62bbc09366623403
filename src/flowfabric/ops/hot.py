"""The shape of a hot operation: one statement over a batch, and the careful way for each item that it left out."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from uuid import UUID

from flowfabric.store.transaction import Transaction

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class NotTogether(Exception):
    """Raised by `together` when some item spoils the batch: nothing of it is kept, and each item is looked at alone."""


@dataclass(frozen=True, slots=True)
class HotOperation(Generic[Item, Outcome]):
    """`together` answers what could be decided at once, refusals too, and None for the rest: repeated or busy. `alone`
    locks that one item, waits for it, and answers or explains. `subject` is what a batch may hold only once, and a
    `solitary` item never shares a batch with those of other callers. With `one_statement` all that `together` writes is
    one statement, so it needs no transaction around it; one that `reads` writes and locks nothing. `others` takes what
    `together` has left out, in batches of its own, and at once what is for it from the start; without it each is looked
    at alone. Items that are `apart` never share a batch: one that waits for a lock holds up those only that want the
    same."""

    together: Callable[[Transaction, str, Sequence[Item]], Coroutine[Any, Any, list[Any]]]
    alone: Callable[[Transaction, str, Item], Coroutine[Any, Any, Outcome]]
    subject: Callable[[Item], UUID]
    one_statement: bool = True
    reads: bool = False
    solitary: Callable[[Item], bool] = lambda item: False
    others: HotOperation[Item, Outcome] | None = None
    for_others: Callable[[Item], bool] = lambda item: False
    apart: Callable[[Item], Hashable] = lambda item: None
