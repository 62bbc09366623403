"""Faults planted on purpose, one at a time, in a copy of the sources: the harness is worth what it finds of them.

usage: python -m tests.faults.planted [part of a name]

For every fault the test that should find it runs against the copy, in a process of its own; some faults show only by
chance, so it may run three times. Found is a fault only by what the test looks for: sources that cannot be imported, or
break with a TypeError, prove nothing. A fault that is not found fails the command, and so does one whose place in the
sources is gone. Against a copy without any fault these tests must pass.
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

from tests.faults.planted_in_flows import PLANTED_IN_FLOWS
from tests.faults.plants import Edit, Planted

ROOT = Path(__file__).parent.parent.parent
TESTS_FAILED = 1
LONGEST_S = 120.0
CONTROL_S = 400.0
# What a fault would raise that was planted badly, wherever that is told.
BADLY_PLANTED = re.compile(
    r"^E .*\b(Import|ModuleNotFound|Syntax|Indentation|Name|UnboundLocal|Attribute|Type)Error\b", re.MULTILINE
)
TRIES = 3


POSTGRES, RUNNING = "backends/postgres/store.py", "backends/postgres/running.py"
POOL = "backends/postgres/pool.py"
POSTGRES_SQL, SQLITE_SQL = "backends/postgres/sql/hot.sql", "backends/sqlite/sql/hot.sql"
REFUSE_CONFLICTS = """
def refuse(error: Exception) -> bool:
    raise InvalidRequest("stale_lease", "somebody else was faster") from error


