"""Faults planted in the repeats of suspends, and in the rule that only a record consumes a signal.

Each of these faults is found in every run, because its test is deterministic.
"""

from __future__ import annotations

from tests.faults.planted_fault import Edit, PlantedFault

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
)
