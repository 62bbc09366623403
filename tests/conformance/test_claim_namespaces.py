"""Tests of engines that claim from several namespaces (`claim_namespaces`), so that one pool serves many tenants."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.fast_dataclass import replace
from flowfabric.engine import (
    ChildSubmission,
    Engine,
    InvalidRequest,
    Lease,
    NotFound,
    Satisfied,
    State,
    Step,
    Submission,
)
from flowfabric.engine.lease_requests import claim_request
from flowfabric.ops.leases.claim import ClaimAttempt
from flowfabric.ops.leases.claim import claim as claim_leases
from flowfabric.testing import VirtualClock
from tests.expectations import FENCED, nothing_written, refused
from tests.scenarios import submitted
from tests.stores import TestStore, opened

TENANTS = ("a", "b", "c")


@pytest.fixture
async def pool(store: TestStore, clock: VirtualClock) -> AsyncIterator[Engine]:
    """Return an engine in namespace "pool" that claims from the namespaces of three tenants."""
    async with opened(store, clock, namespace="pool", claim_namespaces=TENANTS) as engine:
        yield engine


async def submit(pool: Engine, tenant: str, number: int = 1, **options: Any) -> list[UUID]:
    return [await submitted(pool.for_namespace(tenant), **options) for _ in range(number)]


async def claim(pool: Engine, limit: int = 10, lanes: Sequence[str] = ("default",), **options: Any) -> list[Lease]:
    return await pool.leases.claim(lanes, "worker", limit=limit, **options)


def tenants(leases: Sequence[Lease]) -> str:
    return "".join(lease.namespace for lease in leases)


async def test_one_claim_covers_all_claimed_namespaces(pool: Engine) -> None:
    ids = {tenant: (await submit(pool, tenant))[0] for tenant in TENANTS}
    leases = await claim(pool)
    assert {lease.namespace: lease.execution_id for lease in leases} == ids
    assert [lease.fence.namespace for lease in leases] == [lease.namespace for lease in leases]
    assert await claim(pool) == []


async def test_work_of_other_namespaces_is_not_found(pool: Engine, store: TestStore) -> None:
    await submit(pool, "d")
    await submitted(pool)
    async with nothing_written(store):
        assert await claim(pool) == []
    # A view of one namespace claims only there.
    [lease] = await claim(pool.for_namespace("d"))
    assert lease.namespace == "d"
    await refused(pool.leases.renew(lease.fence), "execution_not_found", NotFound)


async def test_namespaces_take_turns_within_one_claim(pool: Engine) -> None:
    for tenant, number in (("a", 9), ("b", 3), ("c", 1)):
        await submit(pool, tenant, number)
    first = tenants(await claim(pool, 6))
    assert (sorted(first[:3]), sorted(first[3:5])) == (["a", "b", "c"], ["a", "b"]) and first[5] in "ab"
    assert sorted(tenants(await claim(pool, 4))) in (["a", "a", "a", "a"], ["a", "a", "a", "b"])


async def test_namespaces_take_turns_from_claim_to_claim(pool: Engine) -> None:
    # The backlog of the first tenant is older than all other work.
    for tenant, number in (("a", 9), ("b", 3), ("c", 3)):
        await submit(pool, tenant, number)
    served = "".join([tenants(await claim(pool, 1)) for _ in range(9)])
    assert [sorted(served[start : start + 3]) for start in (0, 3, 6)] == [["a", "b", "c"]] * 3
    assert served[:3] == served[3:6] == served[6:]
    assert "".join([tenants(await claim(pool, 1)) for _ in range(6)]) == "aaaaaa"


async def test_claim_past_locked_work_follows_the_same_order(pool: Engine) -> None:
    for tenant, number in (("a", 4), ("b", 2), ("c", 1)):
        await submit(pool, tenant, number)
    await submit(pool, "c", priority=1)
    request = claim_request(["default"], "worker", (), 5, None, None)
    attempt = ClaimAttempt(replace(request, namespaces=("b", "a", "c")), bytes(range(5 * 16)), True)
    claimed = await pool._context.call(claim_leases, attempt)
    assert (tenants(claimed.leases), claimed.is_incomplete) == ("cbacb", False)


async def test_higher_priority_comes_before_the_turn_of_a_namespace(pool: Engine) -> None:
    await submit(pool, "a", 3, priority=5)
    for tenant in ("b", "c"):
        await submit(pool, tenant, 2)
    assert tenants(await claim(pool, 4))[:3] == "aaa"
    [urgent] = await submit(pool, "b", priority=9)
    [lease] = await claim(pool, 1)
    assert lease.execution_id == urgent


async def test_resumed_work_comes_first_within_a_namespace(pool: Engine, clock: VirtualClock) -> None:
    [old] = await submit(pool, "a")
    clock.advance("1s")
    [resumed] = await submit(pool, "a", priority=1)
    [lease] = await claim(pool, 1)
    assert lease.execution_id == resumed
    await pool.leases.release(lease.fence)
    await pool.for_namespace("a").operator.change_priority(resumed, 0)
    leases = await claim(pool)
    assert [(lease.execution_id, lease.origin) for lease in leases] == [(resumed, "resumed"), (old, "fresh")]


async def test_claim_over_namespaces_obeys_lanes_kinds_capabilities_and_pauses(pool: Engine) -> None:
    await submit(pool, "a", lane="mail")
    await submit(pool, "a", kind="other")
    await submit(pool, "b", requires=["gpu"])
    await pool.for_namespace("c").lanes.pause("default")
    await submit(pool, "c")
    [taken] = await submit(pool, "a")
    [lease] = await claim(pool, kinds=["job"])
    assert lease.execution_id == taken
    assert tenants(await claim(pool, lanes=["mail"])) == "a"
    assert tenants(await claim(pool, capabilities=["gpu"], kinds=["job"])) == "b"


@pytest.mark.parametrize("write", FENCED)
async def test_every_fenced_call_accepts_a_lease_of_a_claimed_namespace(pool: Engine, write: str) -> None:
    await submit(pool, "b")
    [lease] = await claim(pool)
    if write not in ("wait children", "cancel children", "skip signal"):
        await FENCED[write](pool, lease.fence)
    tenant = pool.for_namespace("b")
    assert (await tenant.executions.describe(lease.execution_id)).namespace == "b"
    await refused(pool.executions.describe(lease.execution_id), "execution_not_found", NotFound)


async def test_leases_of_several_namespaces_are_renewed_and_completed_together(pool: Engine) -> None:
    for tenant in TENANTS:
        await submit(pool, tenant, 2)
    leases = await claim(pool)
    assert len(leases) == 6
    renewed = await pool.leases.renew_many([lease.fence for lease in leases])
    assert [type(outcome).__name__ for outcome in renewed] == ["Renewed"] * 6
    ended = await pool.leases.complete_many([(lease.fence, lease.namespace.encode()) for lease in leases])
    assert [type(outcome).__name__ for outcome in ended] == ["Ended"] * 6
    for lease in leases:
        outcome = await pool.for_namespace(lease.namespace).executions.result(lease.execution_id)
        assert outcome is not None and outcome.result == lease.namespace.encode()


async def test_reads_under_a_lease_find_its_namespace(pool: Engine) -> None:
    await submit(pool, "a", signals=["go"])
    [lease] = await claim(pool)
    await pool.leases.checkpoint(lease.fence, [Step("one", b"1")])
    await pool.for_namespace("a").signals.send(lease.execution_id, "go")
    assert [step.name for step in await pool.leases.journal(lease.fence)] == ["one"]
    waits = await pool.leases.read_waits(lease.fence, {"go": 0})
    assert [signal.name for signal in waits.signals] == ["go"]
    assert [held.fence for held in await pool.leases.held("worker")] == [lease.fence]
    assert (await pool.leases.peek([lease.execution_id]))[lease.execution_id].lease_id == lease.fence.lease_id
    outcome = await pool.leases.suspend(lease.fence, ["late"], timeout="1h")
    assert not isinstance(outcome, Satisfied)


async def test_child_is_stored_in_the_namespace_of_its_parent(pool: Engine) -> None:
    await submit(pool, "c")
    [lease] = await claim(pool)
    [child] = await pool.leases.submit_children(lease.fence, [ChildSubmission("one", Submission(kind="child"))])
    await pool.leases.wait_children(lease.fence, [child.id])
    assert (await pool.for_namespace("c").executions.describe(child.id)).parent_id == lease.execution_id
    [child_lease] = await claim(pool)
    assert (child_lease.namespace, child_lease.execution_id) == ("c", child.id)
    await pool.leases.complete(child_lease.fence)
    [parent] = await claim(pool)
    assert (parent.namespace, parent.execution_id, parent.origin) == ("c", lease.execution_id, "resumed")


async def test_calls_without_a_fence_act_in_the_namespace_of_the_engine(pool: Engine) -> None:
    id_ = await submitted(pool)
    assert (await pool.executions.describe(id_)).namespace == "pool"
    await submit(pool, "a")
    assert [execution.id for execution in (await pool.executions.list()).items] == [id_]
    assert (await pool.executions.describe(id_)).state is State.WAITING


async def test_idle_worker_is_woken_by_work_of_every_claimed_namespace(pool: Engine) -> None:
    for tenant in TENANTS:
        with pool.leases.watch(["default"]) as work:
            await submit(pool, tenant)
            assert await work.wait("10s")


async def test_claim_namespaces_are_a_list_of_distinct_names(store: TestStore) -> None:
    for names in ([], "tenant", [""], [7]):
        with pytest.raises(InvalidRequest):
            store.connecting(claim_namespaces=names)
