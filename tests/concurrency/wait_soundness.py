"""Check the invariants of every wait with the pure evaluator, independent of the order of racing calls."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import groupby
from typing import Any
from uuid import UUID

from flowfabric.core.executions.states import TERMINAL
from flowfabric.core.waits.condition_json import from_json
from flowfabric.core.waits.evaluate import SignalFacts, counting_signals, is_satisfied
from tests.concurrency.soundness import assert_sound
from tests.stores import TestStore

Row = dict[str, Any]
Grouped = dict[str, list[Row]]

_EXECUTIONS = "SELECT id, state, signal_seq, suspension_count, lease_id FROM ff.execution"
_SUSPENSIONS = "SELECT * FROM ff.suspension ORDER BY execution_id, number"
_WAITPOINTS = "SELECT * FROM ff.waitpoint ORDER BY execution_id, id"
_SIGNALS = "SELECT * FROM ff.signal ORDER BY execution_id, seq"
_RESUMED = "SELECT execution_id, name, details FROM ff.event WHERE name = 'resumed' ORDER BY execution_id, version"


async def assert_waits_sound(store: TestStore, accepted: Iterable[UUID] = ()) -> None:
    """Assert that histories are sound, the rows of every wait are consistent, and all `accepted` signals are stored."""
    await assert_sound(store)
    executions, suspensions, waitpoints, signals, resumed = await store.queries(
        [_EXECUTIONS, _SUSPENSIONS, _WAITPOINTS, _SIGNALS, _RESUMED]
    )
    missing = {str(id_) for id_ in accepted} - {str(row["id"]) for row in signals}
    assert not missing, f"accepted and lost: {missing}"
    parts = [_by_execution(rows) for rows in (suspensions, waitpoints, signals, resumed)]
    for row in executions:
        id_ = str(row["id"])
        _assert_execution(row, *(part[id_] for part in parts))


def _assert_execution(
    execution: Row, suspensions: list[Row], waitpoints: list[Row], signals: list[Row], resumed: list[Row]
) -> None:
    opened = [row["number"] for row in suspensions if row["closed_at"] is None]
    assert len(opened) == (execution["state"] == "suspended"), (execution, suspensions)
    assert [row["number"] for row in suspensions] == list(range(1, execution["suspension_count"] + 1))
    assert [row["seq"] for row in signals] == list(range(1, execution["signal_seq"] + 1)), signals
    if execution["state"] in TERMINAL:
        assert not [row for row in waitpoints if row["closed_at"] is None], waitpoints
    for row in waitpoints:
        assert row["state"] != "active" or row["suspension"] in opened, (row, opened)
    for suspension in suspensions:
        _assert_resumed_once(suspension, resumed)
        _assert_judged(suspension, waitpoints, signals)
    assert all(row["suspension"] is not None for row in signals if row["counts"]), signals


def _assert_resumed_once(suspension: Row, resumed: list[Row]) -> None:
    """Assert that a wait closed by signals or an operator resumed its execution exactly once.

    A wait closed by the end of its execution never does.
    """
    times = sum(_details(row).get("suspension") == str(suspension["id"]) for row in resumed)
    allowed = {None: (0,), "signals": (1,), "operator": (1,), "timeout": (0, 1), "ended": (0,)}
    assert times in allowed[suspension["closed_by"]], (suspension, resumed)


def _assert_judged(suspension: Row, waitpoints: list[Row], signals: list[Row]) -> None:
    """Assert that the evaluator agrees with the stored rows. It must count the same signals, and the condition must
    hold exactly if signals closed the wait.
    """
    condition, number = from_json(json.loads(suspension["condition"])), suspension["number"]
    bound = {str(row["id"]) for row in waitpoints if row["suspension"] == number and row["state"] == "active"}
    own = [row for row in signals if row["suspension"] == number and row["waitpoint_id"] is not None]
    waiting = [row for row in signals if row["suspension"] is None and str(row["waitpoint_id"]) in bound]
    holds = suspension["closed_by"] == "signals"
    assert is_satisfied(condition, _facts(own)) == holds, (suspension, own)
    counting = [row["seq"] for row in own if row["counts"]]
    assert counting == [facts.order for facts in counting_signals(condition, _facts(own))], (suspension, own)
    assert holds or not is_satisfied(condition, _facts(own + waiting)), (
        f"suspended although its condition is satisfied: {suspension}"
    )


def _facts(rows: list[Row]) -> list[SignalFacts]:
    return [SignalFacts(row["id"], row["waitpoint"], row["name"], row["source"], row["seq"]) for row in rows]


def _details(row: Row) -> dict[str, Any]:
    details = row["details"]
    return dict(json.loads(details) if isinstance(details, str) else details or {})


def _by_execution(rows: list[Row]) -> Grouped:
    groups = groupby(rows, key=lambda row: str(row["execution_id"]))
    return defaultdict(list, {id_: list(group) for id_, group in groups})


def count_names(rows: Iterable[Any]) -> Counter[str]:
    """Count events or signals by name."""
    return Counter(row.name for row in rows)
