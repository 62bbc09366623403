"""Check a finished run: compare the client ledger, the witness ledger, the fenced service and the store."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from tests.faults.kit.ledgers import Run, read_ledger
from tests.faults.store_dump import Camera

TERMINAL = {"completed", "failed", "cancelled", "expired", "skipped"}
# Events that end a lease and raise the epoch, unlike the events with which the holder completes or fails the execution.
MOVES_EPOCH = {"expired", "revoked", "retry_scheduled", "delayed", "released", "cancelled", "suspended"}
BEGINS_LEASE = {"acquired", "reclaimed"}
# The required final state of executions outside a flow, by the plan in their payload. Other plans must end as
# completed, whatever faults occur.
MUST_END = {"break": "failed", "give up": "cancelled"}

Row = dict[str, Any]


class Violation(NamedTuple):
    """A broken promise: `lost`, `doubled`, `wrong` or `stuck`, and a sentence about it."""

    kind: str
    sentence: str


class Findings:
    """All recorded facts about a run, grouped by execution."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.client: list[Row] = read_ledger(run.client_path)
        self.witness: list[Row] = list(run.witnessed())
        self.executions: dict[str, Row] = {}
        self.events: dict[str, list[Row]] = defaultdict(list)
        self.attempts: dict[str, list[Row]] = defaultdict(list)
        self.steps: dict[str, dict[str, bytes]] = defaultdict(dict)
        self.signals: dict[str, list[str]] = defaultdict(list)

    @classmethod
    async def gather(cls, run: Run, camera: Camera) -> Findings:
        findings = cls(run)
        for row in await camera.rows("SELECT * FROM ff.execution"):
            findings.executions[str(row["id"])] = row
        for row in await camera.rows("SELECT * FROM ff.event WHERE execution_id IS NOT NULL ORDER BY version"):
            findings.events[str(row["execution_id"])].append(row)
        for row in await camera.rows("SELECT * FROM ff.attempt ORDER BY attempt_index"):
            findings.attempts[str(row["execution_id"])].append(row)
        for row in await camera.rows("SELECT execution_id, name, payload FROM ff.step WHERE struck_by IS NULL"):
            findings.steps[str(row["execution_id"])][row["name"]] = row["payload"]
        for row in await camera.rows("SELECT execution_id, id FROM ff.signal ORDER BY seq"):
            findings.signals[str(row["execution_id"])].append(str(row["id"]))
        return findings

    def winner(self, execution: str) -> str | None:
        """The result of the successful attempt."""
        results = [row["result"] for row in self.attempts[execution] if row["outcome"] == "ended_success"]
        return results[-1].decode() if results else None


def violations(findings: Findings) -> list[Violation]:
    """Return every violation that the run contains. The list should be empty."""
    broken = [line["error"] for line in findings.witness if line["what"] == "broke"]
    problems = [Violation("wrong", f"a worker broke: {error}") for error in broken]
    problems += _lost_submits(findings)
    problems += _witness_against_store(findings)
    for execution in findings.executions:
        for problem in _broken_life(findings, execution):
            problems.append(Violation(problem.kind, f"{execution}: {problem.sentence}"))
    return problems


def _lost_submits(findings: Findings) -> Iterator[Violation]:
    acknowledged: dict[str, str] = {}
    for line in findings.client:
        if line["what"] != "acknowledged":
            continue
        if line["execution"] not in findings.executions:
            yield Violation("lost", f"{line['execution']}: its submit was acknowledged, but it is not stored")
        if line["asked"] in acknowledged and acknowledged[line["asked"]] != line["execution"]:
            yield Violation("doubled", f"{line['asked']}: one submission became two executions")
        acknowledged[line["asked"]] = line["execution"]
    for line in findings.client:
        if line["what"] == "signalled" and findings.signals[line["execution"]] != [line["signal"]]:
            yield Violation(
                "lost",
                f"{line['execution']}: signal {line['signal']} acknowledged, {findings.signals[line['execution']]}",
            )
    asked = {line["asked"] for line in findings.client if line["what"] == "asked"}
    if len(findings.executions) > len(asked):
        yield Violation("doubled", f"{len(asked)} submissions became {len(findings.executions)} executions")


def _witness_against_store(findings: Findings) -> Iterator[Violation]:
    leases = {str(event["lease_id"]) for events in findings.events.values() for event in events if _begins(event)}
    for line in findings.witness:
        execution = line.get("execution", "")
        if line["what"] == "began" and line["lease"] not in leases:
            yield Violation("wrong", f"{execution}: a worker ran it under lease {line['lease']}, which has no event")
        if line["what"] == "completed" and findings.winner(execution) != line["result"]:
            yield Violation(
                "lost", f"{execution}: {line['result']} was acknowledged, {findings.winner(execution)} is stored"
            )
        if line["what"] == "recorded" and line["step"] not in findings.steps[execution]:
            yield Violation("lost", f"{execution}: step {line['step']} was acknowledged, but it is not stored")
        if line["what"] == "answered" and line["signals"] != findings.signals[execution]:
            yield Violation(
                "wrong",
                f"{execution}: the worker received {line['signals']}, but {findings.signals[execution]} are stored",
            )
        if line["what"] == "refused" and _completed_by(findings, execution) == (line["epoch"], line["lease"]):
            yield Violation("lost", f"{execution}: the worker got {line['code']} although its completion is stored")
        if line["what"] == "accepted":
            yield Violation("doubled", f"{execution}: a stale {line['operation']} was accepted")


