"""What the limits allow is stored and given back as it was, on every backend."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from flowfabric.engine import (
    AlreadySatisfied,
    Backoff,
    Created,
    Engine,
    InvalidRequest,
    Policy,
    PriorityChanged,
    Refused,
    State,
    Step,
    Submission,
    WorkerId,
)  # fmt: skip
from flowfabric.testing import VirtualClock
from tests.facts import error_of, nothing_written
from tests.scenarios import WORKER, leased, submitted
from tests.stores import TestStore

MIB = 1024 * 1024
FIRST, LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
# Legal in every name, and each of them has gone wrong somewhere: quotes, markup, formats, wide and composed letters.
ODD_NAMES = [
    "Robert'); DROP TABLE ff.execution; --", '"quoted"', "<b>&amp;</b>", "%s %(x)s {0} :name $1 ?", "back\\slash",
    "日本語", "\U0001f986\U0001f980", "é", "e\u0301", "NULL", "true", "0", "-", "a  b", "[1, 2]",
    "{\"a\": 1}", "ff.execution",
]  # fmt: skip
FREE_TEXT = "two\nlines\t\u202eright to left\u200djoined\x01\x7f\ufffe\U0010ffff'\"\\%s:name$1"


def _wide(length: int, seed: int) -> str:
    """Text of four-byte characters that no compression makes small."""
    return "".join(chr(Random(seed * 1000 + place).randrange(0x20000, 0x2A6D0)) for place in range(length))


async def test_names_at_their_limit_are_stored_whole(engine: Engine) -> None:
    kind, lane, key, encoding, step, instance, reason = (_wide(256, seed) for seed in range(7))
    there = engine.within(_wide(256, 9))
    id_ = await submitted(there, kind, lane=lane, key=key, encoding=encoding, policy=Policy(max_retries=0))
    [lease] = await there.leases.claim([lane], WorkerId(_wide(256, 8), instance), kinds=[kind])
    await there.leases.checkpoint(lease.fence, [Step(step, encoding=encoding)])
    await there.leases.fail(lease.fence, "no", category=reason)
    found = await there.executions.describe(id_)
    assert (found.namespace, found.kind, found.lane, found.encoding) == (there.namespace, kind, lane, encoding)
    assert found.attempts[0].worker == lease.worker
    assert found.last_failure is not None
    assert found.last_failure.category == reason
    assert [item.name for item in await there.executions.steps(id_)] == [step]
    assert [item.id for item in (await there.executions.list(kind=kind, lane=lane)).items] == [id_]


async def test_all_parts_of_a_route_may_be_at_their_limit_together(engine: Engine) -> None:
    capabilities = sorted(f"{_wide(2, seed)}-{seed:03d}" for seed in range(256))
    lane, there = _wide(256, 1), engine.within(_wide(256, 3))
    answer = await there.executions.submit(_wide(256, 2), lane=lane, requires=capabilities)
    [lease] = await there.leases.claim([lane], WORKER, capabilities=capabilities)
    assert isinstance(answer, Created)
    assert lease.execution_id == answer.id
    assert (await there.executions.describe(answer.id)).requires == tuple(capabilities)


async def test_odd_names_are_told_apart_and_kept_as_they_are(engine: Engine) -> None:
    submissions = [Submission(kind=name, lane=name, key=name, encoding=name) for name in ODD_NAMES]
    created = [answer.id for answer in await engine.executions.submit_many(submissions) if isinstance(answer, Created)]
    assert len(created) == len(ODD_NAMES)
    for name, id_ in zip(ODD_NAMES, created, strict=True):
        [lease] = await engine.leases.claim([name], name, kinds=[name])
        assert (lease.execution_id, lease.kind, lease.lane, lease.encoding) == (id_, name, name, name)
        assert [item.fence for item in await engine.leases.held(name)] == [lease.fence]
        await engine.leases.checkpoint(lease.fence, [Step(other) for other in ODD_NAMES])
    assert {step.name for step in await engine.executions.steps(created[0])} == set(ODD_NAMES)
    assert set(ODD_NAMES) <= set(await engine.lanes.list())


async def test_free_text_comes_back_letter_by_letter(engine: Engine) -> None:
    lease = await leased(engine, policy=Policy(max_retries=0), tags={"team.note": FREE_TEXT})
    await engine.leases.progress(lease.fence, 100, FREE_TEXT)
    await engine.leases.fail(lease.fence, FREE_TEXT)
    failed = await engine.executions.describe(lease.execution_id)
    held = await submitted(engine)
    await engine.operator.hold(held, FREE_TEXT)
    assert failed.last_failure is not None
    assert (failed.progress_message, failed.last_failure.message) == (FREE_TEXT, FREE_TEXT)
    assert failed.tags == {"team.note": FREE_TEXT}
    assert (await engine.executions.history(lease.execution_id))[-1].reason == FREE_TEXT
    assert (await engine.executions.describe(held)).hold_reason == FREE_TEXT
    assert [item.id for item in (await engine.executions.list(tags={"team.note": FREE_TEXT})).items] == [failed.id]
    assert await engine.operator.unhold_all(held_for=FREE_TEXT) == 1


@pytest.mark.parametrize("size", [0, MIB])
async def test_payload_result_and_step_may_be_empty_or_a_mebibyte(engine: Engine, size: int) -> None:
    data = Random(size).randbytes(size)
    lease = await leased(engine, payload=data)
    await engine.leases.complete(lease.fence, data, steps=[Step("s", data)])
    outcome = await engine.executions.result(lease.execution_id)
    [step] = await engine.executions.steps(lease.execution_id)
    assert outcome is not None
    assert lease.payload == outcome.result == step.payload == data


async def test_64_tags_of_a_kibibyte_are_kept_and_one_more_is_refused(engine: Engine, store: TestStore) -> None:
    tags = {f"team.k{number}": "x" * 1024 for number in range(64)}
    id_ = await submitted(engine, tags=tags)
    assert (await engine.executions.describe(id_)).tags == tags
    async with nothing_written(store):
        with pytest.raises(InvalidRequest) as refused:
            await engine.executions.set_tags(id_, {"team.more": "x"})
        assert refused.value.code == "too_many_tags"
    assert await engine.executions.set_tags(id_, {"team.k0": None, "team.more": "x"}) == {
        **{key: value for key, value in tags.items() if key != "team.k0"},
        "team.more": "x",
    }


async def test_the_first_and_the_last_moment_can_be_used(engine: Engine, clock: VirtualClock) -> None:
    past = await submitted(engine, ready_at=FIRST)
    future = await submitted(engine, ready_at=LAST, deadline=LAST)
    later = await submitted(engine, delay="3650d")
    resting = await leased(engine)
    await engine.leases.delay(resting.fence, until=LAST)
    await engine.reconcilers.tick()
    states = [(await engine.executions.describe(id_)).state for id_ in (past, future, later, resting.execution_id)]
    assert states == [State.WAITING, State.DELAYED, State.DELAYED, State.DELAYED]
    assert (await engine.executions.describe(future)).deadline_at == LAST
    assert (await engine.executions.describe(later)).ready_at == clock.now() + timedelta(days=3650)
    assert len((await engine.executions.list(created_from=FIRST, created_until=LAST)).items) == 4


async def test_the_longest_durations_of_a_policy_can_be_lived_through(engine: Engine, clock: VirtualClock) -> None:
    longest = timedelta(days=3650)
    policy = Policy(
        max_retries=1_000_000, max_reclaims=1_000_000, max_replays=1_000_000, max_signals=1_000_000,
        backoff=Backoff(initial=longest, most=longest, multiplier=1000, jitter=False), attempt_timeout=longest,
        deadline=longest, lease_ttl="7d", dedup_window=longest, retention=longest,
    )  # fmt: skip
    lease = await leased(engine, policy=policy, key="k")
    assert lease.expires_at == clock.now() + timedelta(days=7)
    await engine.leases.fail(lease.fence, "no")
    await engine.operator.cancel(lease.execution_id)
    assert (await engine.executions.describe(lease.execution_id)).policy == policy
    clock.advance(longest)
    await engine.reconcilers.tick()
    assert (await engine.executions.list()).items == ()


async def test_the_largest_numbers_are_answered_and_not_choked_on(engine: Engine) -> None:
    lease = await leased(engine)
    id_ = lease.execution_id
    assert await engine.executions.history(id_, after=2**62) == []
    assert await engine.executions.steps(id_, after=2**62, limit=10_000) == []
    assert await engine.operator.revoke_lease(id_, epoch=2**63 - 1) == AlreadySatisfied("epoch_moved")
    waiting = await submitted(engine)
    assert await engine.operator.change_priority(waiting, 10**400) == PriorityChanged(0, 9000)
    assert await engine.operator.change_priority(waiting, -(10**400)) == PriorityChanged(9000, 0)
    moved = await error_of(engine.operator.replay(id_, expected_generation=2**31))
    assert (type(moved), moved.code) == (Refused, "generation_moved")


async def test_a_claim_may_name_a_thousand_lanes_and_ask_for_a_thousand(engine: Engine) -> None:
    lanes = [f"lane-{number}" for number in range(1000)]
    kinds = [f"kind-{number}" for number in range(1000)]
    id_ = await submitted(engine, "kind-7", lane="lane-999")
    asked: dict[str, Any] = {"kinds": kinds, "limit": 1000, "capabilities": [f"c{number}" for number in range(256)]}
    assert [lease.execution_id for lease in await engine.leases.claim(lanes, WORKER, **asked)] == [id_]
