"""Running hot operations: the batch by one statement, then each item that it left out by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from flowfabric.core.errors import FlowFabricError, InvalidRequest, Unavailable
from flowfabric.ops.hot import HotOperation, NotTogether
from flowfabric.store.transaction import Store

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


async def run_one(store: Store, namespace: str, operation: HotOperation[Item, Outcome], item: Item) -> Outcome:
    """The outcome of a batch of one; its refusal is raised."""
    [answer] = await run_batch(store, namespace, operation, [item])
    if isinstance(answer, FlowFabricError):
        raise answer
    return answer


async def run_batch(
    store: Store, namespace: str, operation: HotOperation[Item, Outcome], items: Sequence[Item]
) -> list[Outcome | FlowFabricError]:
    """The outcome or the refusal of every item, in their order. One that is refused does not touch its neighbours."""
    answers: dict[int, Outcome | FlowFabricError] = {}
    for places in _rounds(operation, items):
        together = await _together(store, namespace, operation, [items[place] for place in places])
        for place, answer in zip(places, together, strict=True):
            if answer is not None:
                answers[place] = answer
                continue
            try:
                outcome = await _alone(store, namespace, operation, items[place])
                answers[place] = outcome
            except FlowFabricError as error:
                answers[place] = error
    return [answers[place] for place in range(len(items))]


def _rounds(operation: HotOperation[Item, Outcome], items: Sequence[Item]) -> list[list[int]]:
    """The places of the items in batches that hold every execution at most once."""
    rounds: list[list[int]] = []
    seen: dict[object, int] = {}
    for place, item in enumerate(items):
        subject = operation.subject(item)
        turn = seen.get(subject, 0)
        seen[subject] = turn + 1
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append(place)
    return rounds


async def _together(
    store: Store, namespace: str, operation: HotOperation[Item, Outcome], items: Sequence[Item]
) -> list[Outcome | None]:
    run = store.run_single if operation.one_statement else store.run
    try:
        return await run(lambda tx: operation.together(tx, namespace, items))
    except (NotTogether, InvalidRequest):
        return [None] * len(items)
    except Unavailable as error:
        if error.code != "storage_error":
            raise
        return [None] * len(items)


async def _alone(store: Store, namespace: str, operation: HotOperation[Item, Outcome], item: Item) -> Outcome:
    return await store.run(lambda tx: operation.alone(tx, namespace, item))