def _completed_by(findings: Findings, execution: str) -> tuple[int, str] | None:
    """Return the epoch and the lease id under which the execution was completed, or None."""
    last = findings.events[execution][-1:]
    return next(((event["epoch"], str(event["lease_id"])) for event in last if event["name"] == "completed"), None)


def _broken_life(findings: Findings, execution: str) -> Iterator[Violation]:
    row, events, attempts = findings.executions[execution], findings.events[execution], findings.attempts[execution]
    if row["state"] not in TERMINAL:
        yield Violation("stuck", f"is {row['state']}, not terminal")
    expected = MUST_END.get(json.loads(row["payload"])["plan"], "completed")
    if row["flow_id"] is None and row["state"] in TERMINAL - {expected}:
        yield Violation("wrong", f"is {row['state']}, expected {expected}")
    versions = [event["version"] for event in events]
    if versions != list(range(1, row["version"] + 1)):
        yield Violation("wrong", f"is at version {row['version']} with events {versions}")
    ends = Counter(event["generation"] for event in events if event["family"] == "completion")
    if any(count != 1 for count in ends.values()) or (row["state"] in TERMINAL) != bool(ends):
        yield Violation("doubled", f"ended {dict(ends)} times by generation")
    indexes = [attempt["attempt_index"] for attempt in attempts]
    if indexes != list(range(len(indexes))):
        yield Violation("wrong", f"has attempts {indexes}")
    yield from _broken_leases(events)
    if row["state"] == "completed":
        yield from _wrong_winner(findings, execution)


def _broken_leases(events: list[Row]) -> Iterator[Violation]:
    """Check that epochs only rise, that leases do not overlap, and that losing a lease raises the epoch."""
    began = [event for event in events if _begins(event)]
    for before, after in pairwise(began):
        if after["epoch"] <= before["epoch"]:
            yield Violation("wrong", f"epoch {after['epoch']} was leased after {before['epoch']}")
    if len({str(event["lease_id"]) for event in began}) != len(began):
        yield Violation("doubled", "a lease id was used twice")
    live: Row | None = None
    for event in events:
        if _begins(event):
            if live is not None:
                yield Violation(
                    "doubled", f"was leased at epoch {event['epoch']} while the lease of epoch {live['epoch']} was live"
                )
            live = event
        elif event["ends_lease"]:
            if live is None or str(live["lease_id"]) != str(event["lease_id"]):
                yield Violation("wrong", f"{event['name']} ended a lease that was not the live one")
            elif event["name"] in MOVES_EPOCH and event["epoch"] <= live["epoch"]:
                yield Violation("wrong", f"{event['name']} did not raise the epoch {live['epoch']}")
            live = None


def _wrong_winner(findings: Findings, execution: str) -> Iterator[Violation]:
    """Check that the stored result comes from the last lease holder, and that the fenced service accepted no effect
    after that holder's.
    """
    result = findings.winner(execution)
    completion = findings.events[execution][-1]
    fence = f"{completion['epoch']} {completion['lease_id']} {completion['instance']}"
    if result != fence:
        yield Violation("wrong", f"completed by {fence} with the result {result}")
    if sum(attempt["outcome"] == "ended_success" for attempt in findings.attempts[execution]) != 1:
        yield Violation("doubled", "has more than one attempt that succeeded")
    sent = [line for line in findings.witness if line["what"] == "completing" and line["result"] == result]
    if not sent or sent[-1]["execution"] != execution:
        yield Violation("wrong", f"holds the result {result}, which no witness sent")
    effects = findings.run.effects(execution)
    if not effects or effects[-1] != (completion["epoch"], str(completion["lease_id"])):
        yield Violation("wrong", f"was completed by {fence}, the last effect is {effects[-1:]}")
    for name, payload in findings.steps[execution].items():
        if payload != f"{execution} {name}".encode():
            yield Violation("wrong", f"step {name} holds {payload!r}")
    plan = json.loads(findings.executions[execution]["payload"])["plan"]
    if len(findings.steps[execution]) != {"steps": 2, "wait": 1}.get(plan, 0):
        yield Violation("wrong", f"completed with the steps {sorted(findings.steps[execution])}")


def _begins(event: Row) -> bool:
    return event["family"] == "lease" and event["name"] in BEGINS_LEASE
