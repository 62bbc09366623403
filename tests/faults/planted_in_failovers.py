"""Faults planted in what the engine remembers, and in what it does when the store went back to an earlier state."""

from __future__ import annotations

from tests.faults.planted_fault import Edit, PlantedFault

POSTGRES, SQLITE = "backends/postgres/sql", "backends/sqlite/sql"
EMPTIED, ERAS = "../conformance/test_emptied_tables.py", "../conformance/test_eras.py"
TIMELINES = "../adversity/test_timelines.py"
FAILOVER = "test_rows.py::test_row_of_the_scoreboard_has_no_violation[asynchronous failover-postgres]"

PLANTED_IN_FAILOVERS = (
    PlantedFault(
        "missing routes are not created",
        f"{EMPTIED}::test_submit_after_the_tables_were_emptied_is_claimed[sqlite]",
        Edit("store/lanes.py", "for route in sorted(set(routes), key=lambda route: route.id)", "for route in ()"),
    ),
    PlantedFault(
        "execution is stored along any route",
        f"{EMPTIED}::test_payload_never_reaches_a_worker_of_another_kind[sqlite]",
        Edit(f"{SQLITE}/hot.sql", "CROSS JOIN ff.route AS r ON r.digest = item.route", "CROSS JOIN ff.route AS r"),
        Edit(f"{SQLITE}/hot.sql", "AND q.kind = r.kind", ""),
    ),
    PlantedFault(
        "claim trusts the route and not the row on SQLite",
        f"{EMPTIED}::test_execution_with_the_route_of_another_kind_is_not_claimed[sqlite]",
        Edit(f"{SQLITE}/hot.sql", "AND q.kind = r.kind", ""),
    ),
    PlantedFault(
        "claim trusts the route and not the row on PostgreSQL",
        f"{EMPTIED}::test_execution_with_the_route_of_another_kind_is_not_claimed[postgres]",
        Edit(f"{POSTGRES}/hot.sql", "AND e.kind = open_route.kind", ""),
        Edit(f"{POSTGRES}/hot.sql", "AND e.kind = share.kind", ""),
    ),
    PlantedFault(
        "ids of routes do not follow from their content",
        f"{EMPTIED}::test_execution_without_a_route_is_described_and_explained[postgres]",
        Edit("store/lanes.py", '"id": route.id,', '"id": route.id ^ id(self._session) >> 4,'),
    ),
    PlantedFault(
        "replay ignores a missing route",
        f"{EMPTIED}::test_replay_of_an_execution_creates_its_missing_route[sqlite]",
        Edit("ops/operator/replay.py", "await tx.routes.restore(execution)", "pass"),
    ),
    PlantedFault(
        "timeline of the server is not compared",
        FAILOVER,
        Edit(f"{POSTGRES}/outbox.sql", "AND s.timeline IN ('', COALESCE({timeline}, s.timeline))", ""),
    ),
    PlantedFault(
        "reader of an earlier era keeps its position",
        FAILOVER,
        Edit("ops/events/eras.py", "position if start is None else min(position, start)", "position"),
    ),
    PlantedFault(
        "reader ahead of the store keeps its position",
        f"{ERAS}::test_live_subscriber_ahead_of_the_store_misses_no_event[sqlite]",
        Edit(f"{SQLITE}/outbox.sql", ":after_id <= {newest_id} AS is_current", "1 AS is_current"),
    ),
    PlantedFault(
        "position of an earlier era is stored",
        f"{ERAS}::test_position_of_an_earlier_era_is_not_stored[sqlite]",
        Edit(f"{SQLITE}/outbox.sql", "AND s.era = :era", "", after="name: commit_subscriber"),
    ),
    PlantedFault(
        "position ahead of the store is stored",
        f"{ERAS}::test_position_ahead_of_the_store_is_not_stored[sqlite]",
        Edit(f"{SQLITE}/outbox.sql", "AND :event_id <= {newest_id}", "", after="name: commit_subscriber"),
    ),
    PlantedFault(
        "era is not part of the number for other systems",
        FAILOVER,
        Edit("core/executions/outcomes.py", "(self.era << _EPOCH_BITS) + self.fence.epoch", "self.fence.epoch"),
    ),
    PlantedFault(
        "claim does not notice a new timeline",
        f"{TIMELINES}::test_claim_notices_another_timeline",
        Edit("engine/claims.py", "if leases and not claimed.is_current:", "if False:"),
    ),
    PlantedFault(
        "era starts at the newest position",
        f"{TIMELINES}::test_era_starts_at_the_last_position_that_was_noted",
        Edit("core/events/eras.py", "return known if not state.is_current and known", "return state.present if known"),
    ),
)
