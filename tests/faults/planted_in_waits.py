"""Faults planted in the repeats of suspends, and in the rule that only a record consumes a signal.

Each of these faults is found in every run, because its test is deterministic.
"""

from __future__ import annotations

from tests.faults.planted_fault import Edit, PlantedFault

BACKLOG, SCHEMAS, SKIP = (
    "../conformance/test_signal_backlog.py",
    "../conformance/test_signal_schemas.py",
    "../conformance/test_skip_signal.py",
)
DECIDE, DECISIONS = "../conformance/test_decide.py", "../concurrency/test_decisions_race.py"
BESIDE = "../end_to_end/client/test_waits_beside_steps.py"
UNREADABLE = "../end_to_end/durable/test_unreadable_signals.py"
IDS, STANDING, USE = (
    "../conformance/test_suspend_ids.py",
    "../conformance/test_standing_waitpoints.py",
    "../end_to_end/durable/test_signal_use.py",
)
WAIT_SQL, SUSPEND, WAIT_SIGNAL = "store/sql/wait.sql", "core/waits/suspend.py", "runtime/calls/wait_signal.py"

PLANTED_IN_SIGNALS = (
    PlantedFault(
        "satisfied suspend is not recognized by its id",
        f"{IDS}::test_repeat_of_a_satisfied_suspend_returns_the_first_result_with_its_signals[postgres]",
        Edit("store/waits.py", "or by_id.get((name.execution_id, name.id))", ""),
    ),
    PlantedFault(
        "task mints a new suspension id for each repeat",
        f"{USE}::test_satisfied_suspend_whose_reply_is_lost_keeps_its_signal[memory]",
        Edit("runtime/suspension.py", "            id=id_,\n", "            id=run.engine.mint_id(),\n"),
        Edit(
            WAIT_SIGNAL, "StandingWaitpoint(key, signals.position(key), signals.skipped(key))", "StandingWaitpoint(key)"
        ),
    ),
    PlantedFault(
        "error of a suspend lacks the id",
        f"{IDS}::test_error_of_a_suspend_carries_the_id_with_which_it_can_be_repeated[sqlite]",
        Edit("engine/leases.py", "raise with_ids(error, id=request.suspension_id) from error", "raise"),
    ),
    PlantedFault(
        "other content under a suspension id is accepted",
        f"{IDS}::test_other_content_under_the_same_id_is_refused_with_the_outcome[sqlite]",
        Edit("ops/waits/suspend.py", "if existing.digest != request.digest():", "if False:"),
    ),
    PlantedFault(
        "suspension consumes the signals that it observes",
        f"{USE}::test_loser_of_a_race_does_not_use_its_signal[memory]",
        Edit("ops/waits/load.py", "positioned.append(waitpoint)", "pass"),
    ),
    PlantedFault(
        "observed signal is not returned to the queue",
        f"{STANDING}::test_observed_signal_stays_available_after_suspensions_that_do_not_count_it[postgres]",
        Edit(SUSPEND, "suspension.number, orders, released)", "suspension.number, orders)"),
    ),
    PlantedFault(
        "losers of a race use signals",
        f"{USE}::test_loser_of_a_race_does_not_use_its_signal[memory]",
        Edit("runtime/suspension.py", "branch.race.has_winner = True", "pass"),
    ),
    PlantedFault(
        "condition skips signals for good",
        f"{USE}::test_signals_that_a_condition_does_not_count_stay_in_order[memory]",
        Edit(WAIT_SIGNAL, "reserve(self.reserved, available)", "reserve(self.reserved, self.reserved)"),
    ),
    PlantedFault(
        "continuation forgets skipped signals",
        f"{USE}::test_signals_that_a_condition_does_not_count_survive_a_continuation_and_replays[memory]",
        Edit("runtime/waits.py", '({"skipped": skipped} if skipped else {})', "{}"),
    ),
    PlantedFault(
        "signals wait for the record of a later wait",
        f"{USE}::test_released_signal_is_available_and_older_than_the_position",
        Edit("runtime/waits.py", "self._reserved[signal.waitpoint].discard(signal.seq)", "pass"),
    ),
    PlantedFault(
        "wait beside a step opens no waitpoint",
        f"{BESIDE}::test_undeclared_signal_is_accepted_while_another_branch_runs_a_step[sqlite]",
        Edit("runtime/suspension.py", "                await self._open_waitpoints()\n", ""),
    ),
    PlantedFault(
        "waitpoint of an ended wait stays open",
        f"{BESIDE}::test_waitpoints_of_waits_that_ended_beside_a_step_are_closed[sqlite]",
        Edit(
            "runtime/durable_call.py", 'await suspender.close_opened(opened, f"{self.path} has ended")', "list(opened)"
        ),
    ),
    PlantedFault(
        "wait beside a step takes a second signal",
        f"{BESIDE}::test_pending_wait_for_an_undeclared_signal_takes_one_signal[sqlite]",
        Edit(
            "ops/waits/deliver_signal.py", "    if not ended:\n        return waitpoints\n", "    return waitpoints\n"
        ),
    ),
    PlantedFault(
        "store does not check payloads",
        f"{SCHEMAS}::test_payload_that_does_not_fit_a_declared_signal_is_refused_and_nothing_is_stored[postgres]",
        Edit("ops/waits/deliver_signal.py", "if waitpoint.payload_schema is not None and", "if False and"),
    ),
    PlantedFault(
        "schema of a callback is not stored",
        f"{UNREADABLE}::test_wrong_callback_gets_422_from_a_process_that_never_ran_the_task[memory]",
        Edit("runtime/calls/approval.py", "ends_at=due, schema=self.schema)", "ends_at=due)"),
    ),
    PlantedFault(
        "replay forgets the schemas of declared signals",
        f"{SCHEMAS}::test_declared_schema_is_kept_by_a_replay_and_ignored_by_a_repeated_submit[sqlite]",
        Edit("store/waits.py", '[row["key"]] = row["payload_schema"]', '[row["key"]] = None'),
    ),
    PlantedFault(
        "schema refuses JSON that the type accepts",
        "../unit/values/test_schemas.py",
        Edit(
            "values/schemas.py",
            '"lax-or-strict": "lax_schema",',
            '"lax-or-strict": "lax_schema", "function-before": "schema",',
        ),
    ),
    PlantedFault(
        "unreadable signal is returned to the next read",
        f"{SKIP}::test_skipped_signal_ends_no_wait_and_is_in_the_history_once[postgres]",
        Edit(WAIT_SQL, "    suspension = :skipped,\n    counts = FALSE", "    counts = FALSE"),
    ),
    PlantedFault(
        "unreadable signal is noted twice",
        f"{SKIP}::test_skipped_signal_ends_no_wait_and_is_in_the_history_once[sqlite]",
        Edit(WAIT_SQL, "    AND COALESCE(g.suspension, -1) <> :skipped\n", ""),
    ),
    PlantedFault(
        "wait returns a signal that it cannot read",
        f"{UNREADABLE}::test_wait_skips_a_signal_that_no_schema_refuses[memory-declared]",
        Edit(WAIT_SIGNAL, "self._is_in_time(signal) and self._can_read(signal)", "self._is_in_time(signal)"),
    ),
    PlantedFault(
        "suspend reads the whole queue",
        f"{BACKLOG}::test_cost_of_a_queued_signal_does_not_depend_on_the_length_of_the_queue[sqlite-single]",
        Edit("ops/waits/load.py", "limits.get(waitpoint.key, 1)", "10_000"),
    ),
    PlantedFault(
        "suspend reads only the first signals of a queue",
        f"{BACKLOG}::test_condition_finds_a_signal_behind_many_that_do_not_match[postgres]",
        Edit(
            "ops/waits/load.py",
            "if len(more := _after(queue, page)) >= queue.limit",
            "if len(more := _after(queue, page)) > queue.limit",
        ),
    ),
    PlantedFault(
        "task reads only the first signals of a queue",
        f"{UNREADABLE}::test_queued_signals_that_cannot_be_read_are_skipped_together[memory]",
        Edit("runtime/suspension.py", "or not await reader.read_more(wait.keys())", "or True"),
        Edit("runtime/suspension.py", "        return any_ended or has_skipped\n", "        return any_ended\n"),
    ),
    PlantedFault(
        "signal with a token is a second decision",
        f"{DECIDE}::test_first_decision_of_an_approver_counts_whichever_way_it_comes[sqlite-link]",
        Edit("ops/waits/deliver_signal.py", "else as_decision(delivery.request, waitpoint)", "else delivery.request"),
    ),
    PlantedFault(
        "operator and link decide once each",
        f"{DECISIONS}::test_link_and_operator_decide_at_the_same_moment_and_one_decision_counts[postgres]",
        Edit(
            "core/waits/decisions.py",
            "    if waitpoint.approver is not None:\n        return DECISION_KEY\n",
            "",
        ),
    ),
    PlantedFault(
        "decision is not on record",
        f"{DECIDE}::test_principal_decides_for_an_approver_and_is_on_record[sqlite]",
        Edit("core/waits/decisions.py", "principal=request.principal if is_known else None", "principal=None"),
    ),
    PlantedFault(
        "everyone decides for everyone",
        f"{DECIDE}::test_principal_cannot_decide_for_another_approver_by_mistake[postgres]",
        Edit("core/waits/decisions.py", "    _check_approver(request, waitpoint)\n", ""),
    ),
    PlantedFault(
        "late decision is refused with the state before it",
        f"{DECISIONS}::test_decision_behind_the_end_of_its_wait_is_refused_with_the_reason[postgres-by_link]",
        Edit(
            "ops/waits/decide.py",
            "        waitpoint, execution = await _find(tx, namespace, query, request.keys)\n        raise",
            "        raise",
        ),
        Edit("ops/waits/decide.py", "waitpoint, _ = await _find", "waitpoint, execution = await _find"),
    ),
    PlantedFault(
        "page asks for a decision again",
        "../end_to_end/web/test_links.py::test_opening_a_link_again_shows_the_decision[sqlite]",
        Edit("web/links.py", "    if wait.decisions:\n", "    if False:\n"),
    ),
)
