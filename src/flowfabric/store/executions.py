"""Executions, their idempotency keys and grants, and their removal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from flowfabric.core.executions.records import Attempt, Event, Execution, Grant
from flowfabric.core.executions.requests import HoldFilter
from flowfabric.core.executions.states import State
from flowfabric.core.fast_dataclass import record
from flowfabric.core.retention import PurgeBatch
from flowfabric.core.waits.records import WaitChanges
from flowfabric.store.commit_hints import CommitHints
from flowfabric.store.records import Listing
from flowfabric.store.rows import (
    parameters_of,
    save_parameters,
    to_datetime,
    to_execution,
    to_grant,
    to_json,
    to_uuid,
    worker_columns,
)
from flowfabric.store.session import AggregateStore, Batch, Parameters, Row, Session


@record(frozen=True, slots=True, kw_only=True)
class WriteSet:
    """The rows to write for decisions. Each execution is a pair: its state before and after the decision."""

    executions: Sequence[tuple[Execution, Execution]] = ()
    attempts: Sequence[Attempt] = ()
    events: Sequence[Event] = ()
    waits: Sequence[WaitChanges] = ()


class ExecutionStore(AggregateStore):
    """Reads, locks and saves execution rows."""

    def __init__(self, session: Session, hints: CommitHints) -> None:
        super().__init__(session, hints)
        self._locked: dict[UUID, Execution] = {}

    async def get(self, namespace: str | None, ids: Sequence[UUID]) -> dict[UUID, Execution]:
        """Return the executions with these ids that exist in the namespace; None means any namespace."""
        return _by_id(await self._session.fetch("get_executions", ids=list(ids), namespace=namespace))

    async def fingerprint(self, namespace: str, id_: UUID) -> bytes | None:
        """Return the fingerprint of an execution's submission, or None if the execution does not exist."""
        rows = await self._session.fetch("execution_fingerprint", id=id_, namespace=namespace)
        return rows[0]["fingerprint"] if rows else None

    async def lock(self, namespace: str | None, ids: Sequence[UUID]) -> dict[UUID, Execution]:
        """Lock executions in id order until the transaction ends, and return them. Wait for rows that are locked."""
        return self._remember_locked(await self._session.fetch("lock_executions", ids=list(ids), namespace=namespace))

    async def lock_free(self, ids: Sequence[UUID]) -> dict[UUID, Execution]:
        """Lock executions of any namespace and return them. Skip rows that other transactions have locked."""
        return self._remember_locked(await self._session.fetch("lock_free_executions", ids=list(ids)))

    async def save(self, changes: Sequence[tuple[Execution, Execution]]) -> None:
        """Save each changed execution, or raise if its row is no longer as it was before the change."""
        await self._session.write(*self.save_batches(changes))

    def save_batches(self, changes: Sequence[tuple[Execution, Execution]]) -> list[Batch]:
        """Return the batches that save executions. The rows of one batch all change the same columns."""
        groups: dict[tuple[str, ...], list[Parameters]] = {}
        for before, after in changes:
            row = save_parameters(self._locked.get(before.id, before), after)
            groups.setdefault(tuple(row), []).append(row)
            self._locked[after.id] = after
        return [("save_execution", group) for group in groups.values()]

    async def list_leased(self, namespaces: Sequence[str], instance: str) -> list[Execution]:
        """Return the executions on which a worker instance has a live lease."""
        now = await self._session.now()
        rows = await self._session.fetch("held_executions", namespaces=list(namespaces), instance=instance, now=now)
        return [to_execution(row) for row in rows]

    async def list_expired(self, namespace: str, before: UUID, now: datetime, limit: int) -> list[Execution]:
        """Return the executions with an id below `before` whose lease is past its time, newest id first."""
        rows = await self._session.fetch("expired_leases", namespace=namespace, before=before, now=now, limit=limit)
        return [to_execution(row) for row in rows]

    async def list_suspended(self, namespace: str, after: UUID, limit: int) -> list[Execution]:
        """Return suspended executions with an id above `after`, in id order."""
        rows = await self._session.fetch("suspended_executions", namespace=namespace, after=after, limit=limit)
        return [to_execution(row) for row in rows]

    async def list_held(self, namespace: str, holds: HoldFilter, after: UUID, limit: int) -> list[UUID]:
        """Return the ids of executions that an operator holds, in id order."""
        rows = await self._session.fetch(
            "held_for_operator", namespace=namespace, kind=holds.kind, reason=holds.reason, after=after, limit=limit
        )
        return [to_uuid(row["id"]) for row in rows]

    async def next_held_kind(self, namespace: str, after: str) -> str | None:
        """Return the first kind after `after` of which executions are held, or None."""
        rows = await self._session.fetch("next_held_kind", namespace=namespace, after=after)
        return rows[0]["kind"] if rows else None

    async def list_hold_reasons(self, namespace: str, kind: str, limit: int) -> list[tuple[UUID, str]]:
        """Return held executions of a kind in id order, each with the start of its hold reason."""
        rows = await self._session.fetch("held_of_kind", namespace=namespace, kind=kind, limit=limit)
        return [(to_uuid(row["id"]), row["hold_reason"]) for row in rows]

    async def page(self, listing: Listing) -> list[Execution]:
        """Return one page of executions, newest id first."""
        statement, scope = ("list_executions", {}) if listing.flow is None else ("list_members", {"flow": listing.flow})
        rows = await self._session.fetch(
            statement,
            **scope,
            namespace=listing.namespace,
            states=list(listing.states),
            first=listing.first,
            before=listing.before,
            limit=listing.limit,
            lane=listing.lane,
            kind=listing.kind,
            tags=to_json(listing.tags),
            created_from=listing.created_from,
            created_until=listing.created_until,
        )
        return [to_execution(row) for row in rows]

    async def count(self, namespace: str, state: State, limit: int) -> int:
        """Count the executions in a state, up to `limit`."""
        [row] = await self._session.fetch("count_in_state", namespace=namespace, state=state, limit=limit)
        return int(row["count"])

    async def estimate(self, namespace: str, state: State) -> int:
        """Return the approximate number of executions in a state."""
        [row] = await self._session.fetch("estimate_in_state", namespace=namespace, state=state)
        return int(row["count"])

    async def set_tags(self, id_: UUID, tags: Mapping[str, str], now: datetime) -> None:
        """Replace the tags of a locked execution."""
        await self._session.fetch("set_tags", id=id_, tags=to_json(tags), now=now)

    def _remember_locked(self, rows: Sequence[Row]) -> dict[UUID, Execution]:
        locked = _by_id(rows)
        self._locked |= locked
        return locked


