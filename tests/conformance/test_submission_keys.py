"""Tests of idempotency keys: how long a key holds, whom it belongs to, and how to find its execution."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from flowfabric.engine import (
    ChildSubmission,
    Conflict,
    Created,
    Duplicate,
    Engine,
    InvalidRequest,
    NotFound,
    Policy,
    State,
    Submission,
)
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written, refused
from tests.scenarios import leased, submitted
from tests.stores import TestStore

TICK = timedelta(microseconds=1)
BRIEFLY_KEPT = Policy(retention="1h", dedup_window="30d")


async def count_keys(store: TestStore) -> int:
    return len(await store.query("SELECT 1 FROM ff.submission_key"))


async def purged(engine: Engine, clock: VirtualClock, key: str, policy: Policy) -> Created:
    """Return a submission with a key whose execution was purged an hour later."""
    first = await engine.executions.submit("job", key=key, policy=policy)
    assert isinstance(first, Created)
    await engine.operator.cancel(first.id)
    clock.advance("1h")
    await engine.reconcilers.tick()
    await refused(engine.executions.describe(first.id), "execution_not_found", NotFound)
    return first


async def test_key_holds_as_long_as_its_execution_is_kept(engine: Engine, clock: VirtualClock) -> None:
    first = await engine.executions.submit("job", b"in", key="refund-17")
    for _ in range(3):
        clock.advance("40d")
        await engine.reconcilers.tick()
        assert await engine.executions.submit("job", b"in", key="refund-17") == Duplicate(first.id)
    await engine.operator.cancel(first.id)
    clock.advance(timedelta(days=30) - TICK)
    await engine.reconcilers.tick()
    assert await engine.executions.submit("job", b"in", key="refund-17") == Duplicate(first.id)
    clock.advance(TICK)
    assert await engine.executions.submit("job", b"in", key="refund-17") == Duplicate(first.id)
    await engine.reconcilers.tick()
    assert isinstance(await engine.executions.submit("job", b"in", key="refund-17"), Created)


async def test_key_holds_until_its_window_has_passed_even_if_its_execution_was_purged(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    first = await purged(engine, clock, "once", BRIEFLY_KEPT)
    clock.advance(timedelta(days=30, hours=-1) - TICK)
    await engine.reconcilers.tick()
    async with nothing_written(store):
        assert await engine.executions.submit("job", key="once", policy=BRIEFLY_KEPT) == Duplicate(first.id)
        error = await refused(engine.executions.submit("other", key="once"), "idempotency_mismatch", Conflict)
    assert error.fields == {"execution_id": first.id, "key": "once"}
    clock.advance(TICK)
    second = await engine.executions.submit("job", key="once", policy=BRIEFLY_KEPT)
    assert isinstance(second, Created)
    await engine.reconcilers.tick()
    assert await engine.executions.submit("job", key="once", policy=BRIEFLY_KEPT) == Duplicate(second.id)


async def test_duty_drops_a_key_that_outlived_its_execution_and_its_window(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    await purged(engine, clock, "once", BRIEFLY_KEPT)
    clock.advance(timedelta(days=30, hours=-1) - TICK)
    await engine.reconcilers.tick()
    assert await count_keys(store) == 1
    assert (await engine.reconcilers.due_times())["retention"] == clock.now() + TICK
    clock.advance(TICK)
    await engine.reconcilers.tick()
    assert await count_keys(store) == 0


async def test_duty_never_drops_the_key_of_an_execution_that_is_kept(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    await submitted(engine, key="kept", policy=Policy(dedup_window="1h"))
    clock.advance("2h")
    await engine.reconcilers.tick()
    assert await count_keys(store) == 1
    assert "retention" not in await engine.reconcilers.due_times()


async def test_key_with_a_window_of_zero_is_not_stored(engine: Engine, store: TestStore) -> None:
    never = Policy(dedup_window=0)
    outcomes = [await engine.executions.submit("job", policy=never, key="off") for _ in range(2)]
    assert all(isinstance(outcome, Created) for outcome in outcomes)
    assert await count_keys(store) == 0
    await refused(engine.executions.find(key="off"), "execution_not_found", NotFound)


async def test_one_of_several_concurrent_submits_takes_over_a_key_without_execution(
    engine: Engine, clock: VirtualClock
) -> None:
    first = await purged(engine, clock, "once", Policy(retention="1h", dedup_window="2h"))
    clock.advance("1h")
    outcomes = await asyncio.gather(*[engine.executions.submit("job", b"again", key="once") for _ in range(8)])
    [created] = [outcome for outcome in outcomes if isinstance(outcome, Created)]
    assert created.id != first.id
    assert [outcome for outcome in outcomes if outcome != created] == [Duplicate(created.id)] * 7


async def test_mismatch_names_the_execution_and_how_long_the_key_holds(engine: Engine) -> None:
    first = await submitted(engine, key="refund-17")
    error = await refused(engine.executions.submit("other", key="refund-17"), "idempotency_mismatch", Conflict)
    for part in ("'refund-17'", str(first), "as long as that execution is kept, and at least for its window"):
        assert part in str(error)


async def test_key_survives_a_replay_and_new_input(engine: Engine) -> None:
    lease = await leased(engine, key="loop")
    await engine.leases.continue_with(lease.fence, b"next")
    await engine.operator.cancel(lease.execution_id)
    await engine.operator.replay(lease.execution_id)
    assert await engine.executions.submit("job", b"in", key="loop") == Duplicate(lease.execution_id)


async def test_execution_is_found_by_its_key(engine: Engine) -> None:
    id_ = await submitted(engine, key="refund-17")
    await submitted(engine, key="refund-18")
    found = await engine.executions.find(key="refund-17")
    assert found == await engine.executions.describe(id_)
    assert found.key == "refund-17"
    await refused(engine.executions.find(key="refund-19"), "execution_not_found", NotFound)
    await refused(engine.for_namespace("other").executions.find(key="refund-17"), "execution_not_found", NotFound)
    with pytest.raises(InvalidRequest):
        await engine.executions.find(key="")


async def test_purged_execution_of_a_key_is_reported_as_purged(engine: Engine, clock: VirtualClock) -> None:
    first = await purged(engine, clock, "once", BRIEFLY_KEPT)
    error = await refused(engine.executions.find(key="once"), "execution_not_found", NotFound)
    assert error.fields == {"execution_id": first.id, "key": "once"}
    assert "purged" in str(error)
    assert (await engine.executions.list(key="once")).items == ()


async def test_list_filters_by_key(engine: Engine) -> None:
    id_ = await submitted(engine, key="refund-17")
    await submitted(engine, key="refund-18")
    assert [item.id for item in (await engine.executions.list(key="refund-17", kind="job")).items] == [id_]
    assert (await engine.executions.list(key="refund-17", kind="other")).items == ()
    assert (await engine.executions.list(key="refund-17", state=State.FAILED)).items == ()
    assert (await engine.executions.list(key="refund-19")).items == ()


def detached(path: str, key: str | None, body: bytes = b"") -> ChildSubmission:
    return ChildSubmission(path, Submission(kind="job", payload=body, key=key), detached=True)


async def test_key_of_a_detached_child_is_scoped_to_the_namespace(engine: Engine, store: TestStore) -> None:
    outside = await engine.executions.submit("job", key="taken")
    one, other = await leased(engine), await leased(engine)
    [taken, first] = await engine.leases.submit_children(one.fence, [detached("a", "taken"), detached("b", "new")])
    assert taken == Duplicate(outside.id)
    assert isinstance(first, Created)
    assert await engine.leases.submit_children(other.fence, [detached("c", "new")]) == [Duplicate(first.id)]
    assert await engine.executions.submit("job", key="new") == Duplicate(first.id)
    assert (await engine.executions.find(key="new")).id == first.id
    async with nothing_written(store):
        again = await engine.leases.submit_children(one.fence, [detached("a", "taken"), detached("b", "new")])
        assert again == [Duplicate(outside.id), Duplicate(first.id)]
        await refused(
            engine.leases.submit_children(other.fence, [detached("d", None), detached("c", "new", b"other")]),
            "idempotency_mismatch",
            Conflict,
        )


async def test_one_request_submits_one_detached_child_per_key(engine: Engine) -> None:
    lease = await leased(engine)
    first, second = await engine.leases.submit_children(lease.fence, [detached("a", "same"), detached("b", "same")])
    assert isinstance(first, Created)
    assert second == Duplicate(first.id)
    assert len((await engine.executions.list(kind="job", state=State.WAITING)).items) == 1


async def test_stale_worker_takes_no_key(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    await engine.operator.revoke_lease(lease.execution_id)
    async with nothing_written(store):
        await refused(engine.leases.submit_children(lease.fence, [detached("a", "new")]), "lease_revoked")


def test_key_of_a_child_that_is_not_detached_is_scoped_to_its_parent() -> None:
    with pytest.raises(InvalidRequest, match="scoped to its parent"):
        ChildSubmission("a", Submission(kind="job", key="refund-17"))


async def test_two_parents_may_use_the_same_key_for_children(engine: Engine) -> None:
    one, other = await leased(engine), await leased(engine)
    kid = ChildSubmission("same", Submission(kind="job"))
    [first] = await engine.leases.submit_children(one.fence, [kid])
    [second] = await engine.leases.submit_children(other.fence, [kid])
    assert isinstance(first, Created)
    assert isinstance(second, Created)
    assert first.id != second.id
    other_body = ChildSubmission("same", Submission(kind="other"))
    error = await refused(engine.leases.submit_children(one.fence, [other_body]), "idempotency_mismatch", Conflict)
    assert "scoped to its parent" in str(error)
