"""Lanes, the named queues of a namespace: their states, and who changed them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class LaneState(StrEnum):
    """The state of a lane.

    A paused lane accepts submissions but gives out no work. A draining lane gives out its waiting work but accepts no
    submissions.
    """

    ACTIVE = "active"
    PAUSED = "paused"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneInfo:
    """A lane with its state, and who last changed the state, when and why.

    `changed_at` is None for a lane that was never changed.
    """

    lane: str
    state: LaneState = LaneState.ACTIVE
    changed_at: datetime | None = None
    principal: str | None = None
    reason: str | None = None

    def __str__(self) -> str:
        """Return the state with who set it and why, such as `paused by ann ("provider outage")`."""
        by = f" by {self.principal}" if self.principal else ""
        return f"{self.state}{by}" + (f' ("{self.reason}")' if self.reason else "")


@dataclass(frozen=True, slots=True)
class LanePage:
    """One page of lanes, sorted by name, and the cursor of the next page if there is one."""

    items: tuple[LaneInfo, ...]
    next_cursor: str | None
