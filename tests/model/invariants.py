"""The invariants of the reliability reference, checked on stored rows without the model.

Each check takes the rows before and after a step and raises if they violate an invariant. The numbers, such as I-05,
are the numbers in that reference.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

from flowfabric.core.executions.transitions import TRANSITIONS
from tests.model.stores import Row, Rows
from tests.model.wait_invariants import due_of_waits

TERMINAL = frozenset({"completed", "failed", "cancelled", "expired", "skipped"})
_BEGINS = frozenset({"acquired", "reclaimed"})
_ARMED = ("ready_at", "attempt_timeout_at", "lease_check_at", "lease_expires_at", "attempt_timeout_left_us")
_DUE = ("lease_expires_at", "ready_at", "attempt_timeout_at", "deadline_at", "purge_at")
_DEPENDANTS = ("attempt", "step", "reclaim_grant", "submission_key", "suspension", "waitpoint", "signal")
_ALLOWED = {
    (source.value, f"{move.event[0]}.{move.event[1]}", (move.target or source).value)
    for move in TRANSITIONS
    for source in move.sources
}


def check_rows(rows: Rows) -> None:
    """Check the invariants that hold for the rows at any time."""
    histories = group_events(rows)
    for execution in rows["execution"]:
        history = histories.pop(execution["id"], [])
        _check_execution(execution, history)
        _check_history(history)
        _check_counts(execution, history, rows)
    for history in histories.values():
        _check_history(history)
        assert history[-1]["state"] in TERMINAL, "I-16: only a terminal execution may be purged"
    _check_leases(rows)
    _check_orphans(rows)


def check_step(before: Rows, after: Rows) -> None:
    """Check that a step rewrites no history, changes no result, shortens no live lease and lowers no epoch."""
    for table, key in (("event", ("execution_id", "version")), ("attempt", ("execution_id", "attempt_index"))):
        later = {tuple(row[name] for name in key): row for row in after[table]}
        living = {row["id"] for row in after["execution"]}
        for row in before[table]:
            if row.get("version") is None and table == "event":
                continue
            if table == "event" or row["execution_id"] in living:
                row_after = later.get(tuple(row[name] for name in key))
                assert row_after == row, f"I-13, I-20: a written {table} row is never changed or lost"
    rows_after = {row["id"]: row for row in after["execution"]}
    for row in before["execution"]:
        row_after = rows_after.get(row["id"])
        if row_after is None:
            continue
        assert row_after["epoch"] >= row["epoch"], "I-02: epochs only grow"
        assert row_after["version"] >= row["version"], "I-20: versions only grow"
        lost = row["lease_id"] is not None and row_after["lease_id"] != row["lease_id"]
        ended_by_holder = row_after["state"] in ("completed", "failed") and row_after["version"] == row["version"] + 1
        assert not lost or row_after["epoch"] > row["epoch"] or ended_by_holder, "I-04: a lost lease moves the epoch"
        if row_after["lease_id"] is not None and row_after["lease_id"] == row["lease_id"]:
            assert row_after["lease_expires_at"] >= row["lease_expires_at"], "I-07: a renewal never shortens a lease"


def check_accepted(before: Rows, after: Rows, id_: str, fences: set[tuple[int, str]], now_us: int) -> None:
    """I-05, I-07: check that a worker's call changed its execution only with the fence of the unexpired live lease."""
    row, changed = (
        {execution["id"]: execution for execution in rows["execution"]}.get(id_) for rows in (before, after)
    )
    steps = [[row for row in rows["step"] if row["execution_id"] == id_] for rows in (before, after)]
    if row == changed and steps[0] == steps[1]:
        return
    assert row is not None, "I-05: a call changed an execution that does not exist"
    assert (row["epoch"], row["lease_id"]) in fences, f"I-05: {fences} wrote over {row['epoch'], row['lease_id']}"
    assert row["lease_expires_at"] > now_us, "I-07: an expired lease changed its execution"


def check_fair(before: Rows, after: Rows, eligible: set[str]) -> None:
    """I-09: check that no eligible execution was left waiting although it comes before an execution that the claim
    took.
    """
    rows_after = {row["id"]: row for row in after["execution"]}
    waiting = [row for row in before["execution"] if row["state"] == "waiting"]
    taken = [_claim_order(row) for row in waiting if rows_after[row["id"]]["state"] == "active"]
    waiting_still = [
        _claim_order(row) for row in waiting if row["id"] in eligible and rows_after[row["id"]]["state"] == "waiting"
    ]
    assert not taken or not waiting_still or max(taken) < min(waiting_still), (
        f"I-09: {max(taken)} was taken, {min(waiting_still)} still waits"
    )


def check_never_early(before: Rows, after: Rows, now_us: int) -> None:
    """I-35, I-37: check that a duty changes an execution only when one of its times is due, and a lease only after its
    expiry."""
    rows_after = {row["id"]: row for row in after["execution"]}
    for row in before["execution"]:
        row_after = rows_after.get(row["id"])
        if row_after == row or (row_after and _is_only_check_postponed(row, row_after)):
            continue
        due = [row[name] for name in _DUE] + due_of_waits(before, row["id"])
        assert any(time is not None and time <= now_us for time in due), (
            f"I-35: {row['id']} was changed at {now_us} although none of its times is due"
        )
    expired = [row for row in after["event"] if (row["family"], row["name"]) == ("lease", "expired")]
    earlier = {(row["execution_id"], row["version"]) for row in before["event"]}
    leases = {row["lease_id"]: row for row in before["execution"] if row["lease_id"]}
    for event in expired:
        if (event["execution_id"], event["version"]) not in earlier:
            assert leases[event["lease_id"]]["lease_expires_at"] <= now_us, "I-35: a lease expired before its time"


