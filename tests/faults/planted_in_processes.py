"""Faults planted in the code that handles forks, closed event loops and system sleep, and in what a worker forgets."""

from __future__ import annotations

from tests.faults.planted_fault import Edit, PlantedFault

FORKS, LOOPS = "../adversity/test_forks.py", "../adversity/test_event_loops.py"
CHILD = f"{FORKS}::test_child_forked_in_a_task_exits_with_one_log_line_and_the_worker_records_each_step_once"
REFUSED = f"{FORKS}::test_engine_is_refused_in_a_forked_child_and_works_in_its_parent"
SOCKETS = f"{FORKS}::test_forked_child_holds_no_connection_to_the_server"
CLOSED = f"{LOOPS}::test_event_loop_closed_under_an_engine_or_worker_leaves_no_thread_and_no_open_file"
SLEEP = "../end_to_end/worker/test_system_sleep.py"
SLEPT = f"{SLEEP}::test_worker_ends_a_lease_by_its_own_clock_if_the_system_sleeps_longer_than_the_term"
MEMORY = "../end_to_end/worker/test_memory.py::test_mixed_executions_with_children_leave_no_objects_behind"

PLANTED_IN_PROCESSES = (
    PlantedFault(
        "forked child continues the run",
        f"{CHILD}[sqlite]",
        Edit("runtime/run.py", "if Forks.number != self.forks:", "if False:"),
    ),
    PlantedFault(
        "engine works in a forked child",
        f"{REFUSED}[postgres]",
        Edit("backends/postgres/store.py", "        check_not_forked(self._forks)\n", ""),
    ),
    PlantedFault(
        "forked child keeps the sockets",
        f"{SOCKETS}[postgres]",
        Edit("backends/postgres/pool.py", "if not transport.is_closing():", "if False:"),
    ),
    PlantedFault(
        "writer thread outlives its event loop",
        f"{CLOSED}[sqlite]",
        Edit("backends/sqlite/writer.py", "self._loop is not None and self._loop.is_closed()", "False"),
    ),
    PlantedFault(
        "store of a cancelled connect stays open",
        f"{LOOPS}::test_connect_that_is_cancelled_leaves_no_thread_and_no_open_file[sqlite]",
        Edit("backends/sqlite/store.py", "        opening.add_done_callback(_close_unused)\n", ""),
    ),
    PlantedFault(
        "connection for a cancelled caller stays open",
        "../adversity/test_pool.py::test_connection_that_is_open_when_its_caller_is_cancelled_is_closed",
        Edit("backends/postgres/pool.py", "            opening.add_done_callback(_terminate_unused)\n", ""),
    ),
    PlantedFault(
        "renewal thread outlives its event loop",
        f"{CLOSED}[postgres]",
        Edit("worker/background.py", "while not self._owner.is_closed() and not", "while not"),
    ),
    PlantedFault(
        "lease clock stops while the system sleeps",
        f"{SLEPT}[postgres]",
        Edit(
            "engine/lease_locks.py",
            "partial(time.clock_gettime, _CLOCK)",
            "partial(time.clock_gettime, time.CLOCK_MONOTONIC)",
        ),
    ),
    PlantedFault(
        "lease is renewed after its term",
        "../unit/worker/test_leases.py::test_lease_whose_term_has_passed_is_not_renewed",
        Edit("worker/leases.py", " and not is_lost", ""),
    ),
    PlantedFault(
        "leases on linked executions are not forgotten",
        f"{MEMORY}[sqlite]",
        Edit("engine/context.py", "self.linked.pop(lease_id, _UNKNOWN) is None", "lease_id in self.linked"),
    ),
    PlantedFault(
        "prepared statements keep runs",
        f"{MEMORY}[postgres]",
        Edit("backends/postgres/pool.py", "KEEP_STATEMENTS = 0", "KEEP_STATEMENTS = 300"),
    ),
    PlantedFault(
        "derived ids are remembered for long",
        f"{MEMORY}[sqlite]",
        Edit("core/ids.py", "_MAX_DERIVED = 1024", "_MAX_DERIVED = 1 << 14"),
    ),
)
