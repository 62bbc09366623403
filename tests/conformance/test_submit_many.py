"""submit_many: every submission is answered for itself, in its place, whatever its neighbours are."""

from __future__ import annotations

from datetime import timedelta
from unittest.mock import patch

from flowfabric.core.ids import IdMinter
from flowfabric.engine import Conflict, Created, Duplicate, Engine, InvalidRequest, Refused, State, Submission, routes
from flowfabric.testing import VirtualClock
from tests.facts import nothing_written, refused
from tests.stores import TestStore

ID = IdMinter(lambda: 1_893_456_000_000, lambda bits: 1).mint()


async def test_answers_come_in_the_order_of_the_submissions(engine: Engine, clock: VirtualClock) -> None:
    known = await engine.executions.submit("job", b"known", id=ID)
    keyed = await engine.executions.submit("job", b"keyed", key="order-1")
    answers = await engine.executions.submit_many([
        Submission(kind="job", payload=b"0", key="order-2"),
        Submission(kind="job", payload=b"1"),
        Submission(kind="job", payload=b"known", id=ID),
        Submission(kind="job", payload=b"3", delay="1h"),
        Submission(kind="job", payload=b"keyed", key="order-1"),
        Submission(kind="job", payload=b"5", ready_at=clock.now() - timedelta(hours=1)),
    ])  # fmt: skip
    assert answers[2] == Duplicate(known.id)
    assert answers[4] == Duplicate(keyed.id)
    for place, state in ((0, State.WAITING), (1, State.WAITING), (3, State.DELAYED), (5, State.WAITING)):
        answer = answers[place]
        assert isinstance(answer, Created)
        assert answer.state is state
        assert (await engine.executions.describe(answer.id)).payload == b"%d" % place


async def test_a_refused_submission_does_not_touch_its_neighbours(engine: Engine, clock: VirtualClock) -> None:
    await engine.executions.submit("job", b"known", id=ID)
    await engine.executions.submit("job", b"keyed", key="order-1")
    await engine.lanes.drain("old")
    answers = await engine.executions.submit_many([
        Submission(kind="job", payload=b"0"),
        Submission(kind="job", payload=b"other", id=ID),
        Submission(kind="job", payload=b"2"),
        Submission(kind="job", payload=b"other", key="order-1"),
        Submission(kind="job", payload=b"4", lane="old"),
        Submission(kind="job", payload=b"5", deadline=clock.now() - timedelta(seconds=1)),
        Submission(kind="job", payload=b"6", key="order-2"),
    ])  # fmt: skip
    kinds = [type(answer) for answer in answers]
    assert kinds == [Created, Conflict, Created, Conflict, Refused, InvalidRequest, Created]
    codes = [getattr(answer, "code", None) for answer in answers]
    mismatch = "idempotency_mismatch"
    assert codes == [None, mismatch, None, mismatch, "lane_draining", "deadline_in_past", None]
    payloads = {lease.payload for lease in await engine.leases.claim(["default", "old"], "worker", limit=100)}
    assert payloads == {b"known", b"keyed", b"0", b"2", b"6"}


async def test_an_id_or_key_given_twice_in_one_batch_is_created_once(engine: Engine) -> None:
    answers = await engine.executions.submit_many([
        Submission(kind="job", payload=b"in", id=ID),
        Submission(kind="job", payload=b"in", id=ID),
        Submission(kind="job", payload=b"other", id=ID),
        Submission(kind="job", payload=b"keyed", key="order-1"),
        Submission(kind="job", payload=b"keyed", key="order-1"),
        Submission(kind="job", payload=b"other", key="order-1"),
    ])  # fmt: skip
    keyed = answers[3]
    assert isinstance(keyed, Created)
    assert answers[:2] == [Created(ID, State.WAITING), Duplicate(ID)]
    assert answers[4] == Duplicate(keyed.id)
    assert [getattr(answers[place], "code", None) for place in (2, 5)] == ["idempotency_mismatch"] * 2
    assert len((await engine.executions.list()).items) == 2


async def test_minted_ids_increase_within_a_batch(engine: Engine) -> None:
    answers = await engine.executions.submit_many([Submission(kind="job") for _ in range(20)])
    ids = [answer.id for answer in answers if isinstance(answer, Created)]
    assert len(ids) == 20
    assert ids == sorted(set(ids))


async def test_a_batch_may_hold_a_thousand_and_none_at_all(engine: Engine, store: TestStore) -> None:
    submission = Submission(kind="job", payload=b"in")
    answers = await engine.executions.submit_many([submission] * 1000)
    assert sum(isinstance(answer, Created) for answer in answers) == 1000
    assert (await engine.executions.count())[State.WAITING].number == 1000
    async with nothing_written(store):
        await refused(engine.executions.submit_many([submission] * 1001), "out_of_range", InvalidRequest)
        assert await engine.executions.submit_many([]) == []


async def test_known_and_new_routes_may_be_mixed_when_too_many_are_remembered(engine: Engine) -> None:
    with patch.object(routes, "_MOST_ROUTES", 2):
        for kind in ("a", "b", "c"):
            await engine.executions.submit(kind)
        answers = await engine.executions.submit_many([Submission(kind="a"), Submission(kind="new")])
    kinds = [(await engine.executions.describe(answer.id)).kind for answer in answers if isinstance(answer, Created)]
    assert kinds == ["a", "new"]
