"""Faults planted in the code of flows.

Each of these faults is found in every run, because its test is deterministic.
"""

from __future__ import annotations

from tests.faults.planted_fault import Edit, PlantedFault

MEMBERSHIP, RESOLVING, FLOW_SQL = "core/flows/resolution.py", "ops/flows/resolve.py", "store/sql/flow.sql"
RACES, ORDERS = "../concurrency/test_flows_race.py", "../concurrency/test_flows_in_every_order.py"
JOINS, CANCELS, REPLAYS = (f"../conformance/test_{name}.py" for name in ("joins", "cancel_flow", "replay_members"))
DOWNSTREAM = "../conformance/test_replay_downstream.py"
IN_EVERY_ORDER = f"{ORDERS}::test_two_operations_keep_the_rules_in_every_order_of_statements"

PLANTED_IN_FLOWS = (
    PlantedFault(
        "flows are not locked",
        f"{RACES}::test_join_is_decided_in_every_order_of_statements[all of both-postgres]",
        Edit(FLOW_SQL, "FOR NO KEY UPDATE OF f SKIP LOCKED", ""),
        Edit(FLOW_SQL, "FOR NO KEY UPDATE OF f", ""),
        Edit(FLOW_SQL, "FOR NO KEY UPDATE", "", after="name: lock_flows"),
    ),
    PlantedFault(
        "flow counters are read before the lock",
        f"{RACES}::test_flow_finishes_once_when_its_last_two_members_end_concurrently[postgres-in order]",
        Edit(FLOW_SQL, "FOR NO KEY UPDATE OF f SKIP LOCKED", ""),
        Edit(FLOW_SQL, "FOR NO KEY UPDATE OF f", ""),
    ),
    PlantedFault(
        "group fires twice",
        f"{JOINS}::test_losers_that_continue_to_run_change_nothing[sqlite]",
        Edit(MEMBERSHIP, "group.state is not GroupState.OPEN or group.draft", "group.draft"),
        Edit(MEMBERSHIP, "if member.is_blocked:", "if True:"),
    ),
    PlantedFault(
        "running member is released again",
        f"{JOINS}::test_fired_group_does_not_change_a_member_that_has_started[postgres]",
        Edit(MEMBERSHIP, "group.state is not GroupState.OPEN or group.draft", "group.draft"),
        Edit(MEMBERSHIP, "if member.is_blocked:", "if True:"),
    ),
    PlantedFault(
        "skip does not reach downstream members",
        f"{JOINS}::test_impossible_edge_skips_every_downstream_member[sqlite]",
        Edit(MEMBERSHIP, "self.end({member.id: State.SKIPPED})", "pass"),
    ),
    PlantedFault(
        "cancelled losers leave their edges open",
        "../conformance/test_joins.py::test_cancelled_sibling_is_fenced_and_its_other_edges_are_resolved[sqlite]",
        Edit(RESOLVING, "while not resolution.is_settled:", "while resolution.missing_edges() or resolution.closing:"),
    ),
    PlantedFault(
        "sibling needed by another group is cancelled",
        f"{JOINS}::test_sibling_needed_by_another_group_is_not_cancelled[sqlite]",
        Edit(MEMBERSHIP, "any(group.state is GroupState.OPEN for group in groups)", "False"),
    ),
    PlantedFault(
        "cancelled losers keep their lease",
        f"{JOINS}::test_first_of_a_race_wins_and_the_losers_are_cancelled_and_fenced_off[postgres]",
        Edit("backends/postgres/sql/flow.sql", "epoch = e.epoch + 1,", "epoch = e.epoch,", after="name: end_members"),
    ),
    PlantedFault(
        "cancelled flow still resolves edges",
        f"{CANCELS}::test_member_not_yet_cancelled_is_not_released[sqlite]",
        Edit("core/flows/records.py", "self.cancel is not None and self.cancel.policy", "False and self.cancel.policy"),
    ),
    PlantedFault(
        "flow cancel skips the remaining members",
        "test_large_flows.py::test_flow_cancel_continues_after_its_process_was_killed[sqlite-second batch]",
        Edit("ops/flows/cancel.py", "sweep_at=now if remaining else None", "sweep_at=None"),
    ),
    PlantedFault(
        "replay of an upstream does not open its edges",
        f"{REPLAYS}::test_replayed_upstream_blocks_a_member_that_has_not_started[sqlite]",
        Edit("core/flows/reopening.py", "if key in self.edges or edge.state is EdgeState.OPEN:", "if True:"),
    ),
    PlantedFault(
        "replay leaves skipped members behind",
        f"{DOWNSTREAM}::test_replay_brings_back_every_member_skipped_because_of_the_failure[sqlite]",
        Edit("core/flows/reopening.py", "if self.downstream and self._members[id_]", "if False and self._members[id_]"),
    ),
    PlantedFault(
        "replay revives members that can never start",
        f"{DOWNSTREAM}::test_member_lost_to_two_failures_comes_back_with_the_second_replay[sqlite]",
        Edit("core/flows/reopening.py", "self._state(id_) is not GroupState.IMPOSSIBLE", "True"),
    ),
    PlantedFault(
        "replay leaves the cancelled members of a quorum behind",
        f"{DOWNSTREAM}::test_quorum_comes_back_with_the_members_that_were_cancelled_because_of_it[sqlite]",
        Edit("core/flows/reopening.py", "self._stuck.setdefault(id_, None)", "pass"),
    ),
    PlantedFault(
        "flow that left a member behind is completed",
        f"{REPLAYS}::test_replay_without_downstream_leaves_skipped_members_skipped_and_the_flow_failed[sqlite]",
        Edit(RESOLVING, "(flow.ended_badly > 0 or flow.was_replayed)", "flow.ended_badly > 0"),
    ),
    PlantedFault(
        "fast completion forgets the members left behind",
        f"{DOWNSTREAM}::test_flow_that_left_a_member_behind_fails_even_if_its_last_member_completes_later[postgres]",
        Edit("backends/postgres/sql/flow.sql", "AND NOT f.was_replayed", ""),
    ),
    PlantedFault(
        "repeated flow replay replays a member twice",
        f"{DOWNSTREAM}::test_flow_replay_can_be_repeated_after_a_lost_reply[sqlite]",
        Edit(FLOW_SQL, "e.ended_at <= :ended_until", "(e.ended_at <= :ended_until OR TRUE)"),
    ),
    PlantedFault(
        "skip forgets the failure behind it",
        f"{JOINS}::test_upstream_skipped_because_of_a_failure_satisfies_two_kinds_of_edges[sqlite-on_failure_or_skip]",
        Edit(MEMBERSHIP, "self._lost_to.setdefault(edge.group_key, failure)", "pass"),
    ),
    PlantedFault(
        "wait misses a child that ends concurrently",
        f"{IN_EVERY_ORDER}[child ends while parent starts to wait-postgres]",
        Edit("ops/locks.py", "tx.flows.lock_of([id_], wait=True)", "tx.flows.get(None, [id_])"),
    ),
    PlantedFault(
        "concurrent first children create two flows",
        f"{IN_EVERY_ORDER}[first children under two keys-postgres]",
        Edit("ops/locks.py", "if execution.flow is not None and flow is None:", "if False:"),
    ),
    PlantedFault(
        "released member wakes no worker",
        "../adversity/test_notify.py::test_each_member_of_a_chain_wakes_a_waiting_worker[postgres-another]",
        Edit("store/flows.py", 'self._hints.note_work(row["namespace"], row["lane"])', "pass"),
    ),
    PlantedFault(
        "next member of a chain wakes no worker",
        "../adversity/test_notify.py::test_each_member_of_a_chain_wakes_a_waiting_worker[postgres-another]",
        Edit("backends/postgres/hot_path.py", "self.hints.note_work(namespace, lane)", "pass"),
    ),
    PlantedFault(
        "child of a member keeps its flow open",
        "../conformance/test_pass_on.py"
        "::test_statement_and_algorithm_write_the_same_rows[postgres-complete_child_and_member_together]",
        Edit("ops/leases/complete.py", "if flows[end.id].id not in resolved_flows", "if end.parent_id is None"),
    ),
    PlantedFault(
        "parent hangs in a cancelled flow",
        "../conformance/test_parents_in_cancelled_flows.py"
        "::test_started_member_continues_when_its_children_have_ended[sqlite-cancel_pending]",
        Edit(MEMBERSHIP, "(is_frozen and not is_wait)", "is_frozen"),
    ),
    PlantedFault(
        "older wait releases a parent that was asked to stop",
        "../conformance/test_cancel_with_grace.py"
        "::test_resumed_parent_is_not_woken_again_by_children_of_its_earlier_wait[sqlite]",
        Edit("ops/operator/cancel.py", "await _close_waits(tx, decisions)", "pass"),
    ),
)
