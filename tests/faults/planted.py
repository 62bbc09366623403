"""Plant faults in a copy of the sources, one at a time, and check that a test finds each of them.

usage: python -m tests.faults.planted [part of a name]

For every fault, the matching test runs against the copy in a separate process. Some faults appear only by chance, so
a test may run three times. An import error or a TypeError does not count as finding the fault. The command fails if a
fault is not found, or if its text is missing in the sources. The same tests must pass against an unchanged copy.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults.planted_fault import Edit, PlantedFault
from tests.faults.planted_in_cancels import PLANTED_IN_CANCELS
from tests.faults.planted_in_clocks import PLANTED_IN_CLOCKS
from tests.faults.planted_in_code import PLANTED_IN_CODE
from tests.faults.planted_in_connections import PLANTED_IN_CONNECTIONS
from tests.faults.planted_in_failovers import PLANTED_IN_FAILOVERS
from tests.faults.planted_in_files import PLANTED_IN_FILES
from tests.faults.planted_in_flows import PLANTED_IN_FLOWS
from tests.faults.planted_in_leases import PLANTED_IN_LEASES
from tests.faults.planted_in_ownership import PLANTED_IN_OWNERSHIP
from tests.faults.planted_in_processes import PLANTED_IN_PROCESSES
from tests.faults.planted_in_waits import PLANTED_IN_SIGNALS

ROOT = Path(__file__).parent.parent.parent
TESTS_FAILED = 1
LONGEST_S = 120.0
CONTROL_S = 900.0
# A busy machine can disturb tests that measure times. If fewer tests than this fail without a fault, they run again.
TOO_MANY = 5
# Errors that show that a planted edit broke the code itself, so that no test really found the fault.
BADLY_PLANTED = re.compile(
    r"^E .*\b(Import|ModuleNotFound|Syntax|Indentation|Name|UnboundLocal|Attribute|Type)Error\b", re.MULTILINE
)
TRIES = 3


POSTGRES, RUNNING = "backends/postgres/store.py", "backends/postgres/pool.py"
POOL = "backends/postgres/pool.py"
POSTGRES_SQL, SQLITE_SQL = "backends/postgres/sql/hot.sql", "backends/sqlite/sql/hot.sql"
REFUSE_CONFLICTS = """
def refuse(error: Exception) -> bool:
    raise InvalidRequest("stale_lease", "another caller was faster") from error


