"""Group commit: callers who come while a commit is under way share the next one.

An item that comes when nothing is in flight goes at once, with whatever comes in the same turn of the loop. While a
batch is being committed, items gather; when it is done, up to 128 of them go together in one statement. If 64 gather
before that, they go beside it, so that the database and we both have something to do. Nobody waits for a timer: idle,
the latency is that of one commit; under load, commits are shared. Every caller is answered for itself, after the commit
that holds its row.

The rules of a batch: it holds every execution at most once, a later item for the same one waits for its turn. It never
waits for a row lock: what it left out is looked at alone afterwards, or with those that wait for the same, and holds up
nobody else. Items that may not share a batch run by themselves. A batch that the database refuses is split in halves
until the bad item is alone. What workers read while they go on gathers in the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from uuid import UUID

from flowfabric.core.errors import FlowFabricError, InvalidRequest, Unavailable
from flowfabric.ops.hot import HotOperation, NotTogether
from flowfabric.store.transaction import Body, Store

MOST_TOGETHER = 128
# While the database works on one batch we prepare and read the other. Small ones do not pay for a commit of their own.
_ABREAST = 2
ENOUGH_FOR_ANOTHER = 64
Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


@dataclass(slots=True)
class _Waiting(Generic[Item, Outcome]):
    item: Item
    subject: UUID
    future: asyncio.Future[Outcome]


class Batcher(Generic[Item, Outcome]):
    """Gathers the items of one hot operation in one namespace. It belongs to the event loop that first used it."""

    def __init__(self, store: Store, namespace: str, operation: HotOperation[Item, Outcome]) -> None:
        self._store = store
        self._namespace = namespace
        self._operation = operation
        self._committing = 0
        self._is_starting = False
        self._all_busy = False
        self._waiting: list[_Waiting[Item, Outcome]] = []
        self._subjects: set[UUID] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._others: dict[Hashable, Batcher[Item, Outcome]] = {}

    async def submit(self, item: Item) -> Outcome:
        """The outcome of the item; its refusal is raised."""
        if self._operation.solitary(item):
            return await run_alone(self._store, self._namespace, self._operation, item)
        if self._operation.for_others(item):
            return await self._other_way(item)
        return await self.enter(item)

    def enter(self, item: Item) -> asyncio.Future[Outcome]:
        """The outcome to come of an item that is not solitary."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(item, self._operation.subject(item), future))
        self._start()
        return future

    @property
    def is_idle(self) -> bool:
        """True when nothing waits and nothing is under way."""
        return not self._waiting and not self._tasks and all(other.is_idle for other in self._others.values())

    def _start(self) -> None:
        if self._may_start():
            self._is_starting = True
            self._spawn(self._commit())

    def _may_start(self) -> bool:
        """True if nothing is in flight, or so much waits that it pays for a second commit beside the first. If all that
        waits is for executions that are busy, nobody looks again before one of them is free."""
        if self._is_starting or not self._waiting:
            return False
        if self._committing == 0:
            return True
        is_enough = len(self._waiting) >= ENOUGH_FOR_ANOTHER
        return is_enough and self._committing < _ABREAST and not self._all_busy

    def _free(self, subject: UUID) -> None:
        self._subjects.discard(subject)
        self._all_busy = False

    def _next_batch(self) -> list[_Waiting[Item, Outcome]]:
        batch: list[_Waiting[Item, Outcome]] = []
        busy: list[_Waiting[Item, Outcome]] = []
        looked_at = 0
        for entry in self._waiting:
            if len(batch) == MOST_TOGETHER:
                break
            looked_at += 1
            if entry.future.done():
                continue  # Its caller was cancelled while it waited.
            if entry.subject in self._subjects:
                busy.append(entry)
            else:
                self._subjects.add(entry.subject)
                batch.append(entry)
        self._waiting = busy + self._waiting[looked_at:]
        return batch

    async def _commit(self) -> None:
        # What comes in the same turn of the loop is in the batch too.
        self._is_starting = False
        batch = self._next_batch()
        if not batch:
            self._all_busy = True
            return
        self._committing += 1
        self._start()
        try:
            answers = await run_together(self._store, self._namespace, self._operation, [entry.item for entry in batch])
            for entry, answer in zip(batch, answers, strict=True):
                self._settle(entry, answer)
        except BaseException as error:
            for entry in batch:
                self._finish(entry, error)
        finally:
            self._committing -= 1
            self._start()

    def _settle(self, entry: _Waiting[Item, Outcome], answer: Outcome | FlowFabricError | None) -> None:
        if answer is None:
            self._spawn(self._look_alone(entry))
            return
        if isinstance(answer, FlowFabricError):
            self._finish(entry, answer)
            return
        self._free(entry.subject)
        if not entry.future.done():
            entry.future.set_result(answer)

    async def _look_alone(self, entry: _Waiting[Item, Outcome]) -> None:
        try:
            outcome = await self._other_way(entry.item)
            if not entry.future.done():
                entry.future.set_result(outcome)
            self._free(entry.subject)
        except BaseException as error:
            self._finish(entry, error)
        self._start()

    async def _other_way(self, item: Item) -> Outcome:
        others = self._operation.others
        if others is None:
            return await run_alone(self._store, self._namespace, self._operation, item)
        key = others.apart(item)
        if key not in self._others:
            self._others = {key: other for key, other in self._others.items() if not other.is_idle}
            self._others[key] = Batcher(self._store, self._namespace, others)
        return await self._others[key].submit(item)

    def _finish(self, entry: _Waiting[Item, Outcome], error: BaseException) -> None:
        self._free(entry.subject)
        if not entry.future.done():
            entry.future.set_exception(error)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def run_batch(
    store: Store, namespace: str, operation: HotOperation[Item, Outcome], items: Sequence[Item]
) -> list[Outcome | FlowFabricError]:
    """The outcome or the refusal of every item that a caller brings together, in their order. Those that may have to
    wait for somebody hold up nobody: they run by themselves, one after another, when the others are stored."""
    answers: dict[int, Outcome | FlowFabricError | None] = {}
    for places in _rounds(operation, items):
        shared = [place for place in places if not operation.solitary(items[place])]
        if shared:
            together = await run_together(store, namespace, operation, [items[place] for place in shared])
            answers.update(zip(shared, together, strict=True))
        left = [place for place in shared if answers[place] is None]
        if operation.others is not None and left:
            found = await run_batch(store, namespace, operation.others, [items[place] for place in left])
            answers.update(zip(left, found, strict=True))
        for place in places:
            if answers.get(place) is None:
                alone = await _answer_alone(store, namespace, operation, items[place])
                answers[place] = alone
    return [answer for place in range(len(items)) if (answer := answers[place]) is not None]


