"""Planted faults in the treatment of changed and unusual code: each removes one guard."""

from __future__ import annotations

from tests.faults.planted_fault import Edit, PlantedFault

POSTPONE, GUARDS, JOURNAL = "core/executions/postpone.py", "values/guards.py", "runtime/journal.py"
POSTPONED = "../conformance/test_postpone.py"
KEYS = "../end_to_end/durable/test_changed_keys.py"
VERSIONS = "../end_to_end/worker/test_code_versions.py"
HOSTILE = "../end_to_end/outcomes/test_hostile_errors.py"

PLANTED_IN_CODE = (
    PlantedFault(
        "diverged work is held although another version lives",
        f"{VERSIONS}::test_old_worker_releases_work_of_new_code_and_the_new_worker_completes_it[sqlite]",
        Edit(POSTPONE, "if not remaining or (", "if True or ("),
    ),
    PlantedFault(
        "diverged work is never held while other versions live",
        f"{POSTPONED}::test_diverged_work_is_held_after_15_minutes[postgres]",
        Edit(POSTPONE, "now - earlier.since >= MAX_DIVERGED_FOR", "False"),
    ),
    PlantedFault(
        "versions that diverged earlier are forgotten",
        f"{POSTPONED}::test_diverged_work_is_held_after_all_live_versions_diverged[sqlite]",
        Edit(POSTPONE, "{request.version, *(earlier.versions if earlier else ())}", "{request.version}"),
    ),
    PlantedFault(
        "diverged work waits for workers that cannot run it",
        f"{POSTPONED}::test_workers_that_cannot_run_the_execution_do_not_count[postgres]",
        Edit("ops/leases/postpone.py", " if can_run(worker, execution, requires)", ""),
    ),
    PlantedFault(
        "progress does not end a series of divergences",
        f"{POSTPONED}::test_progress_by_matching_code_begins_a_new_series[sqlite]",
        Edit(POSTPONE, 'if event.epoch != epoch and details["step_seq"] != progress:', "if False:"),
    ),
    PlantedFault(
        "a hold does not end a series of divergences",
        f"{POSTPONED}::test_failed_runs_of_an_unheld_execution_are_counted_again[sqlite]",
        Edit(POSTPONE, "takewhile(lambda event: event.name == _DELAYED, earlier)", "earlier"),
    ),
    PlantedFault(
        "failed runs are not counted",
        f"{VERSIONS}::test_run_that_keeps_failing_in_our_code_is_held_with_the_traceback[sqlite]",
        Edit(POSTPONE, "if setbacks.failed_runs >= MAX_FAILED_RUNS:", "if False:"),
    ),
    PlantedFault(
        "failed runs of earlier attempts are counted",
        f"{POSTPONED}::test_failed_runs_are_counted_for_each_attempt[sqlite]",
        Edit(POSTPONE, "sum((event.generation, event.attempt_index) == attempt for event in failed)", "len(failed)"),
    ),
    PlantedFault(
        "a worker claims before it has registered its version",
        f"{VERSIONS}::test_worker_registers_before_it_claims[sqlite]",
        Edit("worker/worker.py", "            await self._heartbeat.wait_begun()\n", ""),
    ),
    PlantedFault(
        "a key added to a recorded step runs it again",
        f"{KEYS}::test_key_added_to_a_recorded_step_diverges_before_the_step_runs[memory]",
        Edit(JOURNAL, "if call_id.index == KEYED and self._is_next_without_key(scope, call_id):", "if False:"),
    ),
    PlantedFault(
        "keyed calls that the code no longer makes are not reported",
        f"{KEYS}::test_recorded_keyed_calls_that_the_code_did_not_make_are_warned_about[memory]",
        Edit("runtime/durable_call.py", "if report is None and (paths := self.journal.unmade_keyed_calls(scope)):",
             "paths = list[str]()\n        if False:"),
    ),
    PlantedFault(
        "the members of a decided race may change places",
        f"{KEYS}::test_members_of_a_decided_race_that_changed_places_diverge[memory-keyed calls]",
        Edit("runtime/calls/groups.py", "            self._check_members()\n", ""),
    ),
    PlantedFault(
        "the class of an exception is read from the exception",
        f"{HOSTILE}::test_body_that_raises_a_hostile_error_fails_after_its_retries[memory-RaisingClass]",
        Edit(GUARDS, "return issubclass(type(value), classes)\n    except BaseException:",
             "return isinstance(value, classes)\n    except ZeroDivisionError:"),
    ),
    PlantedFault(
        "the text of an exception may raise any BaseException",
        f"{HOSTILE}::test_body_that_raises_a_hostile_error_fails_after_its_retries[memory-InterruptingStr]",
        Edit(GUARDS, "return read()\n    except BaseException:", "return read()\n    except Exception:"),
    ),
    PlantedFault(
        "the arguments of an exception are read from the exception",
        f"{HOSTILE}::test_declared_hostile_error_reaches_the_task_as_a_failure[memory-RaisingArgs]",
        Edit(GUARDS, 'args: tuple[Any, ...] = _OWN["args"].__get__(error)', "args: tuple[Any, ...] = error.args"),
    ),
)  # fmt: skip
