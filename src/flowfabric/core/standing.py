"""Waitpoints that stand under their name from the submission to the end, and again after a replay."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID, uuid5

from flowfabric.core.waits import WaitChanges, Waitpoint, WaitpointKind, WaitpointState


def standing(execution_id: UUID, generation: int, keys: Sequence[str], now: datetime) -> WaitChanges:
    """The standing waitpoints of one generation; their ids follow from it, so a repeated submission makes no others."""
    return WaitChanges(added=tuple(_waitpoint(execution_id, generation, key, now) for key in keys))


def _waitpoint(execution_id: UUID, generation: int, key: str, now: datetime) -> Waitpoint:
    return Waitpoint(
        id=uuid5(execution_id, f"{generation}:{key}"), execution_id=execution_id, key=key, kind=WaitpointKind.STANDING,
        state=WaitpointState.PENDING, created_at=now, generation=generation,
    )  # fmt: skip