"""
KILLS = "test_kills.py::test_workers_killed_at_random_lose_nothing_and_double_nothing"
ZOMBIES = "test_zombies.py::test_zombies_change_nothing"
STATEMENTS = "test_statements_fail.py::test_all_or_nothing_at_every_statement_of_every_operation"
CONFLICTS = "test_statements_fail.py::test_a_conflict_at_any_statement_is_retried_and_never_seen"
AWAITS = "test_cancelled_awaits.py::test_every_await_of_every_operation_can_be_cancelled"
REPLIES = "test_lost_replies.py::test_a_lost_reply_to_a_commit_never_makes_a_second_effect"
OUTAGES = "test_outages.py::test_engines_come_back_by_themselves"
DUTIES = "test_outages.py::test_duties_that_met_an_outage_go_on_after_it"
IN_FLIGHT = "test_narrow_places.py::test_a_write_that_waits_while_its_lease_is_lost_is_refused"
CLOCK = "test_narrow_places.py::test_the_clock_of_a_client_moves_no_lease"
KEYS = "test_narrow_places.py::test_the_same_key_in_two_namespaces_is_two_submissions"
LISTS = "test_narrow_places.py::test_a_list_read_page_by_page_misses_and_repeats_nothing_while_work_goes_on"
HISTORIES = "test_narrow_places.py::test_a_history_read_page_by_page_misses_and_repeats_nothing_while_it_grows"

LOST = "test_lost_answers.py::test_what_is_repeated_after_a_lost_answer_is_answered_with_what_was_written"
KILLED_WAITS = "test_killed_waits.py::test_a_wait_that_ended_is_over_for_whoever_takes_the_work_of_a_killed_worker"
RACES, LIVES = "../concurrency/test_waits_race.py", "../concurrency/test_random_waits.py"
RINGS, BATCHES = "../concurrency/test_keys_race.py", "../concurrency/test_waits_batching.py"
SUSPEND, DELIVER, WAIT_SQL = "ops/suspend.py", "ops/deliver_signal.py", "sqlstore/sql/wait.sql"
KEY_SQL = "sqlstore/sql/signing_key.sql"
UNLOCKED, UNLOCKED_SQL = "../concurrency/test_unlocked.py", "backends/postgres/sql/unlocked.sql"

PLANTED_IN_WAITS = (
    Planted(
        "early signals are not looked at",
        f"{RACES}::test_a_signal_and_the_suspend_that_waits_for_it_find_each_other[sqlite-pending-signal first]",
        Edit("core/suspending.py", "for facts in room.unused.get(item.waitpoint.id, ()) if", "for facts in () if"),
    ),
    Planted(
        "early signals do not count later",
        f"{LIVES}::test_lives_at_random_lose_no_signal_and_resume_once[sqlite]",
        Edit(WAIT_SQL, "counts = seq IN :counting", "counts = seq IN :counting AND FALSE"),
    ),
    Planted(
        "what has ended stays open",
        f"{RACES}::test_a_signal_comes_before_a_cancel_or_is_refused[sqlite-signal second]",
        Edit("ops/writing.py", "    if ended:\n", "    if False:\n"),
    ),
    Planted(
        "a resume of another suspension",
        f"{RACES}::test_of_a_signal_and_an_operator_one_resumes[postgres-this suspension-signal first]",
        Edit("ops/resume.py", "(wait is None or wait.suspension.id != suspension_id)", "False"),
    ),
    Planted(
        "a waitpoint is closed as it was",
        f"{RACES}::test_a_signal_that_resumes_and_a_close_of_its_waitpoint_both_know_who_was_first"
        "[postgres-signal first]",
        Edit("ops/resume.py", "    found = await tx.waits.waitpoints([waitpoint_id])\n", "", after="# It may have"),
    ),
    Planted(
        "the key of a suspension is forgotten",
        f"{KILLED_WAITS}[sqlite-answered]",
        Edit(SUSPEND, "if item.key]", "if False]"),
    ),
    Planted(
        "a signal is not known again",
        f"{LOST}[sqlite-deliver_signal, satisfying]",
        Edit(DELIVER, "            if id_ in earlier:\n", "            if False:\n"),
    ),
    Planted(
        "an approval is not known again",
        f"{LOST}[postgres-approve]",
        Edit(DELIVER, "await tx.waits.last_waitpoint(item.execution_id, item.key, now)", "None"),
    ),
    Planted(
        "a contradiction is told to all",
        f"{BATCHES}::test_a_spoiled_suspend_is_refused_alone[sqlite-a step says otherwise]",
        Edit(SUSPEND, "        if shared:\n", "        if not shared:\n"),
    ),
    Planted(
        "a refused suspend draws a key",
        f"{ZOMBIES}[sqlite]",
        Edit(
            SUSPEND,
            "    around = await _around(tx, here, found, keys)\n",
            "    around = await _around(tx, here, found, keys)\n"
            "    around = replace(around, ring=around.ring or await minting_ring(tx, keys, now))\n",
        ),
    ),
    Planted(
        "keys rotate without a lock",
        RINGS,
        Edit(KEY_SQL, "FOR NO KEY UPDATE\n", ""),
    ),
    Planted(
        "minting beside a rotation",
        f"{RINGS}::test_a_token_that_is_minted_before_a_rotation_is_counted_by_it[postgres]",
        Edit(KEY_SQL, "FOR SHARE\n", ""),
        Edit(UNLOCKED_SQL, "FOR SHARE\n", ""),
    ),
    Planted(
        "what was touched is written over",
        f"{UNLOCKED}::test_what_happens_between_look_and_signal_is_seen[tagged-None-postgres]",
        Edit(UNLOCKED_SQL, "e.xmin = seen.mark", "seen.mark IS NOT NULL"),
    ),
    Planted(
        "waits change behind the row of their execution",
        f"{UNLOCKED}::test_whoever_changes_what_hangs_on_an_execution_writes_its_row[postgres]",
        Edit("sqlstore/transaction.py", "touched(written.waits) - saved", "set()"),
    ),
    Planted(
        "a lease that has run out suspends",
        f"{UNLOCKED}::test_a_lease_that_runs_out_between_look_and_suspend_is_lost[postgres]",
        Edit(UNLOCKED_SQL, "NOT seen.owned OR ", "TRUE OR "),
    ),
    Planted(
        "a retired key mints",
        f"{UNLOCKED}::test_a_key_that_is_rotated_between_look_and_suspend_mints_nothing[postgres]",
        Edit(UNLOCKED_SQL, ":kid::TEXT IS NULL OR EXISTS", "TRUE OR EXISTS"),
    ),
    Planted(
        "the loser of an empty ring is told that it won",
        f"{RINGS}::test_two_rotations_at_once_are_two_rotations[postgres-an empty ring]",
        Edit("ops/key_ring.py", "return await _rotate(tx, rotation, now, keep_secret=keep_secret)", "break"),
    ),
)

LATE = "../conformance/test_subscribe_late.py"
OUTBOX_SQL = "backends/postgres/sql/outbox.sql"
OUTBOX = "../concurrency/test_outbox.py::test_four_readers_miss_nothing_of_what_eight_writers_write"
NAMES = "../conformance/test_named_subscribers.py"

PLANTED_IN_EVENTS = (
    Planted(
        "events are read before the late ones",
        f"{LATE}::test_an_event_that_commits_late_is_waited_for_and_not_missed",
        Edit(OUTBOX_SQL, "AND transaction_id < (SELECT horizon.xid FROM horizon)", ""),
    ),
    Planted(
        "events are read before the late ones, under a storm",
        f"{OUTBOX}[postgres]",
        Edit(OUTBOX_SQL, "AND transaction_id < (SELECT horizon.xid FROM horizon)", ""),
    ),
    Planted(
        "events in the order of transactions alone",
        f"{LATE}::test_versions_are_in_order_though_transaction_ids_are_not",
        Edit(OUTBOX_SQL, "event_xid = GREATEST(event_xid, pg_current_xact_id())", "event_xid = pg_current_xact_id()"),
        Edit(OUTBOX_SQL, "GREATEST(pg_current_xact_id(), (SELECT", "COALESCE(pg_current_xact_id(), (SELECT"),
    ),
    Planted(
        "two processes read under one name",
        f"{NAMES}::test_a_second_process_stands_by_until_the_first_is_gone[sqlite]",
        Edit("core/subscribing.py", "return not (held_by_another and", "return not (False and"),
    ),
    Planted(
        "trimming does not wait for a name",
        f"{NAMES}::test_events_of_removed_executions_stay_until_every_name_has_passed[postgres]",
        Edit("core/trimming.py", "item.last is None or slowest is None or item.last <= slowest", "True"),
    ),
)  # fmt: skip
PLANTED = (
    *PLANTED_IN_WAITS,
    *PLANTED_IN_FLOWS,
    *PLANTED_IN_EVENTS,
    Planted(
        "no fence check",
        f"{ZOMBIES}[sqlite]",
        *(Edit(SQLITE_SQL, f"    AND e.lease_id = {source}.lease_id\n", "") for source in ("item", "fence")),
        *(Edit(SQLITE_SQL, f"    AND e.epoch = {source}.epoch\n", "") for source in ("item", "fence")),
    ),
    Planted(
        "no fence check in one statement",
        f"{ZOMBIES}[postgres]",
        Edit(POSTGRES_SQL, "        AND e.epoch = item.epoch\n", "", after="-- name: complete_if_owned"),
        Edit(POSTGRES_SQL, "        AND e.lease_id = item.lease_id\n", "", after="-- name: complete_if_owned"),
    ),
    Planted(
        "no phase guard",
        f"{ZOMBIES}[sqlite]",
        Edit("core/transitions.py", "if execution.state not in transition.sources or wrong_owner:", "if wrong_owner:"),
    ),
    Planted(
        "no bump on expiry",
        f"{ZOMBIES}[sqlite]",
        Edit("core/transitions.py", ", new_epoch=True", "", after="REQUEUE_EXPIRED = "),
    ),
    Planted("epoch starts over", f"{ZOMBIES}[sqlite]", Edit(SQLITE_SQL, "epoch = e.epoch + 1,", "epoch = 1,")),
    Planted(
        "renewal revives",
        f"{ZOMBIES}[sqlite]",
        Edit(SQLITE_SQL, "    AND e.lease_expires_at > item.now\n", "", after="-- name: renew_if_owned"),
    ),
    Planted(
        "checkpoint by plain join",
        f"{IN_FLIGHT}[postgres]",
        Edit(POSTGRES_SQL, "    FOR NO KEY UPDATE OF e SKIP LOCKED\n", "", after="-- name: record_steps_if_owned"),
    ),
    Planted(
        "naive claim without lock",
        f"{KILLS}[postgres]",
        Edit(POSTGRES_SQL, "        FOR NO KEY UPDATE SKIP LOCKED\n", "", after="-- name: claim_waiting"),
    ),
    Planted(
        "event outside the transaction",
        f"{STATEMENTS}[postgres]",
        Edit(
            RUNNING,
            "async with connection.transaction(isolation=manner.isolation, readonly=manner.readonly):",
            "if True:",
        ),
    ),
    Planted(
        "failed operation not rolled back",
        f"{STATEMENTS}[sqlite]",
        Edit("backends/sqlite/writer.py", 'self._connection.execute(f"ROLLBACK TO {SAVEPOINT}")', "pass"),
    ),
    Planted(
        "client clock",
        f"{CLOCK}[postgres]",
        Edit("backends/postgres/session.py", "if self._clock else None", "if self._clock else datetime.now(UTC)"),
        Edit("backends/postgres/session.py", "from datetime import datetime", "from datetime import UTC, datetime"),
    ),
    Planted(
        "retry mapped to stale",
        f"{CONFLICTS}[postgres]",
        Edit(RUNNING, "if not is_conflict(error):", "if not is_conflict(error) or refuse(error):"),
        Edit(RUNNING, "errors import Unavailable", "errors import InvalidRequest, Unavailable"),
        Edit(RUNNING, "async def run_in_transaction(", REFUSE_CONFLICTS + "async def run_in_transaction("),
    ),
    Planted("unscoped key", f"{KEYS}[sqlite]", Edit("ops/submit.py", "tx.keys.take(namespace,", 'tx.keys.take("",')),
    Planted(
        "naive cursor over a list",
        f"{LISTS}[sqlite]",
        Edit(
            "backends/sqlite/sql/list.sql",
            "AND q.id < :before",
            "AND q.created_at < COALESCE((SELECT p.created_at FROM ff.execution AS p WHERE p.id = :before), 1 << 62)",
        ),
    ),
    Planted(
        "naive cursor over a history",
        f"{HISTORIES}[postgres]",
        Edit("sqlstore/sql/event.sql", "AND e.version > :after", "AND e.id > :after"),
    ),
    Planted(
        "repeated request not recognised",
        REPLIES,
        Edit("core/fences.py", "and former.digest == digest:", "and not former.digest:"),
    ),
    Planted(
        "reclaim forgets its lease",
        REPLIES,
        Edit("ops/reclaim.py", "if _answered_before(execution, grant):", "if False:"),
    ),
    Planted(
        "acknowledged before it is durable",
        OUTAGES,
        Edit(POSTGRES, '"synchronous_commit": "on"', '"synchronous_commit": "off"'),
    ),
    Planted(
        "reconcilers end with the first outage",
        DUTIES,
        Edit("reconcilers/loop.py", '_log.warning("reconcilers: %s", error)', "return"),
    ),
    Planted(
        "connection lost with a cancelled call",
        f"{AWAITS}[postgres]",
        Edit(POOL, "self._pool.give_back(", "isinstance(error, Exception | None) and self._pool.give_back("),
    ),
)


@dataclass(frozen=True)
class Verdict:
    """Whether the harness found a fault, or nothing at all, how long it took, and what it said."""

    caught: bool
    passed: bool
    took_s: float
    output: str

    @property
    def reason(self) -> str:
        """The first line of the failure, which shows that it is the right one."""
        return next((line[1:].strip() for line in self.output.splitlines() if line.startswith("E  ")), "")


def hunt(fault: Planted) -> Verdict:
    """Runs the harness against a copy of the sources with the fault in it."""
    with _copied(fault.edits) as source:
        tries = (_try([fault.test], source, LONGEST_S) for _ in range(TRIES))
        first = next(tries)
        return first if first.caught else next((other for other in tries if other.caught), first)


def control() -> Verdict:
    """Runs the tests that hunt against a copy of the sources as they are; those that run in full beside this one, as
    they do in `dev.py faults`, only as far as it shows that the copy is whole."""
    hunters = {fault.test for fault in PLANTED if fault.test.startswith("../")} - {OUTBOX + "[postgres]"}
    with _copied(()) as source:
        return _try(sorted({*hunters, f"{KEYS}[sqlite]", f"{IN_FLIGHT}[postgres]"}), source, CONTROL_S)


@contextmanager
def _copied(edits: Sequence[Edit]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        for edit in edits:
            edit.apply(source)
        yield source


def _try(tests: Sequence[str], source: Path, longest_s: float) -> Verdict:
    named = [f"tests/faults/{test}" for test in tests]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *named]
    began = time.monotonic()
    environment = os.environ | {"PYTHONPATH": str(source)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=longest_s
        )
    except subprocess.TimeoutExpired:
        return Verdict(False, False, longest_s, "the test did not come to an end\n")
    failed = done.returncode == TESTS_FAILED and "\nFAILED " in done.stdout
    caught = failed and not BADLY_PLANTED.search(done.stdout)
    return Verdict(caught, done.returncode == 0, time.monotonic() - began, done.stdout)


def main(arguments: list[str]) -> int:
    chosen = [fault for fault in PLANTED if not arguments or arguments[0] in fault.name]
    missed = 0
    for fault in chosen:
        verdict = hunt(fault)
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
