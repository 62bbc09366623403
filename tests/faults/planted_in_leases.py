"""Faults planted in the renewal of leases and in the transactions of user code."""

from __future__ import annotations

from tests.faults.planted_fault import Edit, PlantedFault

RENEW, TRANSACT, TABLE = "ops/leases/renew.py", "ops/leases/checkpoint.py", "worker/leases.py"
LENDING, WRITER, USERS = (
    "backends/sqlite/lending.py", "backends/sqlite/writer.py", "backends/postgres/user_connections.py",
)  # fmt: skip
LOCKED, LIMIT, LENT = (
    f"../conformance/test_{name}.py" for name in ("renew_locked", "step_transaction_limit", "lent_connections")
)
ROW = "test_rows.py::test_row_of_the_scoreboard_has_no_violation"
TOO_LONG = f"{LIMIT}::test_body_that_outlasts_its_limit_is_refused_and_writes_nothing"

PLANTED_IN_LEASES = (
    PlantedFault(
        "renewal waits for a locked row",
        f"{LOCKED}::test_locked_row_is_reported_busy_and_the_others_are_renewed[False-postgres]",
        Edit(RENEW, "await tx.executions.lock_free(ids)", "await tx.executions.lock(namespace, ids)"),
    ),
    PlantedFault(
        "late lease of a locked row is reported lost",
        f"{LOCKED}::test_busy_lease_that_has_ended_is_explained_without_waiting[postgres]",
        Edit(RENEW, "locked.epoch != fence.epoch:", "True:"),
    ),
    PlantedFault(
        "step.tx does not extend its lease",
        f"{LIMIT}::test_body_that_outlasts_its_lease_commits_once_and_keeps_the_lease[postgres]",
        Edit(TRANSACT, "extend_lease(execution, now)", "execution"),
    ),
    PlantedFault(
        "repeated step.tx runs again",
        "../conformance/test_step_transaction.py::test_repeated_call_does_not_run_the_body_of_a_recorded_step[sqlite]",
        Edit(TRANSACT, "if request.repeated_step is not None:", "if False:"),
    ),
    PlantedFault(
        "local clock ends a lease during its step.tx",
        f"{ROW}[slow step.tx-postgres]",
        Edit(TABLE, "if (held := self._held.get(lease_id)) is not None:\n                held.locks += 1", "pass"),
    ),
    PlantedFault(
        "step.tx on SQLite has no limit",
        f"{TOO_LONG}[sleep_after_insert-sqlite]",
        Edit(LENDING, "self.is_over = self._rolling_back = True", "return"),
    ),
    PlantedFault(
        "step.tx on SQLite writes after its limit",
        f"{TOO_LONG}[sleep_then_write-sqlite]",
        Edit(LENDING, "            if self.is_over:\n                raise self._error()\n", ""),
        Edit(LENDING, "if not self._connection.in_transaction:", "if False:"),
        Edit(LENDING, "(action in _FORBIDDEN or self.is_over)", "(action in _FORBIDDEN)"),
    ),
    PlantedFault(
        "step.tx on SQLite keeps the file after its limit",
        f"{LIMIT}::test_file_is_free_at_the_limit_while_the_body_sleeps[sqlite]",
        Edit(LENDING, 'sqlite3.Cursor(self._connection).execute("ROLLBACK").close()', "pass"),
    ),
    PlantedFault(
        "SQLite runs renewals in turn",
        f"{LOCKED}::test_renewal_does_not_wait_behind_queued_writes[sqlite]",
        Edit(WRITER, "self._jobs.appendleft(job)", "self._jobs.append(job)"),
    ),
    PlantedFault(
        "user code can close the connection of the writer",
        f"{LENT}::test_user_code_cannot_close_the_lent_connection[sqlite]",
        Edit(LENDING, "raise sqlite3.ProgrammingError(\"not authorized: only", "super().close()  # (\"only"),
    ),
    PlantedFault(
        "user code ends the savepoint of its step",
        f"{LENT}::test_user_code_can_neither_block_the_writer_nor_end_its_transaction[end_savepoint-sqlite]",
        Edit(LENDING, '(second or "").lower() == SAVEPOINT', "second == SAVEPOINT"),
    ),
    PlantedFault(
        "user code removes the authorizer",
        f"{LENT}::test_user_code_can_neither_block_the_writer_nor_end_its_transaction[remove_authorizer-sqlite]",
        Edit(LENDING, "    def set_authorizer(self, *_", "    def other_authorizer(self, *_"),
    ),
    PlantedFault(
        "writer does not open a connection again",
        f"{LENT}::test_connection_closed_anyway_is_reopened_and_only_that_step_fails[False-sqlite]",
        Edit(WRITER, "self._reopen(self._options.reopen)", "raise"),
    ),
    PlantedFault(
        "user code can close a connection of PostgreSQL",
        f"{LENT}::test_user_code_cannot_close_the_lent_connection[postgres]",
        Edit(USERS, "if self.is_lent and _IN_USER_CODE.get():", "if False:"),
    ),
    PlantedFault(
        "step.tx commits asynchronously under a lax role",
        f"{ROW}[server crash with a lax role-postgres]",
        Edit(USERS, '            "synchronous_commit": "on",\n', ""),
        Edit(USERS, "; SET LOCAL synchronous_commit = on", ""),
        Edit("backends/postgres/sql/join.sql", "'on', TRUE", "current_setting('synchronous_commit'), TRUE"),
    ),
)  # fmt: skip
