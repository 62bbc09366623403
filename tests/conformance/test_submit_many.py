"""Tests of submit_many, which returns one outcome per submission, independent of the others."""

from __future__ import annotations

from datetime import timedelta

from flowfabric.core.ids import IdMinter
from flowfabric.engine import Conflict, Created, Duplicate, Engine, InvalidRequest, Refused, State, Submission
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written, refused
from tests.stores import TestStore

ID = IdMinter(lambda: 1_893_456_000_000, lambda bits: 1).mint()


async def test_outcomes_are_in_the_order_of_the_submissions(engine: Engine, clock: VirtualClock) -> None:
    existing = await engine.executions.submit("job", b"known", id=ID)
    keyed = await engine.executions.submit("job", b"keyed", key="order-1")
    outcomes = await engine.executions.submit_many(
        [
            Submission(kind="job", payload=b"0", key="order-2"),
            Submission(kind="job", payload=b"1"),
            Submission(kind="job", payload=b"known", id=ID),
            Submission(kind="job", payload=b"3", delay="1h"),
            Submission(kind="job", payload=b"keyed", key="order-1"),
            Submission(kind="job", payload=b"5", ready_at=clock.now() - timedelta(hours=1)),
        ]
    )
    assert outcomes[2] == Duplicate(existing.id)
    assert outcomes[4] == Duplicate(keyed.id)
    for index, state in ((0, State.WAITING), (1, State.WAITING), (3, State.DELAYED), (5, State.WAITING)):
        outcome = outcomes[index]
        assert isinstance(outcome, Created)
        assert outcome.state is state
        assert (await engine.executions.describe(outcome.id)).payload == b"%d" % index


async def test_refused_submission_does_not_affect_the_others(engine: Engine, clock: VirtualClock) -> None:
    await engine.executions.submit("job", b"known", id=ID)
    await engine.executions.submit("job", b"keyed", key="order-1")
    await engine.lanes.drain("old")
    outcomes = await engine.executions.submit_many(
        [
            Submission(kind="job", payload=b"0"),
            Submission(kind="job", payload=b"other", id=ID),
            Submission(kind="job", payload=b"2"),
            Submission(kind="job", payload=b"other", key="order-1"),
            Submission(kind="job", payload=b"4", lane="old"),
            Submission(kind="job", payload=b"5", deadline=clock.now() - timedelta(seconds=1)),
            Submission(kind="job", payload=b"6", key="order-2"),
        ]
    )
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [Created, Conflict, Created, Conflict, Refused, InvalidRequest, Created]
    codes = [getattr(outcome, "code", None) for outcome in outcomes]
    mismatch = "idempotency_mismatch"
    assert codes == [None, mismatch, None, mismatch, "lane_draining", "deadline_in_past", None]
    payloads = {lease.payload for lease in await engine.leases.claim(["default", "old"], "worker", limit=100)}
    assert payloads == {b"known", b"keyed", b"0", b"2", b"6"}


async def test_repeated_id_or_key_in_one_batch_is_created_once(engine: Engine) -> None:
    outcomes = await engine.executions.submit_many(
        [
            Submission(kind="job", payload=b"in", id=ID),
            Submission(kind="job", payload=b"in", id=ID),
            Submission(kind="job", payload=b"other", id=ID),
            Submission(kind="job", payload=b"keyed", key="order-1"),
            Submission(kind="job", payload=b"keyed", key="order-1"),
            Submission(kind="job", payload=b"other", key="order-1"),
        ]
    )
    keyed = outcomes[3]
    assert isinstance(keyed, Created)
    assert outcomes[:2] == [Created(ID, State.WAITING), Duplicate(ID)]
    assert outcomes[4] == Duplicate(keyed.id)
    assert [getattr(outcomes[index], "code", None) for index in (2, 5)] == ["idempotency_mismatch"] * 2
    assert len((await engine.executions.list()).items) == 2


async def test_minted_ids_increase_within_a_batch(engine: Engine) -> None:
    outcomes = await engine.executions.submit_many([Submission(kind="job") for _ in range(20)])
    ids = [outcome.id for outcome in outcomes if isinstance(outcome, Created)]
    assert len(ids) == 20
    assert ids == sorted(set(ids))


async def test_batch_may_be_empty_and_has_at_most_a_thousand_submissions(engine: Engine, store: TestStore) -> None:
    submission = Submission(kind="job", payload=b"in")
    outcomes = await engine.executions.submit_many([submission] * 1000)
    assert sum(isinstance(outcome, Created) for outcome in outcomes) == 1000
    assert (await engine.executions.count())[State.WAITING].value == 1000
    async with nothing_written(store):
        await refused(engine.executions.submit_many([submission] * 1001), "out_of_range", InvalidRequest)
        assert await engine.executions.submit_many([]) == []


async def test_known_and_new_routes_may_be_mixed(engine: Engine) -> None:
    for kind in ("a", "b", "c"):
        await engine.executions.submit(kind)
    outcomes = await engine.executions.submit_many([Submission(kind="a"), Submission(kind="new")])
    kinds = [
        (await engine.executions.describe(outcome.id)).kind for outcome in outcomes if isinstance(outcome, Created)
    ]
    assert kinds == ["a", "new"]