async def run_together(
    store: Store, namespace: str, operation: HotOperation[Item, Outcome], items: Sequence[Item]
) -> list[Outcome | FlowFabricError | None]:
    """What one statement could decide, and None for the rest. A batch that the database refuses is split until the bad
    item is alone; when the store does not answer, that is the answer of every item it was asked about."""
    try:
        return [*await _way(store, operation)(lambda tx: operation.together(tx, namespace, items))]
    except (NotTogether, InvalidRequest):
        pass
    except Unavailable as error:
        if error.code != "storage_error":
            return [_for_one(error) for _ in items]
    if len(items) == 1:
        return [None]
    half = len(items) // 2
    first = await run_together(store, namespace, operation, items[:half])
    return first + await run_together(store, namespace, operation, items[half:])


async def run_alone(store: Store, namespace: str, operation: HotOperation[Item, Outcome], item: Item) -> Outcome:
    """The outcome of one item, locked and waited for unless it is only read; its refusal is raised."""
    run = store.read if operation.reads else store.run
    return await run(lambda tx: operation.alone(tx, namespace, item))


def _way(store: Store, operation: HotOperation[Any, Any]) -> Callable[[Body[Any]], Coroutine[Any, Any, Any]]:
    if operation.reads:
        return store.read_single
    return store.run_single if operation.one_statement else store.run


async def _answer_alone(
    store: Store, namespace: str, operation: HotOperation[Item, Outcome], item: Item
) -> Outcome | FlowFabricError:
    try:
        outcome: Outcome | FlowFabricError = await run_alone(store, namespace, operation, item)
    except FlowFabricError as error:
        outcome = error
    return outcome


def _for_one(error: Unavailable) -> Unavailable:
    """The same error for one caller alone, since callers add to the traceback of what they get."""
    own = Unavailable(error.code, error.message, **error.fields)
    own.__cause__ = error
    return own


def _rounds(operation: HotOperation[Item, Outcome], items: Sequence[Item]) -> list[list[int]]:
    """The places of the items in batches that hold every execution at most once."""
    subjects = [operation.subject(item) for item in items]
    if len(set(subjects)) == len(subjects):
        return [list(range(len(items)))]
    rounds: list[list[int]] = []
    seen: dict[UUID, int] = {}
    for place, subject in enumerate(subjects):
        turn = seen.get(subject, 0)
        seen[subject] = turn + 1
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append(place)
    return rounds
