"""Faults planted in the flows. Each of them is found every time: the tests that find them leave nothing to chance."""

from __future__ import annotations

from tests.faults.plants import Edit, Planted

MEMBERSHIP, RESOLVING, FLOW_SQL = "core/membership.py", "ops/resolving.py", "sqlstore/sql/flow.sql"
RACES, ORDERS = "../concurrency/test_flows_race.py", "../concurrency/test_flows_in_every_order.py"
JOINS, CANCELS, REPLAYS = (f"../conformance/test_{name}.py" for name in ("joins", "cancel_flow", "replay_members"))
IN_EVERY_ORDER = f"{ORDERS}::test_in_every_order_of_their_statements_both_keep_to_the_rules"

PLANTED_IN_FLOWS = (
    Planted(
        "flows are not locked",
        f"{RACES}::test_their_join_is_decided_in_every_order_of_their_statements[all of both-postgres]",
        Edit(FLOW_SQL, "FOR NO KEY UPDATE OF f SKIP LOCKED", ""),
        Edit(FLOW_SQL, "FOR NO KEY UPDATE OF f", ""),
        Edit(FLOW_SQL, "FOR NO KEY UPDATE", "", after="name: lock_flows"),
    ),
    Planted(
        "a flow is counted as it was before the lock",
        f"{RACES}::test_a_flow_finishes_once_when_its_last_two_members_end_at_once[postgres-in order]",
        Edit(FLOW_SQL, "FOR NO KEY UPDATE OF f SKIP LOCKED", ""),
        Edit(FLOW_SQL, "FOR NO KEY UPDATE OF f", ""),
    ),
    Planted(
        "a group fires twice",
        f"{JOINS}::test_losers_that_may_run_on_change_nothing_any_more[sqlite]",
        Edit(MEMBERSHIP, "group.state is not GroupState.OPEN or group.draft", "group.draft"),
        Edit(MEMBERSHIP, "if member.is_blocked:", "if True:"),
    ),
    Planted(
        "what runs is released again",
        f"{JOINS}::test_a_group_that_has_fired_touches_nothing_that_has_moved_on[postgres]",
        Edit(MEMBERSHIP, "group.state is not GroupState.OPEN or group.draft", "group.draft"),
        Edit(MEMBERSHIP, "if member.is_blocked:", "if True:"),
    ),
    Planted(
        "a skip is not passed on",
        f"{JOINS}::test_what_is_impossible_is_skipped_to_the_end_of_the_line[sqlite]",
        Edit(MEMBERSHIP, "self.end({member.id: State.SKIPPED})", "pass"),
    ),
    Planted(
        "losers leave their own edges open",
        "../adversity/test_original_faults_in_flows.py"
        "::test_a_cancelled_sibling_is_fenced_and_other_joins_hear_of_it[sqlite]",
        Edit(RESOLVING, "while not resolution.is_settled:", "while resolution.wants_edges() or resolution.closing:"),
    ),
    Planted(
        "a sibling goes that others need",
        f"{JOINS}::test_a_sibling_that_another_group_needs_is_left_alone[sqlite]",
        Edit(MEMBERSHIP, "any(group.state is GroupState.OPEN for group in groups)", "False"),
    ),
    Planted(
        "losers keep their lease",
        f"{JOINS}::test_the_first_of_a_race_wins_and_the_losers_are_cancelled_and_fenced_off[postgres]",
        Edit("backends/postgres/sql/flow.sql", "epoch = e.epoch + 1,", "epoch = e.epoch,", after="name: end_members"),
    ),
    Planted(
        "edges of a cancelled flow go on",
        f"{CANCELS}::test_whom_the_cancel_has_not_reached_yet_is_not_released[sqlite]",
        Edit("core/flows.py", "self.cancel is not None and self.cancel.policy", "False and self.cancel.policy"),
    ),
    Planted(
        "a cancel forgets what it did not reach",
        "test_large_flows.py::test_a_cancel_goes_on_after_the_process_that_began_it_was_killed[sqlite-second batch]",
        Edit("ops/cancel_flow.py", "sweep_at=now if left else None", "sweep_at=None"),
    ),
    Planted(
        "a replayed upstream does not open its edges",
        f"{REPLAYS}::test_an_upstream_of_one_that_has_not_started_blocks_it_again[sqlite]",
        Edit("ops/replay_member.py", "is not EdgeState.OPEN and not facts[edge.downstream_id].started", "is None"),
    ),
    Planted(
        "a child that ends while its parent begins to wait is missed",
        f"{IN_EVERY_ORDER}[a child ends while its parent begins to wait-postgres]",
        Edit("ops/locking.py", "tx.flows.lock_of([id_], wait=True)", "tx.flows.get(None, [id_])"),
    ),
    Planted(
        "who makes its first children twice at once makes two flows",
        f"{IN_EVERY_ORDER}[first children under two keys-postgres]",
        Edit("ops/locking.py", "if execution.flow is not None and flow is None:", "if False:"),
    ),
    Planted(
        "who is released is told to nobody",
        "../adversity/test_wakeups.py::test_each_hop_of_a_chain_wakes_who_waits_for_work[postgres-another]",
        Edit("sqlstore/flows.py", 'self._news.note_work(row["namespace"], row["lane"])', "pass"),
    ),
    Planted(
        "who goes on in a chain is told to nobody",
        "../adversity/test_wakeups.py::test_each_hop_of_a_chain_wakes_who_waits_for_work[postgres-another]",
        Edit("backends/postgres/hot.py", "self._news.note_work(namespace, lane)", "pass"),
    ),
    Planted(
        "a child beside a member keeps its flow open",
        "../conformance/test_passing_on.py"
        "::test_what_is_passed_on_is_what_would_have_been_worked_out[postgres-a_child_beside_a_member]",
        Edit("ops/complete.py", "if locked[end.id].id not in worked_out", "if end.parent_id is None"),
    ),
    Planted(
        "a parent hangs in a cancelled flow",
        "../conformance/test_waiting_in_cancelled_flows.py"
        "::test_a_member_that_is_spared_goes_on_when_its_children_have_ended[sqlite-cancel_pending]",
        Edit(MEMBERSHIP, "(is_frozen and not is_wait)", "is_frozen"),
    ),
    Planted(
        "who is asked to stop is released by an older wait",
        "../conformance/test_cancel_with_grace.py"
        "::test_with_grace_a_parent_goes_on_and_its_next_wait_is_not_ended_by_the_last[sqlite]",
        Edit("ops/cancel.py", "await _close_waits(tx, decisions)", "pass"),
    ),
)
