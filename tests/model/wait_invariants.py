"""The invariants of waits, checked on stored rows. The model is used only to evaluate conditions."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from uuid import UUID

from flowfabric.engine import Accepted, Effect, Secret, condition_from_json
from tests.model.stores import FORGED, Row, Rows
from tests.model.wait_records import is_satisfied

TERMINAL = frozenset({"completed", "failed", "cancelled", "expired", "skipped"})
# Columns of a signal that may change after its acceptance: the suspension it belongs to, and whether it counts there.
_CHANGEABLE = ("suspension", "counts")


@dataclass(frozen=True)
class _SignalFacts:
    id: UUID
    waitpoint: str
    name: str
    source: str


def check_wait_rows(rows: Rows, now_us: int) -> None:
    """Check the invariants that hold for the rows of waits at any time."""
    suspensions, waitpoints, signals = (_by_execution(rows[table]) for table in ("suspension", "waitpoint", "signal"))
    for execution in rows["execution"]:
        id_ = execution["id"]
        _check_suspensions(execution, suspensions[id_], signals[id_])
        _check_waitpoints(execution, waitpoints[id_], suspensions[id_])
        _check_signals(execution, signals[id_])
    for key in rows["signing_key"]:
        assert (key["secret"] is None) == (key["collected_at"] is not None), "I-31: only collecting destroys a secret"
        if key["collected_at"] is not None:
            assert key["verifies_until"] <= key["collected_at"] <= now_us, "I-31: no key is collected in its window"
    assert sum(key["active"] is not None for key in rows["signing_key"]) <= 1, "at most one key is active"


def check_wait_step(before: Rows, after: Rows, now_us: int) -> None:
    """Check that a step reopens no suspension or waitpoint, loses no accepted signal, and acts on no due time early."""
    _check_suspension_steps(before, after, now_us)
    _check_waitpoint_steps(before, after, now_us)
    _check_signal_steps(before, after, now_us)


def check_signal(before: Rows, after: Rows, token: Secret | None, outcome: Any, now_us: int) -> None:
    """I-26, I-30, I-31: check that an accepted signal is stored once, had a valid target, and resumed only a suspended
    execution. Check that a call with any other outcome changed nothing.
    """
    if not isinstance(outcome, Accepted):
        assert before == after, "a signal that was not accepted changed something"
        return
    earlier = {(row["execution_id"], row["seq"]) for row in before["signal"]}
    [signal] = [row for row in after["signal"] if (row["execution_id"], row["seq"]) not in earlier]
    [slot] = [row for row in before["waitpoint"] if row["id"] == signal["waitpoint_id"]]
    assert slot["closed_at"] is None, "I-31: a closed waitpoint accepted a signal"
    overdue = slot["expires_at"] is not None and slot["expires_at"] <= now_us
    assert not overdue or slot["state"] == "active", "I-31: an expired waitpoint accepted a signal"
    if token is not None:
        assert not overdue, "I-31: the token of an expired waitpoint was accepted"
        assert not token.reveal().endswith(FORGED), "I-31: a forged token was accepted"
        assert slot["token_ends_at"] is None or slot["token_ends_at"] > now_us, "I-31: an expired token was accepted"
        assert _verifies(before, slot["kid"], now_us), "I-31: a token of a retired key was accepted"
    [state] = [row["state"] for row in before["execution"] if row["id"] == signal["execution_id"]]
    assert state not in TERMINAL, "I-30: an ended execution accepted a signal"
    for row in after["execution"]:
        if row["id"] == signal["execution_id"] and row["state"] != state:
            assert state == "suspended", f"a signal moved an execution from {state} to {row['state']}"
            assert outcome.effect is Effect.SATISFIED, "the outcome of a signal does not match its effect"


def due_of_waits(rows: Rows, execution_id: str) -> list[int | None]:
    """Return the times at which a duty may change the waits of an execution."""
    timeouts = [row["timeout_at"] for row in _open(rows["suspension"]) if row["execution_id"] == execution_id]
    return timeouts + [row["fires_at"] for row in _open(rows["waitpoint"]) if row["execution_id"] == execution_id]


def _check_suspensions(execution: Row, suspensions: list[Row], signals: list[Row]) -> None:
    opened = _open(suspensions)
    assert len(opened) == (execution["state"] == "suspended"), "I-29: suspended means that exactly one wait is open"
    numbers = sorted(row["number"] for row in suspensions)
    assert numbers == list(range(1, execution["suspension_count"] + 1)), "suspensions are numbered without a gap"
    keys = [(row["generation"], row["key"]) for row in suspensions if row["key"] is not None]
    assert len(keys) == len(set(keys)), "a key opens one suspension in a generation"
    for row in suspensions:
        counting = [signal for signal in signals if signal["suspension"] == row["number"] and signal["counts"]]
        facts = [
            _SignalFacts(UUID(signal["id"]), signal["waitpoint"], signal["name"], signal["source"])
            for signal in counting
        ]
        satisfied = is_satisfied(condition_from_json(row["condition"]), facts)
        assert row["closed_at"] is not None or not satisfied, "I-33: a wait is open although its condition holds"
        assert row["closed_by"] != "signals" or satisfied, "I-28: signals closed a wait that they do not satisfy"


def _check_waitpoints(execution: Row, waitpoints: list[Row], suspensions: list[Row]) -> None:
    opened, waits = _open(waitpoints), _open(suspensions)
    assert execution["state"] not in TERMINAL or not opened, "I-29: a waitpoint is open after the end"
    assert len({row["key"] for row in opened}) == len(opened), "open waitpoints have different keys"
    for row in opened:
        bound = row["state"] == "active"
        assert not bound or [wait["number"] for wait in waits] == [row["suspension"]], (
            "I-29: an active waitpoint belongs to the open wait"
        )
    assert execution["plain"] == 0 or not (waitpoints or suspensions), "an execution with waits is not standalone"


def _check_signals(execution: Row, signals: list[Row]) -> None:
    assert sorted(row["seq"] for row in signals) == list(range(1, execution["signal_seq"] + 1)), (
        "I-26: signals are numbered without a gap"
    )
    assert len({row["id"] for row in signals}) == len(signals), "I-27: a signal is stored once"
    keys = [(row["waitpoint_id"], row["key"]) for row in signals if row["key"] is not None]
    assert len(keys) == len(set(keys)), "I-27: a key is accepted once at a waitpoint"
    ordered = sorted(signals, key=lambda row: row["seq"])
    assert [row["accepted_at"] for row in ordered] == sorted(row["accepted_at"] for row in signals)
    assert all(row["suspension"] is not None or not row["counts"] for row in signals), (
        "a counting signal belongs to a wait"
    )


def _check_suspension_steps(before: Rows, after: Rows, now_us: int) -> None:
    later = {(row["execution_id"], row["number"]): row for row in after["suspension"]}
    for row in before["suspension"]:
        row_after = later.get((row["execution_id"], row["number"]))
        if row_after is None or row_after == row:
            continue
        assert row["closed_at"] is None, "I-29: a closed suspension never changes"
        if row_after["closed_by"] == "timeout" or row_after["timeout_at"] != row["timeout_at"]:
            assert row["timeout_at"] is not None and row["timeout_at"] <= now_us, "I-35: a wait timed out early"


def _check_waitpoint_steps(before: Rows, after: Rows, now_us: int) -> None:
    later = {row["id"]: row for row in after["waitpoint"]}
    for row in before["waitpoint"]:
        row_after = later.get(row["id"])
        if row_after is None or row_after == row:
            continue
        assert row["closed_at"] is None, "I-31: a closed waitpoint never changes"
        assert row["kid"] in (None, row_after["kid"]), "a waitpoint keeps its token"
        if row_after["close_reason"] == "expired":
            assert row["expires_at"] is not None and row["expires_at"] <= now_us, "I-35: a waitpoint expired early"


def _check_signal_steps(before: Rows, after: Rows, now_us: int) -> None:
    living = {row["id"] for row in after["execution"]}
    later = {(row["execution_id"], row["seq"]): row for row in after["signal"]}
    for row in before["signal"]:
        if row["execution_id"] in living:
            row_after = later.get((row["execution_id"], row["seq"]))
            assert row_after is not None, "I-26: an accepted signal is never lost"
            assert {**row_after, **{name: row[name] for name in _CHANGEABLE}} == row, (
                "I-26: an accepted signal is never changed"
            )
    earlier = {(row["execution_id"], row["seq"]) for row in before["signal"]}
    timers = {row["id"]: row["fires_at"] for row in before["waitpoint"] if row["kind"] == "timer"}
    for key, row in later.items():
        if key not in earlier and row["waitpoint_id"] in timers:
            due = timers[row["waitpoint_id"]]
            assert due is not None and due <= now_us, "I-35: a timer fired early, or twice"


def _verifies(rows: Rows, kid: str, now_us: int) -> bool:
    [key] = [row for row in rows["signing_key"] if row["kid"] == kid]
    needed = any(row["kid"] == kid for row in _open(rows["waitpoint"])) and not key["end_is_final"]
    return key["collected_at"] is None and (key["retired_at"] is None or key["verifies_until"] > now_us or needed)


def _open(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["closed_at"] is None]


def _by_execution(rows: list[Row]) -> dict[str, list[Row]]:
    ordered = sorted(rows, key=lambda row: row["execution_id"])
    return defaultdict(list, {id_: list(group) for id_, group in groupby(ordered, key=lambda row: row["execution_id"])})
