"""The decision to open waitpoints for signals that a task declares, but the submission did not."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from flowfabric.core.executions.decision import Decision
from flowfabric.core.executions.records import Execution, Fence
from flowfabric.core.fast_dataclass import replace
from flowfabric.core.waits.records import make_standing_waitpoints
from flowfabric.core.waits.suspend import SuspendInputs, check_number


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclareSignals:
    """A worker's request to accept signals that its code declares. The names have the schemas of their payloads."""

    fence: Fence
    declared: Mapping[str, str | None]


def decide_declare_signals(
    execution: Execution, request: DeclareSignals, inputs: SuspendInputs, known: Collection[str], now: datetime
) -> Decision[tuple[str, ...]]:
    """Open standing waitpoints for the declared signals, except for `known` signals and keys that are in use."""
    missing = {
        key: schema for key, schema in request.declared.items() if key not in known and key not in inputs.waitpoints
    }
    if not missing:
        return Decision((), execution)
    check_number(execution, inputs, len(missing))
    waits = make_standing_waitpoints(execution.id, execution.generation, missing, now)
    return Decision(tuple(missing), execution, replace(execution, is_standalone=False), waits=waits)
