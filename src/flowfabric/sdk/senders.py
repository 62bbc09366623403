"""Who sends a signal: what is stored as its source when it goes without a token."""

from __future__ import annotations

from flowfabric.core.sources import EXECUTION, PROGRAM, UNKNOWN, joined
from flowfabric.sdk.units import UNIT


def sender() -> tuple[str, str]:
    """Who sends just now, by type and identity: the execution whose code this is, or else some program."""
    unit = UNIT.get()
    return (PROGRAM, UNKNOWN) if unit is None else (EXECUTION, str(unit.run.lease.execution_id))


def principal() -> str:
    """The same as one name."""
    return joined(*sender())
