"""Faults planted in the code that reads clocks, and in the kit that moves them."""

from __future__ import annotations

from tests.faults.planted_fault import Edit, PlantedFault

JUMPS = "../conformance/test_clock_jumps.py"
CLOCK, LOOP = "backends/sqlite/clock.py", "reconcilers/loop.py"

PLANTED_IN_CLOCKS = (
    PlantedFault(
        "time stops while the wall clock is behind",
        f"{JUMPS}::test_sleep_of_one_second_ends_within_three_seconds_after_the_clock_went_back[sqlite]",
        Edit(CLOCK, "to_datetime(boot_us + offset)", "to_datetime(max(wall_us, newest_us))"),
    ),
    PlantedFault(
        "time of a file goes back",
        f"{JUMPS}::test_stored_times_never_go_back[sqlite]",
        Edit(CLOCK, "to_datetime(boot_us + offset)", "to_datetime(wall_us)"),
    ),
    PlantedFault(
        "processes do not share their time",
        f"{JUMPS}::test_processes_agree_on_the_time_while_the_wall_clock_is_behind[sqlite]",
        Edit(CLOCK, "offset_us if is_known else None", "None"),
    ),
    PlantedFault(
        "offset of another boot counts",
        "../unit/backends/test_sqlite_clock.py::test_offset_of_another_boot_does_not_count[another boot]",
        Edit(CLOCK, 'boot_id == self._boot_id != ""', "True"),
    ),
    PlantedFault(
        "lease with more time left than its term is not shortened",
        f"{JUMPS}::test_dead_work_is_taken_over_within_two_leases_after_the_clock_went_back[postgres]",
        Edit("core/executions/leases.py", "min(lease.expires_at, now + lease.ttl)", "lease.expires_at"),
    ),
    PlantedFault(
        "reconcilers do not notice that the clock went back",
        f"{JUMPS}::test_dead_work_is_taken_over_within_two_leases_when_the_clock_goes_back_meanwhile[postgres]",
        Edit(LOOP, "                self._must_check_terms = True\n", "                pass\n"),
    ),
    PlantedFault(
        "claims do not correct the known time",
        f"{JUMPS}::test_engine_knows_the_time_of_a_moved_clock_after_a_claim[postgres]",
        Edit("engine/claims.py", "context.wakeups.learn_time(leases[0].acquired_at, requested_at)", "pass"),
    ),
    PlantedFault(
        "kit opens the store of a program",
        "../end_to_end/kit/test_kit_stores.py::test_kit_refuses_a_store_that_a_program_has_used[postgres]",
        Edit("ops/mark_as_test.py", "if is_used and not adopt:", "if False:"),
    ),
)