"""
KILLS = "test_kills.py::test_workers_killed_at_random_lose_nothing_and_double_nothing"
ZOMBIES = "test_zombies.py::test_zombies_change_nothing"
STATEMENTS = "test_statements_fail.py::test_all_or_nothing_at_every_statement_of_every_operation"
CONFLICTS = "test_statements_fail.py::test_conflict_at_any_statement_is_retried_invisibly"
AWAITS = "test_cancelled_awaits.py::test_every_await_of_every_operation_can_be_cancelled"
REPLIES = "test_lost_replies.py::test_lost_commit_reply_never_causes_a_second_effect"
OUTAGES = "test_outages.py::test_engines_recover_after_outages"
DUTIES = "test_outages.py::test_duties_continue_after_an_outage"
IN_FLIGHT = "test_critical_moments.py::test_write_waiting_while_its_lease_is_lost_is_refused"
CLOCK = "test_critical_moments.py::test_client_clock_does_not_affect_leases"
KEYS = "test_critical_moments.py::test_the_same_key_in_two_namespaces_is_two_submissions"
LISTS = "test_critical_moments.py::test_paged_list_misses_and_repeats_nothing_under_load"
HISTORIES = "test_critical_moments.py::test_paged_history_misses_and_repeats_nothing_while_it_grows"

LOST = "test_lost_wait_replies.py::test_repeat_after_a_lost_reply_returns_the_stored_result"
KILLED_WAITS = "test_killed_waits.py::test_ended_wait_stays_ended_after_its_worker_is_killed"
RACES, LIVES = "../concurrency/test_waits_race.py", "../concurrency/test_random_waits.py"
RINGS, BATCHES = "../concurrency/test_keys_race.py", "../concurrency/test_wait_batches.py"
SUSPEND, DELIVER, WAIT_SQL = "ops/waits/suspend.py", "ops/waits/deliver_signal.py", "store/sql/wait.sql"
KEY_SQL = "store/sql/signing_key.sql"
UNLOCKED, UNLOCKED_SQL = "../concurrency/test_optimistic.py", "backends/postgres/sql/unlocked.sql"

PLANTED_IN_WAITS = (
    PlantedFault(
        "suspend ignores early signals",
        f"{RACES}::test_concurrent_signal_and_suspend_are_both_seen[sqlite-pending-signal first]",
        Edit("core/waits/suspend.py", "for facts in inputs.unused.get(self.waitpoint.id, ()) if", "for facts in () if"),
    ),
    PlantedFault(
        "early signals never satisfy a later wait",
        f"{LIVES}::test_random_waits_lose_no_signal_and_resume_once[sqlite]",
        Edit(WAIT_SQL, "counts = seq IN :counting", "counts = seq IN :counting AND FALSE"),
    ),
    PlantedFault(
        "ended execution keeps its waits open",
        f"{RACES}::test_signal_precedes_a_cancel_or_is_refused[sqlite-signal second]",
        Edit("ops/apply.py", "    if ended:\n", "    if False:\n"),
    ),
    PlantedFault(
        "operator resumes the wrong suspension",
        f"{RACES}::test_either_a_signal_or_an_operator_resumes[postgres-this suspension-signal first]",
        Edit("ops/waits/resume.py", "(wait is None or wait.suspension.id != suspension_id)", "False"),
    ),
    PlantedFault(
        "close uses a waitpoint read before the lock",
        f"{RACES}::test_resuming_signal_and_waitpoint_close_agree_on_their_order[postgres-signal first]",
        Edit(
            "ops/waits/resume.py",
            "    waitpoint = (await tx.waits.waitpoints([id_])).get(id_)\n",
            "",
            after="[execution] = executions.values()",
        ),
    ),
    PlantedFault(
        "suspension key is not recorded",
        f"{KILLED_WAITS}[sqlite-answered]",
        Edit(SUSPEND, "executions[id_].generation, request.key)", "executions[id_].generation, None)"),
    ),
    PlantedFault(
        "duplicate signal is not recognised",
        f"{LOST}[sqlite-deliver_signal, satisfying]",
        Edit(DELIVER, "            if id_ in earlier:\n", "            if False:\n"),
    ),
    PlantedFault(
        "duplicate approval is not recognised",
        f"{LOST}[postgres-approve]",
        Edit(DELIVER, "await tx.waits.last_waitpoint(delivery.execution_id, delivery.key, now)", "None"),
    ),
    PlantedFault(
        "one contradicting suspend fails its whole batch",
        f"{BATCHES}::test_bad_suspend_is_refused_alone[sqlite-contradicting step]",
        Edit(SUSPEND, "        if is_shared:\n", "        if not is_shared:\n"),
    ),
    PlantedFault(
        "refused suspend creates a signing key",
        f"{ZOMBIES}[sqlite]",
        Edit(
            SUSPEND,
            "        context = await _load_context(tx, ready, executions, self.keys)\n",
            "        context = await _load_context(tx, ready, executions, self.keys)\n"
            "        ring = context.ring or await ensure_minting_ring(tx, self.keys, now)\n"
            "        context = replace(context, ring=ring)\n",
        ),
    ),
    PlantedFault(
        "keys rotate without a lock",
        RINGS,
        Edit(KEY_SQL, "FOR NO KEY UPDATE\n", ""),
    ),
    PlantedFault(
        "tokens are minted during a rotation",
        f"{RINGS}::test_token_minted_before_a_rotation_is_counted_by_it[postgres]",
        Edit(KEY_SQL, "FOR SHARE\n", ""),
    ),
    PlantedFault(
        "optimistic write overwrites a concurrent change",
        f"{UNLOCKED}::test_change_between_snapshot_and_signal_is_detected[tagged-None-postgres]",
        Edit(UNLOCKED_SQL, "e.xmin = seen.mark", "seen.mark IS NOT NULL"),
    ),
    PlantedFault(
        "wait changes do not write the execution row",
        f"{UNLOCKED}::test_every_change_attached_to_an_execution_writes_its_row[postgres]",
        Edit("store/transaction.py", "touched_executions(write_set.waits) - saved_ids", "set()"),
    ),
    PlantedFault(
        "losing rotation of an empty ring reports success",
        f"{RINGS}::test_two_concurrent_rotations_both_take_effect[postgres-empty ring]",
        Edit("ops/keys.py", "return await _rotate(tx, rotation, now, keep_secret=keep_secret)", "break"),
    ),
)

LATE = "../conformance/test_subscribe_late.py"
OUTBOX_SQL = "backends/postgres/sql/outbox.sql"
OUTBOX = "../concurrency/test_outbox.py::test_four_readers_miss_nothing_of_what_eight_writers_write"
NAMES = "../conformance/test_named_subscribers.py"

PLANTED_IN_EVENTS = (
    PlantedFault(
        "readers pass uncommitted events",
        f"{LATE}::test_event_that_commits_late_is_not_missed",
        Edit(OUTBOX_SQL, "AND transaction_id < (SELECT horizon.xid FROM horizon)", ""),
    ),
    PlantedFault(
        "readers pass uncommitted events under load",
        f"{OUTBOX}[postgres]",
        Edit(OUTBOX_SQL, "AND transaction_id < (SELECT horizon.xid FROM horizon)", ""),
    ),
    PlantedFault(
        "events are ordered by transaction only",
        f"{LATE}::test_versions_are_ordered_even_if_transaction_ids_are_not",
        Edit(OUTBOX_SQL, "event_xid = GREATEST(event_xid, pg_current_xact_id())", "event_xid = pg_current_xact_id()"),
        Edit(OUTBOX_SQL, "GREATEST(pg_current_xact_id(), (SELECT", "COALESCE(pg_current_xact_id(), (SELECT"),
    ),
    PlantedFault(
        "two processes share a subscriber name",
        f"{NAMES}::test_second_process_waits_until_the_first_has_closed[sqlite]",
        Edit("core/events/subscribers.py", "return not (held_by_another and", "return not (False and"),
    ),
    PlantedFault(
        "trimming ignores slow subscribers",
        f"{NAMES}::test_events_of_purged_executions_are_kept_until_every_subscriber_has_read_them[postgres]",
        Edit("core/retention.py", "item.last is None or slowest is None or item.last <= slowest", "True"),
    ),
)  # fmt: skip
PLANTED = (
    *PLANTED_IN_WAITS,
    *PLANTED_IN_FAILOVERS,
    *PLANTED_IN_FLOWS,
    *PLANTED_IN_LEASES,
    *PLANTED_IN_SIGNALS,
    *PLANTED_IN_PROCESSES,
    *PLANTED_IN_EVENTS,
    *PLANTED_IN_CLOCKS,
    *PLANTED_IN_CODE,
    *PLANTED_IN_OWNERSHIP,
    *PLANTED_IN_CONNECTIONS,
    *PLANTED_IN_FILES,
    *PLANTED_IN_CANCELS,
    PlantedFault(
        "no fence check",
        f"{ZOMBIES}[sqlite]",
        Edit(SQLITE_SQL, "    AND e.lease_id = item.lease_id\n", ""),
        Edit(SQLITE_SQL, "    AND e.epoch = item.epoch\n", ""),
    ),
    PlantedFault(
        "no fence check in one statement",
        f"{ZOMBIES}[postgres]",
        Edit(POSTGRES_SQL, "        AND e.epoch = owned.epoch\n", "", after="-- name: complete_single_if_owned"),
        Edit(POSTGRES_SQL, "        AND e.lease_id = owned.lease_id\n", "", after="-- name: complete_single_if_owned"),
    ),
    PlantedFault(
        "no state check",
        f"{ZOMBIES}[sqlite]",
        Edit(
            "core/executions/transitions.py",
            "if execution.state not in transition.sources or wrong_owner:",
            "if wrong_owner:",
        ),
    ),
    PlantedFault(
        "expiry does not raise the epoch",
        f"{ZOMBIES}[sqlite]",
        Edit("core/executions/transitions.py", ", new_epoch=True", "", after="REQUEUE_EXPIRED = "),
    ),
    PlantedFault("epoch starts over", f"{ZOMBIES}[sqlite]", Edit(SQLITE_SQL, "epoch = e.epoch + 1,", "epoch = 1,")),
    PlantedFault(
        "renewal revives an expired lease",
        f"{ZOMBIES}[sqlite]",
        Edit(SQLITE_SQL, "    AND e.lease_expires_at > item.now\n", "", after="-- name: renew_if_owned"),
    ),
    PlantedFault(
        "checkpoint does not lock its execution",
        f"{IN_FLIGHT}[postgres]",
        Edit(POSTGRES_SQL, "    FOR SHARE OF e SKIP LOCKED\n", "", after="-- name: record_steps_if_owned"),
    ),
    PlantedFault(
        "claim does not lock rows",
        f"{KILLS}[postgres]",
        Edit(POSTGRES_SQL, "        FOR NO KEY UPDATE SKIP LOCKED\n", "", after="-- name: claim_waiting"),
        Edit(POSTGRES_SQL, "    WHERE e.ctid = head.ctid\n", "    WHERE e.id = head.id\n"),
        Edit(POSTGRES_SQL, "        found.ctid,\n", "        found.ctid, found.id,\n"),
    ),
    PlantedFault(
        "event is written outside the transaction",
        f"{STATEMENTS}[postgres]",
        Edit(
            RUNNING,
            "async with connection.transaction(isolation=options.isolation, readonly=options.readonly):",
            "if True:",
        ),
    ),
    PlantedFault(
        "failed operation is not rolled back",
        f"{STATEMENTS}[sqlite]",
        Edit("backends/sqlite/writer.py", 'self._connection.execute(f"ROLLBACK TO {SAVEPOINT}")', "pass"),
    ),
    PlantedFault(
        "leases use the client clock",
        f"{CLOCK}[postgres]",
        Edit("backends/postgres/session.py", "if self._clock else None", "if self._clock else datetime.now(UTC)"),
        Edit("backends/postgres/session.py", "from datetime import datetime", "from datetime import UTC, datetime"),
    ),
    PlantedFault(
        "conflict is reported as a stale lease",
        f"{CONFLICTS}[postgres]",
        Edit(RUNNING, "if not is_conflict(error):", "if not is_conflict(error) or refuse(error):"),
        Edit(
            RUNNING,
            "errors import FlowFabricError, Unavailable",
            "errors import FlowFabricError, InvalidRequest, Unavailable",
        ),
        Edit(RUNNING, "async def run_in_transaction(", REFUSE_CONFLICTS + "async def run_in_transaction("),
    ),
    PlantedFault(
        "idempotency key ignores the namespace",
        f"{KEYS}[sqlite]",
        Edit("ops/executions/submit.py", "tx.idempotency_keys.take(namespace,", 'tx.idempotency_keys.take("",'),
    ),
    PlantedFault(
        "list cursor skips rows",
        f"{LISTS}[sqlite]",
        Edit(
            "backends/sqlite/sql/list.sql",
            "AND e.id < :before",
            "AND e.created_at < COALESCE((SELECT p.created_at FROM ff.execution AS p WHERE p.id = :before), 1 << 62)",
        ),
    ),
    PlantedFault(
        "history cursor skips events",
        f"{HISTORIES}[postgres]",
        Edit("store/sql/event.sql", "AND e.version > :after", "AND e.id > :after"),
    ),
    PlantedFault(
        "repeated request is not recognised",
        REPLIES,
        Edit("core/executions/requests.py", "and former.digest == digest:", "and not former.digest:"),
    ),
    PlantedFault(
        "repeated reclaim does not return its lease",
        REPLIES,
        Edit("ops/leases/reclaim.py", "if _has_lease_of(execution, grant):", "if False:"),
    ),
    PlantedFault(
        "call returns before its commit is durable",
        OUTAGES,
        Edit(POSTGRES, '"synchronous_commit": "on"', '"synchronous_commit": "off"'),
    ),
    PlantedFault(
        "reconcilers stop after the first outage",
        DUTIES,
        Edit(
            "reconcilers/loop.py", '_log.warning("Reconcilers failed, retrying in %g s: %s", pause_s, error)', "return"
        ),
    ),
    PlantedFault(
        "cancelled call leaks its connection",
        f"{AWAITS}[postgres]",
        Edit(POOL, "import random\n", "import random\nimport sys\n"),
        Edit(
            POOL,
            "    self.give_back(connection, is_clean=is_clean)",
            "    isinstance(sys.exc_info()[1], Exception | None) and self.give_back(connection, is_clean=is_clean)",
        ),
    ),
)


@dataclass(frozen=True)
class Verdict:
    """The result of a test run: whether it found a fault, how long it took, and its output."""

    caught: bool
    passed: bool
    took_s: float
    output: str

    @property
    def reason(self) -> str:
        """The first line of the failure, so that a reader can check that the fault caused it."""
        return next((line[1:].strip() for line in self.output.splitlines() if line.startswith("E  ")), "")


def run_with_fault(fault: PlantedFault) -> Verdict:
    """Run the tests against a copy of the sources that contains the fault."""
    with _copied(fault.edits) as source:
        tries = (_try([fault.test], source, LONGEST_S) for _ in range(TRIES))
        first = next(tries)
        return first if first.caught else next((other for other in tries if other.caught), first)


def run_without_fault() -> Verdict:
    """Run the tests against an unchanged copy of the sources.

    `dev.py faults` runs all tests of this folder on the real sources, so only two of them run here. They show that the
    copy is complete. A few tests may fail once, as in `.ci/run`.
    """
    hunters = {fault.test for fault in PLANTED if fault.test.startswith("../")} - {OUTBOX + "[postgres]"}
    tests = sorted({*hunters, f"{KEYS}[sqlite]", f"{IN_FLIGHT}[postgres]"})
    with _copied(()) as source:
        verdict = _try(tests, source, CONTROL_S, TOO_MANY)
        again = [test for test in tests if f"\nFAILED {_address(test)}" in verdict.output]
        return _try(again, source, CONTROL_S) if 0 < len(again) < TOO_MANY else verdict


@contextmanager
def _copied(edits: Sequence[Edit]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        for edit in edits:
            edit.apply(source)
        yield source


def _address(test: str) -> str:
    """Return the name by which pytest reports a test."""
    file, mark, name = f"tests/faults/{test}".partition("::")
    return os.path.normpath(file) + mark + name


def _try(tests: Sequence[str], source: Path, longest_s: float, failures: int = 1) -> Verdict:
    named = [f"tests/faults/{test}" for test in tests]
    # With `--sample`, tests marked `long` run too, but not at full size.
    command = [
        sys.executable,
        "-m",
        "pytest",
        f"--maxfail={failures}",
        "-q",
        "--sample",
        "-p",
        "no:cacheprovider",
        *named,
    ]
    began = time.monotonic()
    environment = os.environ | {"PYTHONPATH": str(source)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=longest_s
        )
    except subprocess.TimeoutExpired:
        return Verdict(False, False, longest_s, "the test timed out\n")
    failed = done.returncode == TESTS_FAILED and "\nFAILED " in done.stdout
    caught = failed and not BADLY_PLANTED.search(done.stdout)
    return Verdict(caught, done.returncode == 0, time.monotonic() - began, done.stdout)


def main(arguments: list[str]) -> int:
    chosen = [fault for fault in PLANTED if not arguments or arguments[0] in fault.name]
    missed = 0
    for fault in chosen:
        verdict = run_with_fault(fault)
        missed += not verdict.caught
        word = "caught" if verdict.caught else "NOT CAUGHT"
        sys.stdout.write(f"{word:10} {verdict.took_s:5.1f} s  {fault.name}  ({fault.test.split('::')[0]})\n")
        sys.stdout.write(f"{'':20}{verdict.reason[:160]}\n")
        sys.stdout.flush()
        if not verdict.caught:
            sys.stdout.write(verdict.output[-4000:])
    sys.stdout.write(f"{len(chosen) - missed} of {len(chosen)} planted faults caught\n")
    return 1 if missed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
