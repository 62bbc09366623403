"""Faults planted in the ways by which a cancel or a deadline reaches running code and children."""

from __future__ import annotations

from tests.faults.planted_fault import Edit, PlantedFault

HINTS, LEASES, STEP = "store/commit_hints.py", "worker/leases.py", "runtime/calls/step.py"
GROUPS, CHILDREN, DESCENDANTS = "runtime/calls/groups.py", "ops/flows/submit_children.py", "ops/flows/descendants.py"
NOTICES = "../end_to_end/worker/test_cancel_hints.py"
NAMED = "../conformance/test_lease_hints.py"
INTERRUPTED = "../end_to_end/durable/test_interrupted_steps.py"
ENDS = "../conformance/test_ends_of_children.py"
ROW = "test_rows.py::test_row_of_the_scoreboard_has_no_violation"

PLANTED_IN_CANCELS = (
    PlantedFault(
        "a cancel names no worker",
        f"{NAMED}::test_worker_is_named_if_others_end_its_lease_or_request_a_cancel[postgres-request_cancel]",
        Edit(HINTS, "if is_taken or after.cancel_request != before.cancel_request:", "if is_taken:"),
    ),
    PlantedFault(
        "a worker gets hints about its own changes",
        f"{NAMED}::test_worker_gets_no_hint_about_what_it_did_itself[sqlite-suspend]",
        Edit(HINTS, " and after.former.digest is None", ""),
    ),
    PlantedFault(
        "a cancelled member names no worker",
        f"{NAMED}::test_worker_of_a_loser_and_of_a_cancelled_member_is_named[sqlite]",
        Edit("store/flows.py", "self._hints.instances.add(row[\"instance\"])", "pass"),
    ),
    PlantedFault(
        "a worker ignores hints about its leases",
        f"{ROW}[cancel of running code-sqlite]",
        Edit(LEASES, "self._loop.call_soon_threadsafe(self._hinted.set)", "pass"),
    ),
    PlantedFault(
        "a hint renews every lease",
        f"{NOTICES}::test_hint_renews_only_the_changed_lease[postgres]",
        Edit(LEASES, "snapshots.get(fence.execution_id) != LeaseSnapshot(", "None != LeaseSnapshot("),
    ),
    PlantedFault(
        "a cancel with grace waits for the running step",
        f"{ROW}[cancel with grace-sqlite]",
        Edit("runtime/run.py", "            self._interrupt_step()\n", "            pass\n"),
    ),
    PlantedFault(
        "an interrupted step runs again",
        f"{INTERRUPTED}::test_later_run_raises_the_request_again_and_does_not_run_the_interrupted_step[memory]",
        Edit(STEP, "calls.deliver_cancel(self, StepStatus.ABANDONED, ", "calls.deliver_cancel(self, StepStatus.OPEN, "),
    ),
    PlantedFault(
        "a step that may finish is interrupted",
        f"{INTERRUPTED}::test_step_that_may_finish_is_recorded_before_the_request_is_raised[memory-_finish_by_policy]",
        Edit(STEP, "(options.on_cancel or own.on_cancel) != \"finish\"", "options.on_cancel != \"finish\""),
    ),
    PlantedFault(
        "a group waits for the other steps after a request",
        f"{INTERRUPTED}::test_group_interrupts_all_its_async_steps_and_the_code_around_it_cleans_up[memory-None-gather]",
        Edit(GROUPS, "cancel_steps = is_requested or self.call_id", "cancel_steps = self.call_id"),
    ),
    PlantedFault(
        "a deadline leaves the children",
        f"{ENDS}::test_end_of_a_parent_ends_all_descendants[postgres-deadline]",
        Edit("core/executions/operator.py", "replace(decision, ends_children=True)", "decision"),
        Edit(CHILDREN, "deadline_at=_inherited_deadline(parent, child.submission, now),", ""),
    ),
    PlantedFault(
        "an attempt timeout leaves the children",
        f"{ROW}[ended trees-sqlite]",
        Edit("core/executions/attempts.py", "ends_children=True", "ends_children=False"),
    ),
    PlantedFault(
        "a child does not inherit the deadline",
        f"{ENDS}::test_child_inherits_the_rest_of_the_deadline_unless_its_own_is_earlier[sqlite-none]",
        Edit(CHILDREN, "deadline_at=_inherited_deadline(parent, child.submission, now),", ""),
    ),
    PlantedFault(
        "a child inherits a deadline that is later than its own",
        f"{ENDS}::test_child_inherits_the_rest_of_the_deadline_unless_its_own_is_earlier[postgres-earlier]",
        Edit(CHILDREN, "own < parent.deadline_at", "False"),
    ),
    PlantedFault(
        "the reconciler forgets the descendants beyond the batch",
        f"{ENDS}::test_descendants_beyond_the_batch_are_ended_by_the_reconciler"
        "[sqlite-attempt timeout that expires it]",
        Edit(DESCENDANTS, "    if rest:\n", "    if False:\n"),
    ),
    PlantedFault(
        "a child of the grace outlives its parent",
        f"{ENDS}::test_child_submitted_during_the_grace_ends_with_its_parent[postgres]",
        Edit("core/executions/operator.py", "ends_children=request.children", "ends_children=False"),
    ),
)  # fmt: skip
