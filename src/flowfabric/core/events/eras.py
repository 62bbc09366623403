"""Eras of event positions.

The store of an asynchronous standby, or of a backup, lacks the last transactions. New transactions get numbers that
subscribers have already read, so a subscriber that continues at its position would miss their events. An era begins
when the store notices that it went back. A position of an earlier era counts only up to the start of the next era.

```text
era 0   ── 1 ── 2 ── 3 ── 4 ── 5          read up to 5, then a failover to a standby that has 1 to 3
era 1             known ── 3 ── 4'        a reader at 5 returns to the known position, and reads 3 (again) and 4'
```
"""

from __future__ import annotations

from flowfabric.core.events.cursor import FIRST, Position
from flowfabric.core.events.subscribers import OutboxState


def has_gone_back(state: OutboxState, era: int, position: Position) -> bool:
    """Return True if the store no longer knows a position that was read in `era`, and has not begun a new era yet."""
    return not state.is_current or era > state.era or (era == state.era and position > state.present)


def start_of_era(state: OutboxState) -> Position:
    """Return a position before every event that was written since the store went back.

    In another timeline, that is the known position. A transaction that the store still has has stored it, so later
    transactions have higher numbers, and it is not stored again before the era begins. If only a reader shows that the
    store went back, or the store was loaded from a dump, no position is certain.
    """
    known = max(state.known, state.trimmed)
    return known if not state.is_current and known <= state.present else FIRST


def trimmed_in_era(state: OutboxState) -> Position:
    """Return the last trimmed position as the new era counts it."""
    return state.trimmed if state.trimmed <= state.present else FIRST
