"""The invariants of a store, which hold after every commit. A violation shows that the stored data is damaged."""

from __future__ import annotations

from collections.abc import Mapping

from flowfabric.core.errors import InvalidRequest
from flowfabric.store.session import Session

POSTGRES_BACKUPS = "a PostgreSQL store is backed up with pg_dump and restored with pg_restore"
_MAX_EXAMPLES = 3
# A statement that returns the ids of bad rows, and what is wrong with them.
INVARIANTS: Mapping[str, str] = {
    "check_versions": "executions have more or fewer events than their version",
    "check_events": "events belong to executions that do not exist",
    "check_leases": "executions have lease columns that contradict their state",
    "check_routes": "executions have no route, or the route of other work",
    "check_results": "completed executions have no result",
    "check_attempts": "attempts belong to executions that do not exist",
    "check_steps": "steps belong to executions that do not exist or have not recorded them",
    "check_suspensions": "executions are suspended without an open suspension, or the reverse",
    "check_waitpoints": "open waitpoints belong to ended or missing executions",
    "check_signals": "executions have more or fewer signals than they have accepted",
    "check_edges": "edges of unfinished flows lack a member or a group",
    "check_members": "members belong to flows that do not exist",
}


def backup_unsupported_error(reason: str) -> InvalidRequest:
    """Return the error for a store that `backup` and `restore` do not support."""
    return InvalidRequest("backup_unsupported", reason)


async def find_violations(session: Session) -> list[str]:
    """Return one sentence per violated invariant, with the ids of a few examples."""
    violations = []
    for statement, problem in INVARIANTS.items():
        rows = await session.fetch(statement, limit=_MAX_EXAMPLES)
        if rows:
            violations.append(f"{problem}, such as {', '.join(str(row['id']) for row in rows)}")
    return violations
