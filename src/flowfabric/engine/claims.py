"""How a worker gets leases: by claiming what waits, by name, by a grant, and by asking what it holds already."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from flowfabric.core import limits, requests
from flowfabric.core.ids import parse_id
from flowfabric.core.outcomes import Ended, Lease
from flowfabric.core.records import Grant, WorkerId
from flowfabric.core.requests import Claim, LeaseTerms
from flowfabric.engine.context import Context
from flowfabric.engine.watching import WorkWatch
from flowfabric.ops.claim import claim
from flowfabric.ops.claim_execution import claim_execution, claim_resumed
from flowfabric.ops.held import held
from flowfabric.ops.reclaim import reclaim
from flowfabric.store.executions import Claimed
from flowfabric.store.transaction import Transaction
from flowfabric.wakeups.bells import lane_of

_CLAIM_TRIES = 3
ClaimById = Callable[[Transaction, str, UUID, LeaseTerms, Collection[str]], Coroutine[Any, Any, Lease]]


class Claims:
    """The part of `engine.leases` by which leases begin."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def claim(
        self, lanes: Sequence[str], worker: WorkerId | str, *, capabilities: Collection[str] = (), limit: int = 1,
        lease_ttl: limits.Duration | None = None, kinds: Sequence[str] | None = None,
    ) -> list[Lease]:  # fmt: skip
        """Up to `limit` leases: highest priority first; at equal priority resumed before new work, then the oldest."""
        request = Claim(
            lanes=limits.names(lanes, "lanes"), worker=requests.worker(worker),
            capabilities=limits.capabilities(capabilities, "capabilities"),
            limit=limits.whole(limit, "limit", 1, limits.BATCH), lease_ttl=_ttl(lease_ttl),
            kinds=None if kinds is None else limits.names(kinds, "kinds"),
        )  # fmt: skip
        if request.lease_ttl is not None:
            self._context.wakeups.expect_leases(request.lease_ttl)
        found = await self._claim(request, past_locked=False)
        for _ in range(_CLAIM_TRIES):
            if not found.all_locked:
                break
            found = await self._claim(request, past_locked=True)
        if found.all_locked:
            # Rows that are let go without being changed ring no bell.
            self._context.wakeups.bells.ring_soon_for_work()
        leases = list(found.leases)
        self._context.note_leases(leases)
        self._hint(leases)
        return leases

    async def claim_execution(
        self, id: UUID | str, worker: WorkerId | str, *, capabilities: Collection[str] = (),
        lease_ttl: limits.Duration | None = None,
    ) -> Lease:  # fmt: skip
        """A lease on this very execution, if it waits and the worker offers what it requires."""
        return await self._claim_by_id(claim_execution, id, worker, capabilities, lease_ttl)

    async def claim_resumed(
        self, id: UUID | str, worker: WorkerId | str, *, capabilities: Collection[str] = (),
        lease_ttl: limits.Duration | None = None,
    ) -> Lease:  # fmt: skip
        """The same, but only to go on with an attempt that was interrupted, else `not_a_resumed_execution`."""
        return await self._claim_by_id(claim_resumed, id, worker, capabilities, lease_ttl)

    async def reclaim(
        self, grant: Grant | UUID | str, worker: WorkerId | str, *, lease_ttl: limits.Duration | None = None
    ) -> Lease | Ended:
        """Takes over a kept execution with the grant that this worker was given; past the cap of reclaims it fails."""
        grant_id = parse_id(grant.id if isinstance(grant, Grant) else grant, "grant")
        terms = self._terms(worker, lease_ttl)
        answer = await self._context.store.run(lambda tx: reclaim(tx, self._context.namespace, grant_id, terms))
        self._hint([answer] if isinstance(answer, Lease) else [])
        return answer

    def watch(self, lanes: Sequence[str], *, capabilities: Collection[str] = ()) -> WorkWatch:
        """How a worker that found nothing waits for work on these lanes: `with engine.leases.watch(…) as work`, claim,
        and `await work.wait()` whenever a claim came back empty."""
        found, offered = limits.names(lanes, "lanes"), limits.capabilities(capabilities, "capabilities")
        wakeups = self._context.wakeups
        bell = wakeups.bell([lane_of((self._context.namespace, lane)) for lane in found], offered)
        return WorkWatch(wakeups, bell)

    async def held(self, instance: str) -> list[Lease]:
        """The live leases of a worker instance: what it got, even if the reply to its claim was lost."""
        name = limits.name(instance, "instance")
        return await self._context.store.read(lambda tx: held(tx, self._context.namespace, name))

    async def _claim_by_id(
        self, body: ClaimById, id: object, worker: object, capabilities: object, lease_ttl: object
    ) -> Lease:
        found, offered = parse_id(id), limits.capabilities(capabilities, "capabilities")
        terms = self._terms(worker, lease_ttl)
        lease = await self._context.store.run(lambda tx: body(tx, self._context.namespace, found, terms, offered))
        self._hint([lease])
        return lease

    async def _claim(self, request: Claim, *, past_locked: bool) -> Claimed:
        namespace, drawn = self._context.namespace, self._context.lease_bits(request.limit)
        return await self._context.store.run_single(
            lambda tx: claim(tx, namespace, request, drawn, past_locked=past_locked)
        )

    def _terms(self, worker: object, lease_ttl: object) -> LeaseTerms:
        return LeaseTerms(worker=requests.worker(worker), lease_id=self._context.new_lease_id(), ttl=_ttl(lease_ttl))

    def _hint(self, leases: Sequence[Lease]) -> None:
        if leases:
            self._context.wakeups.expect_leases(min(lease.ttl for lease in leases))
        due = [time for lease in leases for time in (lease.expires_at, lease.attempt_timeout_at) if time is not None]
        if due:
            self._context.due_at(min(due))


def _ttl(value: object) -> timedelta | None:
    if value is None:
        return None
    return limits.duration(value, "lease_ttl", limits.LEASE_TTL_LEAST, limits.LEASE_TTL_MOST)
