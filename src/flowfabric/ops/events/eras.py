"""Operations on eras: notice that the store went back to an earlier state, and begin the next era.

```text
state of the event log ──┬── is where it was last used ──> nothing to do
                         ├── never used ──> note where it is
                         └── another timeline or table, or behind a position that was read ──> begin an era
```
"""

from __future__ import annotations

from flowfabric.core.events.cursor import FIRST, CursorScope, Position
from flowfabric.core.events.eras import has_gone_back, start_of_era, trimmed_in_era
from flowfabric.core.events.subscribers import OutboxState
from flowfabric.ops.operation import operation
from flowfabric.store.transaction import Transaction


@operation(read_only=True, single_statement=True)
async def read_era(tx: Transaction, namespace: str, _: None) -> tuple[int, bool]:
    """Return the era, and False if `renew_era` must be called before the era counts."""
    return await tx.eras.read()


@operation()
async def renew_era(tx: Transaction, namespace: str, _: None) -> int:
    """Begin a new era if the store went back to an earlier state, and return the era."""
    return await current_era(tx)


async def current_era(tx: Transaction) -> int:
    """Return the era of the store. Begin a new era first if the store went back to an earlier state."""
    era, is_current = await tx.eras.read()
    return era if is_current else (await current_state(tx)).era


async def current_state(tx: Transaction, era: int = 0, position: Position = FIRST) -> OutboxState:
    """Return the state of the event log. Begin a new era first if the store went back to an earlier state.

    `position` is a position that was read in `era`. If the store is behind it, the store went back.
    """
    state = await tx.events.outbox_state()
    if state is not None and not has_gone_back(state, era, position):
        return state
    await tx.eras.lock()
    state = await _locked_state(tx)
    if state.is_new:
        await tx.eras.note_origin()
    elif has_gone_back(state, era, position):
        number = max(state.era, era) + 1
        now = await tx.now()
        await tx.eras.begin(number, start_of_era(state), trimmed_in_era(state), state.present, now)
    return await _locked_state(tx)


async def known_position(tx: Transaction, state: OutboxState, scope: CursorScope, position: Position) -> Position:
    """Return the last position that the store knows, up to `position`, which was read in the era of `scope`."""
    if scope.store != state.store:
        return FIRST
    start = await tx.eras.earliest_start(scope.era) if scope.era < state.era else None
    return position if start is None else min(position, start)


async def _locked_state(tx: Transaction) -> OutboxState:
    state = await tx.events.outbox_state()
    assert state is not None, "this transaction has locked the row of the store"
    return state