def group_events(rows: Rows) -> dict[str, list[Row]]:
    """Return the events of each execution, in order."""
    events_by_execution: dict[str, list[Row]] = defaultdict(list)
    for event in rows["event"]:
        if event["execution_id"] is not None:
            events_by_execution[event["execution_id"]].append(event)
    return {id_: sorted(events, key=lambda event: event["version"]) for id_, events in events_by_execution.items()}


def _claim_order(row: Row) -> tuple[int, bool, int, str]:
    return -row["priority"], row["attempt_state"] != "attempt_interrupted", row["created_at"], row["id"]


def _check_execution(row: Row, history: list[Row]) -> None:
    leased = row["ownership"] == "leased"
    assert leased == (row["lease_id"] is not None), "I-01: a lease is live exactly when the execution is leased"
    assert (row["state"] == "active") == (row["ownership"] is not None), (
        "I-01: an execution is owned exactly while it is active"
    )
    versions = [event["version"] for event in history]
    assert versions == list(range(1, row["version"] + 1)), "I-20: each version has one event, without a gap"
    if history:
        last = history[-1]
        now = (row["state"], row["epoch"], row["generation"])
        assert (last["state"], last["epoch"], last["generation"]) == now, "I-20: the last event has the current state"
    if row["state"] in TERMINAL:
        armed = [name for name in _ARMED if row[name] is not None]
        assert not armed, f"I-37: {armed} still armed after the end"
        assert row["purge_at"] is not None and row["ended_at"] is not None, (
            "I-49: a terminal execution has a purge time"
        )


def _check_history(history: list[Row]) -> None:
    previous = None
    for event in history:
        event_name = f"{event['family']}.{event['name']}"
        sources = [previous] if previous else ["waiting", "delayed"]
        allowed = [source for source in sources if (source, event_name, event["state"]) in _ALLOWED]
        assert allowed, f"I-10: {previous} → {event['state']} by {event_name} is not in the table"
        if previous in TERMINAL:
            assert event_name == "operator.replayed", f"I-11: {event_name} after the end"
        if event["family"] == "operator" or event["name"] == "revoked":
            assert event["principal"] and event["reason"] is not None, (
                "I-47: an operator event has a principal and a reason"
            )
        previous = event["state"]
    ends = Counter(event["generation"] for event in history if event["family"] == "completion")
    assert all(count == 1 for count in ends.values()), "I-12: a generation has one terminal event"
    begins = [event["epoch"] for event in history if event["name"] in _BEGINS]
    assert all(first < second for first, second in pairwise(begins)), "I-02: every lease has a higher epoch"
    times = [event["at"] for event in history]
    assert times == sorted(times), "I-20: events are in order of time"


def _check_counts(row: Row, history: list[Row], rows: Rows) -> None:
    policy = row["policy"]
    max_retries, max_reclaims = policy.get("max_retries", 3), policy.get("max_reclaims", 100)
    present = [event for event in history if event["generation"] == row["generation"]]
    names = Counter(event["name"] for event in present)
    assert names["retry_scheduled"] == row["retry_count"] <= max_retries, "I-18: retries are limited by the policy"
    assert row["reclaim_count"] <= max_reclaims, "I-19: reclaims are limited by the policy"
    assert row["replay_count"] == row["generation"] <= policy.get("max_replays", 10), "I-11: replays are capped"
    all_names = Counter(event["name"] for event in history)
    allowed = 1 + all_names["retry_scheduled"] + all_names["expired"] + all_names["revoked"] + all_names["replayed"]
    attempts = [attempt for attempt in rows["attempt"] if attempt["execution_id"] == row["id"]]
    assert len(attempts) <= allowed, "I-18: every attempt was started by an event"
    assert [
        attempt["attempt_index"] for attempt in sorted(attempts, key=lambda attempt: attempt["attempt_index"])
    ] == list(range(len(attempts))), "I-18: attempts are numbered without a gap"
    assert row["attempt_index"] <= len(attempts), "I-18: at most one attempt has not ended"


def _check_leases(rows: Rows) -> None:
    begun = Counter(
        event["lease_id"] for event in rows["event"] if event["family"] == "lease" and event["name"] in _BEGINS
    )
    assert all(count == 1 for count in begun.values()), "I-03: a lease id is used once"
    for row in rows["execution"]:
        assert row["lease_id"] is None or begun[row["lease_id"]] == 1, "I-03: a live lease has its event"


def _check_orphans(rows: Rows) -> None:
    living = {row["id"] for row in rows["execution"]}
    for table in _DEPENDANTS:
        orphans = [row for row in rows[table] if row["execution_id"] not in living and not row.get("drop_at")]
        assert not orphans, f"I-49: {table} rows of an execution that is gone: {orphans}"


def _is_only_check_postponed(row: Row, row_after: Row) -> bool:
    """Return True if the expiry duty found a renewed lease and changed only the time of its next check."""
    return row | {"lease_check_at": row_after["lease_check_at"]} == row_after and row_after["lease_id"] is not None
