"""The judgement at the end of a run: client ledger, witness ledger, fenced service and store are held side by side."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from tests.faults.ledgers import Run, read_ledger
from tests.faults.pictures import Camera

TERMINAL = {"completed", "failed", "cancelled", "expired", "skipped"}
# Events by which a lease is lost or given back, as against those by which the execution ends in the holder's hands.
MOVES_EPOCH = {"expired", "revoked", "retry_scheduled", "delayed", "released", "cancelled", "suspended"}
BEGINS_LEASE = {"acquired", "reclaimed"}
# How what is not in a flow must end, by its plan: no fault is a reason to end otherwise.
MUST_END = {"break": "failed", "give up": "cancelled"}

Row = dict[str, Any]


class Findings:
    """Everything there is to know about a run, by execution."""

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
        found = cls(run)
        for row in await camera.rows("SELECT * FROM ff.execution"):
            found.executions[str(row["id"])] = row
        for row in await camera.rows("SELECT * FROM ff.event WHERE execution_id IS NOT NULL ORDER BY version"):
            found.events[str(row["execution_id"])].append(row)
        for row in await camera.rows("SELECT * FROM ff.attempt ORDER BY attempt_index"):
            found.attempts[str(row["execution_id"])].append(row)
        for row in await camera.rows("SELECT execution_id, name, payload FROM ff.step WHERE struck_by IS NULL"):
            found.steps[str(row["execution_id"])][row["name"]] = row["payload"]
        for row in await camera.rows("SELECT execution_id, id FROM ff.signal ORDER BY seq"):
            found.signals[str(row["execution_id"])].append(str(row["id"]))
        return found

    def winner(self, execution: str) -> str | None:
        """The result of the attempt that succeeded."""
        results = [row["result"] for row in self.attempts[execution] if row["outcome"] == "ended_success"]
        return results[-1].decode() if results else None


def violations(found: Findings) -> list[str]:
    """Everything that is wrong with a run; it should be nothing."""
    problems = [f"a worker broke: {line['error']}" for line in found.witness if line["what"] == "broke"]
    problems += _lost_submits(found)
    problems += _witness_against_store(found)
    for execution in found.executions:
        problems += [f"{execution}: {problem}" for problem in _broken_life(found, execution)]
    return problems


def _lost_submits(found: Findings) -> Iterator[str]:
    acknowledged: dict[str, str] = {}
    for line in found.client:
        if line["what"] != "acknowledged":
            continue
        if line["execution"] not in found.executions:
            yield f"{line['execution']}: its submit was acknowledged, and it is not there"
        if line["asked"] in acknowledged and acknowledged[line["asked"]] != line["execution"]:
            yield f"{line['asked']}: one submission became two executions"
        acknowledged[line["asked"]] = line["execution"]
    for line in found.client:
        if line["what"] == "signalled" and found.signals[line["execution"]] != [line["signal"]]:
            yield f"{line['execution']}: signal {line['signal']} was acknowledged, {found.signals[line['execution']]}"
    asked = {line["asked"] for line in found.client if line["what"] == "asked"}
    if len(found.executions) > len(asked):
        yield f"{len(asked)} submissions became {len(found.executions)} executions"


def _witness_against_store(found: Findings) -> Iterator[str]:
    leases = {str(event["lease_id"]) for events in found.events.values() for event in events if _begins(event)}
    for line in found.witness:
        execution = line.get("execution", "")
        if line["what"] == "began" and line["lease"] not in leases:
            yield f"{execution}: worked on under lease {line['lease']}, which no event knows"
        if line["what"] == "completed" and found.winner(execution) != line["result"]:
            yield f"{execution}: {line['result']} was acknowledged, {found.winner(execution)} is stored"
        if line["what"] == "recorded" and line["step"] not in found.steps[execution]:
            yield f"{execution}: step {line['step']} was acknowledged, and it is not there"
        if line["what"] == "answered" and line["signals"] != found.signals[execution]:
            yield f"{execution}: was told of the signals {line['signals']}, {found.signals[execution]} are stored"
        if line["what"] == "refused" and _completed_by(found, execution) == (line["epoch"], line["lease"]):
            yield f"{execution}: {line['code']} was told to the worker whose completion is stored"
        if line["what"] == "accepted":
            yield f"{execution}: a stale {line['operation']} was accepted"


def _completed_by(found: Findings, execution: str) -> tuple[int, str] | None:
    """The fence under which the execution was completed."""
    last = found.events[execution][-1:]
    return next(((event["epoch"], str(event["lease_id"])) for event in last if event["name"] == "completed"), None)


def _broken_life(found: Findings, execution: str) -> Iterator[str]:
    row, events, attempts = found.executions[execution], found.events[execution], found.attempts[execution]
    if row["state"] not in TERMINAL:
        yield f"is {row['state']}, not terminal"
    wanted = MUST_END.get(json.loads(row["payload"])["plan"], "completed")
    if row["flow_id"] is None and row["state"] in TERMINAL - {wanted}:
        yield f"is {row['state']}, it could only be {wanted}"
    versions = [event["version"] for event in events]
    if versions != list(range(1, row["version"] + 1)):
        yield f"is at version {row['version']} with events {versions}"
    ends = Counter(event["generation"] for event in events if event["family"] == "completion")
    if any(count != 1 for count in ends.values()) or (row["state"] in TERMINAL) != bool(ends):
        yield f"ended {dict(ends)} times by generation"
    indexes = [attempt["attempt_index"] for attempt in attempts]
    if indexes != list(range(len(indexes))):
        yield f"has attempts {indexes}"
    yield from _broken_leases(events)
    if row["state"] == "completed":
        yield from _wrong_winner(found, execution)


def _broken_leases(events: list[Row]) -> Iterator[str]:
    """Epochs only rise, a lease ends before the next begins, and losing it moves the epoch."""
    began = [event for event in events if _begins(event)]
    for before, after in pairwise(began):
        if after["epoch"] <= before["epoch"]:
            yield f"epoch {after['epoch']} was leased after {before['epoch']}"
    if len({str(event["lease_id"]) for event in began}) != len(began):
        yield "a lease id was used twice"
    live: Row | None = None
    for event in events:
        if _begins(event):
            if live is not None:
                yield f"was leased at epoch {event['epoch']} while the lease of epoch {live['epoch']} lived"
            live = event
        elif event["ends_lease"]:
            if live is None or str(live["lease_id"]) != str(event["lease_id"]):
                yield f"{event['name']} ended a lease that was not the live one"
            elif event["name"] in MOVES_EPOCH and event["epoch"] <= live["epoch"]:
                yield f"{event['name']} did not move the epoch {live['epoch']}"
            live = None


def _wrong_winner(found: Findings, execution: str) -> Iterator[str]:
    """The stored result is the one that the holder of the last lease sent, and its effect was the last one taken."""
    result = found.winner(execution)
    completion = found.events[execution][-1]
    fence = f"{completion['epoch']} {completion['lease_id']} {completion['instance']}"
    if result != fence:
        yield f"completed by {fence} with the result {result}"
    if sum(attempt["outcome"] == "ended_success" for attempt in found.attempts[execution]) != 1:
        yield "has more than one attempt that succeeded"
    sent = [line for line in found.witness if line["what"] == "completing" and line["result"] == result]
    if not sent or sent[-1]["execution"] != execution:
        yield f"holds the result {result}, which no witness sent"
    effects = found.run.effects(execution)
    if not effects or effects[-1] != (completion["epoch"], str(completion["lease_id"])):
        yield f"was completed by {fence}, the last effect is {effects[-1:]}"
    for name, payload in found.steps[execution].items():
        if payload != f"{execution} {name}".encode():
            yield f"step {name} holds {payload!r}"
    plan = json.loads(found.executions[execution]["payload"])["plan"]
    if len(found.steps[execution]) != {"steps": 2, "wait": 1}.get(plan, 0):
        yield f"completed with the steps {sorted(found.steps[execution])}"


def _begins(event: Row) -> bool:
    return event["family"] == "lease" and event["name"] in BEGINS_LEASE
