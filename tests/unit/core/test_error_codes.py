"""Tests that the table of error codes equals the codes that the source can raise."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import flowfabric
from flowfabric.backends.postgres import errors as postgres_errors
from flowfabric.backends.sqlite import errors as sqlite_errors
from flowfabric.core.executions.transitions import TRANSITIONS

SOURCE = Path(flowfabric.__file__).parent
KINDS = {"InvalidRequest", "Refused", "NotFound", "Conflict", "Unavailable"}

# The stable codes of the contract, by error class.
TABLE = {
    "InvalidRequest": """
        connection_not_async connection_not_sync connection_of_another_thread no_transaction other_database
        schema_missing transaction_aborted transaction_read_only unsupported_connection
        cursor_foreign cursor_invalid deadline_in_past driver_missing invalid_capabilities invalid_choice
        invalid_duration
        invalid_fence invalid_id invalid_name invalid_policy invalid_request invalid_tag_key invalid_text invalid_type
        invalid_url naive_datetime network_file_system not_a_test_store out_of_range payload_too_large
        time_out_of_range too_many_steps too_many_tags unknown_field unsafe_durability unsupported_version
        allof_empty_members anyof_empty_members condition_depth_exceeded count_exceeds_sources
        count_exceeds_waitpoint_set count_n_too_large count_n_zero count_waitpoints_empty missing_field
        timeout_only_without_deadline too_many_leaves too_many_waitpoints waitpoint_not_bound waitpoint_not_used
        file_locks_missing invalid_key_file invalid_kid invalid_secret_hex invalid_token timeout_at_in_past
        payload_mismatch invalid_schema
        cycle duplicate_edge duplicate_member invalid_quorum quorum_exceeds_edges self_edge too_many_members
        unknown_member
        annotation_invalid annotation_unresolved app_not_found app_unknown async_call_in_plain_task awaited_twice
        blocks_the_loop direct_call durable_call_in_raw_task durable_call_in_raw_thread durable_call_in_step
        empty_race flow_wait_in_task foreign_member group_in_raw_task import_failed invalid_approvers
        invalid_arguments invalid_task kind_taken loop_is_running never_awaited no_tokens no_url one_join_per_member
        other_app other_task outside_of_task policy_refused result_not_yet_known run_while_importing step_key_repeated
        task_called
        sync_call_in_async_task target_not_found too_many_waits type_not_storable wait_in_raw_task wait_not_understood
        within_not_possible
        invalid_address invalid_file invalid_input invalid_json invalid_time other_namespace other_option other_store
        unknown_kind
        backup_unsupported
        not_an_approval several_approvals ambiguous_id
        pooler_undeclared rows_hidden unsupported_encoding
    """,
    "Refused": """
        capability_mismatch different_worker execution_not_active execution_not_eligible execution_not_leaseable
        execution_not_reclaimable execution_not_terminal generation_moved grant_already_consumed grant_already_exists
        grant_expired lane_draining lane_paused lease_expired lease_revoked max_replays_exhausted
        not_a_resumed_execution stale_lease cursor_expired subscription_lost
        execution_not_suspended key_secret_missing keys_kept_in_file signal_limit_exceeded target_not_signalable
        token_expired too_many_open_waitpoints waitpoint_closed
        downstream_already_started flow_already_terminal flow_sealed
        not_confirmed
        transaction_too_long
        backup_exists store_in_use
        approval_closed not_the_approver
    """,
    "NotFound": """
        execution_not_found grant_not_found step_not_found suspension_not_found waitpoint_not_found
        child_not_found flow_not_found member_not_found subscriber_not_found worker_not_found
        approval_not_open signal_not_expected token_not_found
    """,
    "Conflict": """
        another_key_active idempotency_mismatch key_check_mismatch rotation_conflict step_already_recorded
        waitpoint_already_exists stale_revision instance_reassigned
    """,
    "Unavailable": """
        lease_busy
        access_denied connection_closed connection_lost transaction_conflict
        retry_exhausted schema_edited schema_newer schema_outdated server_unreachable statement_timeout store_not_found
        storage_busy storage_damaged storage_error storage_full storage_io_error storage_not_found storage_read_only
        storage_log_mismatch storage_refused storage_replaced storage_without_locks
        storage_without_wal store_closed store_forked too_many_connections
        other_event_loop server_read_only
    """,
}
# The error class and code of each call whose code is not a literal, by file.
INDIRECT: dict[str, set[tuple[str, str]]] = {
    "engine/batcher.py": set(),  # Raises the same error again for each caller of a batch.
    "engine/repeats.py": set(),  # Raises the same error again, with the ids of the call.
    "backends/postgres/user_connections.py": set(),  # Raises the same error again, if no user code has run.
    "core/waits/condition_json.py": set(),  # Raises the same error again with its path in the condition.
    "cli/targets.py": {("NotFound", "execution_not_found"), ("NotFound", "flow_not_found")},
    "core/executions/requests.py": {
        ("Refused", "lease_expired"),
        ("Refused", "lease_revoked"),
        ("Refused", "execution_not_active"),
    },
    "runtime/options.py": set(),  # Raises the same error again, with an example.
    "core/validation.py": {("InvalidRequest", "invalid_choice"), ("InvalidRequest", "invalid_policy")},
    "core/executions/transitions.py": {("Refused", transition.refusal) for transition in TRANSITIONS},
    "core/executions/operator.py": {("Refused", transition.refusal) for transition in TRANSITIONS},
    "core/waits/resume.py": {("Refused", transition.refusal) for transition in TRANSITIONS},
    "core/waits/signals.py": {("Refused", transition.refusal) for transition in TRANSITIONS},
    "backends/postgres/errors.py": {("Unavailable", code) for _, code, _ in postgres_errors._MEANING},
    "backends/sqlite/errors.py": {("Unavailable", code) for code, _ in sqlite_errors._MEANING.values()},
}


@cache
def _find_error_calls() -> list[tuple[str, str, ast.expr]]:
    """Return the file, error class and code expression of every call that creates one of our errors."""
    calls: list[tuple[str, str, ast.expr]] = []
    for file in sorted(SOURCE.rglob("*.py")):
        file_name = file.relative_to(SOURCE).as_posix()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id=kind), args=[code, *_]) if kind in KINDS:
                    calls.append((file_name, kind, code))
                case ast.Call(func=ast.Name(id="refusal"), args=[_, code, *_]):
                    calls.append((file_name, "Refused", code))
    return calls


def _collect_raised_codes() -> set[tuple[str, str]]:
    codes = set().union(*INDIRECT.values())
    for _, kind, code in _find_error_calls():
        if isinstance(code, ast.Constant):
            codes.add((kind, str(code.value)))
    return codes


def _collect_listed_codes() -> set[tuple[str, str]]:
    return {(kind, code) for kind, codes in TABLE.items() for code in codes.split()}


def test_every_code_that_can_be_raised_is_in_the_table() -> None:
    assert _collect_raised_codes() - _collect_listed_codes() == set()


def test_every_code_in_the_table_is_raised() -> None:
    assert _collect_listed_codes() - _collect_raised_codes() == set()


def test_codes_that_are_not_literals_come_from_known_files() -> None:
    indirect = {file_name for file_name, _, code in _find_error_calls() if not isinstance(code, ast.Constant)}
    assert indirect == set(INDIRECT)


def test_code_belongs_to_one_error_class() -> None:
    codes = [code for _, code in _collect_listed_codes()]
    assert len(codes) == len(set(codes))


def test_codes_are_snake_case() -> None:
    assert all(code.replace("_", "a").isalpha() and code == code.lower() for _, code in _collect_listed_codes())


def test_search_finds_calls_of_every_error_class() -> None:
    """Check the search itself, because a search that finds nothing could not reveal a missing code."""
    assert len(_find_error_calls()) > 40
    assert {kind for _, kind, _ in _find_error_calls()} == KINDS
