"""Planted faults in the guards of SQLite files."""

from __future__ import annotations

from tests.faults.planted_fault import Edit, PlantedFault

REPLACED = "../adversity/test_sqlite_replaced.py"
WORKERS = "../adversity/test_sqlite_replaced_worker.py"
COPIES = "../adversity/test_sqlite_copies.py"
ROWS = "test_rows.py::test_row_of_the_scoreboard_has_no_violation"
SQLITE = "backends/sqlite"
NO_FILE_CHECK = Edit(f"{SQLITE}/writer.py", "self._options.file.check()", "pass")
NO_COPY_CHECK = Edit(f"{SQLITE}/opening.py", "must_check = has_store and (", "must_check = False and (")
NO_LOG_CHECK = Edit(f"{SQLITE}/log_check.py", "    raise foreign_log_error(path)\n", "    return True\n")

PLANTED_IN_FILES = (
    PlantedFault("writer does not compare its files", f"{ROWS}[replaced files-sqlite]", NO_FILE_CHECK),
    PlantedFault("writer does not compare its log", f"{ROWS}[deleted logs-sqlite]", NO_FILE_CHECK),
    PlantedFault(
        "commit is acknowledged before the file is checked",
        f"{REPLACED}::test_commit_during_the_fault_is_not_acknowledged",
        Edit(f"{SQLITE}/writer.py", "self._check_file()  # Only after", "pass  # Only after"),
    ),
    PlantedFault(
        "writer uses a replaced file until the commit",
        f"{REPLACED}::test_former_process_runs_no_checkpoint",
        Edit(f"{SQLITE}/writer.py", "        self._check_file()\n        began", "        began"),
    ),
    PlantedFault(
        "writer does not follow the link to its store",
        f"{REPLACED}::test_write_after_a_link_to_the_store_was_changed_is_not_acknowledged[folder]",
        Edit(f"{SQLITE}/store_file.py", "link in (None, path) else", "link != path else"),
    ),
    PlantedFault(
        "close deletes a log by its name",
        f"{REPLACED}::test_close_without_a_failed_call_changes_no_file_at_the_path[delete_log]",
        Edit(f"{SQLITE}/checkpoint.py", "may_clean_up=has_lock and self._file.is_intact()", "may_clean_up=True"),
    ),
    PlantedFault(
        "reader creates an empty file next to the log of a moved store",
        f"{REPLACED}::test_new_readers_after_a_move_leave_the_log_for_the_file_that_is_moved_back",
        Edit(f"{SQLITE}/store_file.py", 'else "mode=ro"', 'else "mode=rwc"'),
    ),
    PlantedFault(
        "reader returns content of a replaced file",
        f"{REPLACED}::test_read_after_the_fault_returns_no_stale_content[replace]",
        Edit(f"{SQLITE}/store.py", "            self._file.check()\n", "            pass\n"),
    ),
    PlantedFault(
        "file that needs a deleted log is accepted",
        f"{COPIES}::test_store_without_the_log_of_an_unfinished_checkpoint_is_always_refused",
        Edit(f"{SQLITE}/log_check.py", "return bool(pages * ", "return False and bool(pages * "),
        Edit(f"{SQLITE}/opening.py", "        _check_alone(path)\n", "        pass\n"),
    ),
    PlantedFault(
        "opening a store ends the locks of this process",
        "../adversity/test_sqlite_processes.py::test_second_engine_of_a_process_keeps_the_locks_of_the_first_one",
        Edit(f"{SQLITE}/log_check.py", "Path(path).stat().st_size)\n", "len(Path(path).read_bytes()))\n"),
    ),
    PlantedFault(
        "connection to a former file is joined",
        f"{REPLACED}::test_connection_that_was_opened_before_the_replacement_is_not_joined",
        Edit(f"{SQLITE}/user_connections.py", "        _check_identity(cursor, file)\n", ""),
    ),
    PlantedFault(
        "worker continues without its store",
        f"{WORKERS}::test_embedded_worker_logs_one_error",
        Edit("core/errors.py", " and error.code in _PERMANENT_CODES", " and not error.code"),
    ),
    PlantedFault("copied store is not checked", f"{COPIES}::test_damaged_copy_is_refused[events]", NO_COPY_CHECK),
    PlantedFault("damaged copies are accepted", f"{ROWS}[copies with cp-sqlite]", NO_COPY_CHECK, NO_LOG_CHECK),
    PlantedFault(
        "log of another file is applied",
        f"{COPIES}::test_log_of_another_file_is_refused_and_not_applied",
        NO_LOG_CHECK,
    ),
    PlantedFault(
        "log without its file is deleted",
        f"{COPIES}::test_log_without_its_file_is_not_deleted",
        Edit(f"{SQLITE}/opening.py", "            raise orphaned_log_error(path)\n", "            pass\n"),
    ),
    PlantedFault(
        "copy keeps its era",
        f"{COPIES}::test_copy_begins_a_new_era_of_event_positions",
        Edit(f"{SQLITE}/opening.py", "            connection.execute(_BEGIN_ERA)\n", ""),
    ),
    PlantedFault(
        "backup keeps the identity of its store",
        f"{COPIES}::test_backup_that_is_copied_over_its_store_begins_a_new_era",
        Edit(f"{SQLITE}/backup.py", 'copy.execute("UPDATE ff_store SET file = ?", (_BACKUP,))', "pass"),
    ),
    PlantedFault(
        "store in use is overwritten by a restore",
        f"{COPIES}::test_restore_over_a_store_in_use_is_refused",
        Edit(f"{SQLITE}/backup.py", "fcntl.lockf(locked[-1], fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)", "pass"),
    ),
    PlantedFault(
        "other users can read a new store",
        f"{COPIES}::test_only_the_owner_can_read_a_new_store[18]",
        Edit(f"{SQLITE}/store_file.py", "_OWNER_ONLY = 0o600", "_OWNER_ONLY = 0o644"),
    ),
    PlantedFault(
        "app follows the working directory",
        f"{COPIES}::test_app_keeps_its_store_after_a_change_of_the_working_directory",
        Edit("app/app.py", "make_absolute(_validate_store(store), self._folder)", "_validate_store(store)"),
    ),
    PlantedFault(
        "key file that others can read is not reported",
        f"{COPIES}::test_key_file_that_others_can_read_logs_a_warning",
        Edit("store/file_permissions.py", "    if can_others_read(path):\n", "    if False:\n"),
    ),
    PlantedFault(
        "missing file locks are reported as a read-only folder",
        f"{COPIES}::test_file_system_without_locks_has_its_own_error",
        Edit(f"{SQLITE}/errors.py", "error.errno in _LOCK_ERRORS", "error.errno in ()"),
    ),
    PlantedFault(
        "invariant is not checked",
        "../conformance/test_find_damage.py::test_violated_invariant_is_reported[postgres-check_versions]",
        Edit("store/sql/check.sql", "WHERE e.version <>", "WHERE FALSE AND e.version <>"),
        Edit("store/sql/check.sql", "    OR e.version <>", "    OR FALSE AND e.version <>"),
    ),
)
