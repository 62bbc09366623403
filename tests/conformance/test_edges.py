"""Tests that every value within the limits is stored and returned unchanged on every backend."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from flowfabric.engine import (
    AlreadySatisfied,
    Backoff,
    Created,
    Edge,
    EdgeKind,
    Engine,
    FlowFabricError,
    InvalidRequest,
    Policy,
    PriorityChanged,
    Refused,
    Siblings,
    State,
    Step,
    Submission,
    WorkerId,
    any_of,
)
from flowfabric.testing import VirtualClock
from tests.concurrency.flow_soundness import assert_flows_sound
from tests.expectations import error_of, nothing_written, refused
from tests.faults.failing_driver import FAILURES, fit_fuse
from tests.flows import Shape, built, claimable
from tests.scenarios import WORKER, leased, submitted
from tests.stores import TestStore, opened

PAIR = {"a": [], "b": ["a"]}

MIB = 1024 * 1024
FIRST, LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
# Names that are legal but easily mishandled: quotes, markup, formats, wide and composed letters.
ODD_NAMES = [
    "Robert'); DROP TABLE ff.execution; --", '"quoted"', "<b>&amp;</b>", "%s %(x)s {0} :name $1 ?", "back\\slash",
    "日本語", "\U0001f986\U0001f980", "é", "e\u0301", "NULL", "true", "0", "-", "a  b", "[1, 2]",
    "{\"a\": 1}", "ff.execution",
]  # fmt: skip
FREE_TEXT = "two\nlines\t\u202eright to left\u200djoined\x01\x7f\ufffe\U0010ffff'\"\\%s:name$1"


def _wide_text(length: int, seed: int) -> str:
    """Return text of four-byte characters that does not compress."""
    return "".join(chr(Random(seed * 1000 + index).randrange(0x20000, 0x2A6D0)) for index in range(length))


async def test_names_at_their_limit_are_stored_completely(engine: Engine) -> None:
    kind, lane, key, encoding, step, instance, reason = (_wide_text(256, seed) for seed in range(7))
    namespace = engine.for_namespace(_wide_text(256, 9))
    id_ = await submitted(namespace, kind, lane=lane, key=key, encoding=encoding, policy=Policy(max_retries=0))
    [lease] = await namespace.leases.claim([lane], WorkerId(_wide_text(256, 8), instance), kinds=[kind])
    await namespace.leases.checkpoint(lease.fence, [Step(step, encoding=encoding)])
    await namespace.leases.fail(lease.fence, "no", category=reason)
    execution = await namespace.executions.describe(id_)
    assert (execution.namespace, execution.kind, execution.lane, execution.encoding) == (
        namespace.namespace,
        kind,
        lane,
        encoding,
    )
    assert execution.attempts[0].worker == lease.worker
    assert execution.last_failure is not None
    assert execution.last_failure.category == reason
    assert [recorded_step.name for recorded_step in await namespace.executions.steps(id_)] == [step]
    assert [recorded_step.id for recorded_step in (await namespace.executions.list(kind=kind, lane=lane)).items] == [
        id_
    ]


async def test_every_part_of_a_route_may_be_at_its_limit(engine: Engine) -> None:
    capabilities = sorted(f"{_wide_text(2, seed)}-{seed:03d}" for seed in range(256))
    lane, namespace = _wide_text(256, 1), engine.for_namespace(_wide_text(256, 3))
    outcome = await namespace.executions.submit(_wide_text(256, 2), lane=lane, requires=capabilities)
    [lease] = await namespace.leases.claim([lane], WORKER, capabilities=capabilities)
    assert isinstance(outcome, Created)
    assert lease.execution_id == outcome.id
    assert (await namespace.executions.describe(outcome.id)).requires == tuple(capabilities)


async def test_unusual_names_are_distinguished_and_kept_unchanged(engine: Engine) -> None:
    submissions = [Submission(kind=name, lane=name, key=name, encoding=name) for name in ODD_NAMES]
    created = [
        outcome.id for outcome in await engine.executions.submit_many(submissions) if isinstance(outcome, Created)
    ]
    assert len(created) == len(ODD_NAMES)
    for name, id_ in zip(ODD_NAMES, created, strict=True):
        [lease] = await engine.leases.claim([name], name, kinds=[name])
        assert (lease.execution_id, lease.kind, lease.lane, lease.encoding) == (id_, name, name, name)
        assert [held_lease.fence for held_lease in await engine.leases.held(name)] == [lease.fence]
        await engine.leases.checkpoint(lease.fence, [Step(step_name) for step_name in ODD_NAMES])
    assert {step.name for step in await engine.executions.steps(created[0])} == set(ODD_NAMES)
    assert set(ODD_NAMES) <= {lane.lane for lane in (await engine.lanes.list()).items}


async def test_free_text_is_returned_unchanged(engine: Engine) -> None:
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
    assert [execution.id for execution in (await engine.executions.list(tags={"team.note": FREE_TEXT})).items] == [
        failed.id
    ]
    assert await engine.operator.unhold_all(hold_reason=FREE_TEXT) == 1


@pytest.mark.parametrize("size", [0, MIB])
async def test_payload_result_and_step_may_be_empty_or_one_mebibyte(engine: Engine, size: int) -> None:
    data = Random(size).randbytes(size)
    lease = await leased(engine, payload=data)
    await engine.leases.complete(lease.fence, data, steps=[Step("s", data)])
    outcome = await engine.executions.result(lease.execution_id)
    [step] = await engine.executions.steps(lease.execution_id)
    assert outcome is not None
    assert lease.payload == outcome.result == step.payload == data


async def test_64_tags_of_a_kibibyte_are_stored_and_one_more_is_refused(engine: Engine, store: TestStore) -> None:
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


async def test_first_and_last_allowed_times_can_be_used(engine: Engine, clock: VirtualClock) -> None:
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


async def test_longest_durations_of_a_policy_are_accepted(engine: Engine, clock: VirtualClock) -> None:
    longest = timedelta(days=3650)
    policy = Policy(
        max_retries=1_000_000,
        max_reclaims=1_000_000,
        max_replays=1_000_000,
        max_signals=1_000_000,
        backoff=Backoff(initial=longest, max_delay=longest, multiplier=1000, jitter=False),
        attempt_timeout=longest,
        deadline=longest,
        lease_ttl="7d",
        dedup_window=longest,
        retention=longest,
    )
    lease = await leased(engine, policy=policy, key="k")
    assert lease.expires_at == clock.now() + timedelta(days=7)
    await engine.leases.fail(lease.fence, "no")
    await engine.operator.cancel(lease.execution_id)
    assert (await engine.executions.describe(lease.execution_id)).policy == policy
    clock.advance(longest)
    await engine.reconcilers.tick()
    assert (await engine.executions.list()).items == ()


async def test_largest_numbers_are_handled(engine: Engine) -> None:
    lease = await leased(engine)
    id_ = lease.execution_id
    assert await engine.executions.history(id_, after=2**62) == []
    assert await engine.executions.steps(id_, after=2**62, limit=10_000) == []
    assert await engine.operator.revoke_lease(id_, epoch=2**63 - 1) == AlreadySatisfied("epoch_moved")
    waiting = await submitted(engine)
    assert await engine.operator.change_priority(waiting, 10**400) == PriorityChanged(0, 9000)
    assert await engine.operator.change_priority(waiting, -(10**400)) == PriorityChanged(9000, 0)
    error = await error_of(engine.operator.replay(id_, expected_generation=2**31))
    assert (type(error), error.code) == (Refused, "generation_moved")


async def test_claim_may_name_a_thousand_lanes_and_a_limit_of_a_thousand(engine: Engine) -> None:
    lanes = [f"lane-{number}" for number in range(1000)]
    kinds = [f"kind-{number}" for number in range(1000)]
    id_ = await submitted(engine, "kind-7", lane="lane-999")
    options: dict[str, Any] = {"kinds": kinds, "limit": 1000, "capabilities": [f"c{number}" for number in range(256)]}
    assert [lease.execution_id for lease in await engine.leases.claim(lanes, WORKER, **options)] == [id_]


async def test_unsatisfied_dependency_blocks_a_member(engine: Engine) -> None:
    flow = await built(engine, PAIR)
    assert await claimable(engine) == {flow["a"]}
    await refused(engine.leases.claim_execution(flow["b"], "worker-1"), "execution_not_leaseable")
    execution = await engine.executions.describe(flow["b"])
    assert execution.vector.eligibility_state == "blocked_by_dependencies"


async def test_end_and_its_edges_are_written_in_one_transaction(store: TestStore, clock: VirtualClock) -> None:
    """If a statement fails, either the upstream member is still active or all its downstream members have changed."""
    async with opened(store, clock) as engine:
        fuse = fit_fuse(engine)
        failing_statement, is_complete = 1, False
        while not is_complete:
            flow = await built(engine, {"a": [], "b": ["a"], "c": ["a"], "d": [Edge("a", EdgeKind.ON_FAILURE)]})
            lease = await flow.claim("a")
            fuse.arm(failing_statement, FAILURES[store.name]["outage"])
            try:
                await engine.leases.complete(lease.fence, b"")
            except FlowFabricError:
                pass
            finally:
                fuse.disarm()
            states = await flow.states()
            assert tuple(states.values()) in {
                ("active", "blocked", "blocked", "blocked"),
                ("completed", "waiting", "waiting", "skipped"),
            }, (failing_statement, fuse.statements)
            is_complete, failing_statement = not fuse.blown, failing_statement + 1
        await assert_flows_sound(store)
    assert failing_statement > 3


async def test_release_keeps_a_delay_and_does_not_change_running_members(engine: Engine, clock: VirtualClock) -> None:
    shape: Shape = {
        "a": [],
        "b": [],
        "delayed": ["a", "b"],
        "runs": ["a", "b"],
        "waits": ["a", "b"],
        "retries": ["a", "b"],
    }
    joins = {name: any_of(siblings=Siblings.LET_RUN) for name in ("delayed", "runs", "waits", "retries")}
    flow = await built(engine, shape, joins=joins, options={"delayed": {"delay": "1h"}})
    await flow.complete("a")
    await flow.claim("runs")
    await engine.leases.suspend((await flow.claim("waits")).fence, ["go"])
    await engine.leases.fail((await flow.claim("retries")).fence, "not yet")
    names = ("delayed", "runs", "waits", "retries")
    before = {name: await engine.executions.describe(flow[name]) for name in names}
    assert [execution.state.value for execution in before.values()] == ["delayed", "active", "suspended", "delayed"]
    await flow.complete("b")
    assert {name: await engine.executions.describe(flow[name]) for name in names} == before
    assert await claimable(engine) == set()


async def test_released_member_shows_it_in_every_dimension_of_its_vector(engine: Engine) -> None:
    flow = await built(engine, PAIR)
    await flow.complete("a")
    vector = (await engine.executions.describe(flow["b"])).vector
    assert (vector.public_state, vector.eligibility_state) == ("waiting", "eligible_now")
    assert "dependencies" not in str(vector.blocking_reason)
    assert "children" not in str(vector.blocking_reason)


async def test_running_member_is_not_skipped_by_a_replayed_upstream(engine: Engine, store: TestStore) -> None:
    """A started member no longer depends on its upstream member, even if that one is replayed and then fails."""
    flow = await built(engine, PAIR)
    await flow.complete("a")
    lease = await flow.claim("b")
    await engine.operator.replay(flow["a"])
    await flow.fail("a")
    assert await flow.member("b") == "active"
    await engine.leases.complete(lease.fence, b"")
    assert await flow.member("b") == "completed"
    await assert_flows_sound(store)
