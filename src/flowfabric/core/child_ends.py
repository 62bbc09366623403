"""The end of a child as its parent's condition sees it: a system signal named after the outcome."""

from __future__ import annotations

from datetime import datetime
from uuid import uuid5

from flowfabric.core.signalling import SignalRequest
from flowfabric.core.states import State
from flowfabric.core.waits import Waitpoint


def child_signal(waitpoint: Waitpoint, outcome: State, now: datetime) -> SignalRequest:
    """The engine's own signal that the child of this waitpoint has ended; its id follows from it, so there is one."""
    child = str(waitpoint.child_id)
    return SignalRequest(
        id=uuid5(waitpoint.id, "child"), name=outcome.value, payload=b"", encoding="json", category="system",
        source_type="system", source_identity=child, correlation=child, key=None, created_at=now, resume_delay=None,
        by_engine=True, is_system=True,
    )  # fmt: skip
