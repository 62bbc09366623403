"""Planted faults in the ownership of leases: each removes one guard of the rule that a lease has one run."""

from __future__ import annotations

from tests.faults.planted_fault import Edit, PlantedFault

LEASES, RUN = "worker/leases.py", "runtime/run.py"
ONE_RUN = "../end_to_end/worker/test_one_run_per_lease.py"
MODEL = "../model/test_model.py::test_both_stores_and_the_model_agree_on_random_histories[OwnershipMachine]"
FORGET_STARTED = (
    Edit(LEASES, "if held is None or lease_id in self._started:", "if held is None:"),
    Edit(LEASES, "(started if id_ in self._started else new)", "(new)"),
    Edit(
        LEASES, "return not (lease_id in self._held or lease_id in self._started)", "return lease_id not in self._held"
    ),
)

PLANTED_IN_OWNERSHIP = (
    PlantedFault(
        "a worker runs a lease again that its own clock has ended",
        f"{ONE_RUN}::test_lease_whose_code_does_not_stop_is_not_run_again[sqlite]",
        *FORGET_STARTED,
    ),
    PlantedFault(
        "a worker runs a lease again that it could not release",
        f"{ONE_RUN}::test_recorded_step_never_runs_again_if_its_lease_could_not_be_released[postgres]",
        *FORGET_STARTED,
    ),
    PlantedFault("a worker forgets under which leases it started code (model)", MODEL, *FORGET_STARTED),
    PlantedFault(
        "a repeated suspend is not recognized by its id (model)",
        MODEL,
        Edit("store/sql/wait.sql", "    AND s.id = named.id\n", "    AND s.id = named.id\n    AND FALSE\n"),
    ),
    PlantedFault(
        "a run writes after the clock of its worker has ended its lease",
        f"{ONE_RUN}::test_run_writes_nothing_after_the_clock_of_its_worker_has_ended_the_lease[sqlite]",
        Edit(RUN, "if self.loss is None and not self._is_held():", "if self.loss is None and False:"),
    ),
    PlantedFault(
        "a worker releases a lease while its code still runs",
        f"{ONE_RUN}::test_lease_is_released_only_after_its_code_has_stopped[sqlite]",
        Edit("worker/release.py", "                await wait_stopped()\n", "                pass\n"),
    ),
    PlantedFault(
        "held reports that there is no journal",
        "../conformance/test_held_leases.py::test_lost_claim_is_found_and_its_work_continues[sqlite]",
        Edit("core/executions/outcomes.py", "*, has_journal: bool = True)", "*, has_journal: bool = False)"),
    ),
)