def _by_id(rows: Sequence[Row]) -> dict[UUID, Execution]:
    executions = (to_execution(row) for row in rows)
    return {execution.id: execution for execution in executions}


class IdempotencyKeyStore(AggregateStore):
    """Idempotency keys of submissions."""

    async def take(
        self, namespace: str, key: str, execution_id: UUID, fingerprint: bytes, window: timedelta
    ) -> tuple[UUID, bytes] | None:
        """Take a key for an execution. If the key is in use, return the id and the fingerprint of its execution.

        A key is in use while its execution is kept, and at least for its `window`.
        """
        name = {"namespace": namespace, "key": key}
        owner = {"execution_id": execution_id, "fingerprint": fingerprint}
        now = await self._session.now()
        taken = await self._session.fetch("take_key", **name, **owner, expires_at=now + window)
        if not taken:
            [holder] = await self._session.fetch("key_holder", **name)
            now = await self._session.now()
            may_replace = to_datetime(holder["expires_at"]) <= now
            if may_replace and await self._session.fetch(
                "replace_key", **name, **owner, now=now, expires_at=now + window
            ):
                return None
            return to_uuid(holder["execution_id"]), holder["fingerprint"]
        later = await self._session.now()
        if later > now:
            # The statement may have waited for another transaction, so the window begins again now.
            await self._session.fetch("extend_key", **name, expires_at=later + window)
        return None

    async def find(self, namespace: str, key: str) -> UUID | None:
        """Return the id of the execution that holds a key, or last held it if that execution was purged."""
        rows = await self._session.fetch("key_holder", namespace=namespace, key=key)
        return to_uuid(rows[0]["execution_id"]) if rows else None

    async def list_due(self, now: datetime, limit: int) -> list[tuple[str, str]]:
        """Return namespaces and names of keys that outlived their execution and their window, without locking them."""
        rows = await self._session.fetch("keys_to_drop", now=now, limit=limit)
        return [(row["namespace"], row["key"]) for row in rows]

    async def drop(self, keys: Sequence[tuple[str, str]], now: datetime) -> int:
        """Remove those of `keys` that are still due and not locked. Return how many were removed."""
        parameters = [{"namespace": namespace, "key": key, "now": now} for namespace, key in keys]
        return len(await self._session.fetch_each("drop_key", parameters))


class GrantStore(AggregateStore):
    """Grants for taking over executions."""

    async def add(self, grant: Grant) -> None:
        """Store a grant."""
        await self._session.fetch("add_grant", **_grant_columns(grant), **worker_columns(grant.worker))

    async def get(self, id_: UUID) -> Grant | None:
        """Return a grant by its id."""
        rows = await self._session.fetch("get_grant", id=id_)
        return to_grant(rows[0]) if rows else None

    async def open(self, execution_id: UUID, now: datetime) -> Grant | None:
        """Return the grant for an execution if the grant is neither used nor expired."""
        rows = await self._session.fetch("open_grants", execution_id=execution_id, now=now)
        return to_grant(rows[0]) if rows else None

    async def end(self, execution_id: UUID) -> None:
        """Invalidate the unused grants of an execution."""
        await self._session.fetch("end_grants", execution_id=execution_id)

    async def consume(self, id_: UUID, lease_id: UUID) -> bool:
        """Mark a grant as used by a lease. Return False if the grant was already used."""
        return bool(await self._session.fetch("consume_grant", id=id_, lease_id=lease_id))


_grant_columns = parameters_of(Grant, without=["worker", "consumed_by"])
_REMOVAL_STATEMENTS = (
    "keep_keys", "delete_keys", "delete_attempts", "delete_steps", "delete_grants", "delete_signals",
    "delete_waitpoints", "delete_suspensions", "delete_executions",
)  # fmt: skip


class PurgeStore(AggregateStore):
    """Locks and removes many executions with few statements."""

    async def lock_free(self, ids: Sequence[UUID]) -> list[PurgeBatch]:
        """Lock and return the executions to remove. Skip rows that other transactions have locked."""
        rows = await self._session.fetch("lock_remains", ids=list(ids))
        return [PurgeBatch(to_uuid(row["id"]), to_datetime(row["purge_at"]), row["belongings"]) for row in rows]

    async def remove(self, ids: Sequence[UUID], now: datetime, trim_at: datetime | None) -> None:
        """Remove executions with everything attached to them, except keys whose window has not passed at `now`.

        With `trim_at`, remember that the events of these executions may be removed from that time on.
        """
        if trim_at is not None:
            # This statement comes first, because it reads the rows that are deleted below.
            await self._session.fetch("bury_executions", ids=list(ids), trim_at=trim_at)
        await self._session.run_batches(
            beside=[(statement, {"ids": list(ids), "now": now}) for statement in _REMOVAL_STATEMENTS]
        )
