"""Run pairs of calls on one flow in every order of their statements.

In every order the rows of the flow stay consistent, a granted lease stays valid unless a rule revokes it, and no
deadlock occurs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from flowfabric.core.ids import derive_id
from flowfabric.engine import Child, ChildrenReady, Edge, EdgeKind, Engine, Lease, Replayed, Satisfied, any_of
from flowfabric.testing import VirtualClock
from tests.concurrency.flow_soundness import assert_flows_sound
from tests.concurrency.schedules import Orders, two_walkers, walk
from tests.concurrency.waits import Act, code_of
from tests.flows import Flow, built, child, created, with_children
from tests.scenarios import leased
from tests.sizes import Size
from tests.stores import PostgresTestStore

pytestmark = pytest.mark.full

Check = Callable[[Any, Any], Awaitable[bool]]


@dataclass(frozen=True)
class Pair:
    """Two calls, and a check of their results and of the stored state."""

    one: Act
    other: Act
    check: Check
    note: dict[str, Any] = field(default_factory=dict)


async def claim_races_with_flow_cancel(engine: Engine) -> Pair:
    flow = await built(engine, {"a": [], "b": []})
    cancel: Act = lambda side: side.flows.cancel(flow.id, "enough", policy="cancel_pending")  # noqa: E731
    return Pair(cancel, _claim(flow, "a"), _lease_means_active(flow, "a", otherwise="cancelled"))


async def claim_races_with_upstream_replay(engine: Engine) -> Pair:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.complete("a")
    replay: Act = lambda side: side.operator.replay(flow["a"])  # noqa: E731
    fits = _lease_means_active(flow, "b", otherwise="blocked")

    async def check(replayed: Any, claimed: Any) -> bool:
        """Return True if the replay succeeded and the edge is satisfied exactly if `b` was claimed first."""
        [edge] = (await engine.flows.describe(flow.id)).edges
        kept = edge.state.value == ("satisfied" if isinstance(claimed, Lease) else "open")
        return kept and isinstance(replayed, Replayed) and await fits(replayed, claimed)

    return Pair(replay, _claim(flow, "b"), check)


async def claim_races_with_revival_of_its_upstream(engine: Engine) -> Pair:
    flow = await built(engine, {"a": [], "b": ["a"], "always": [Edge("b", EdgeKind.ON_COMPLETION)]})
    await flow.fail("a")
    replay: Act = lambda side: side.operator.replay(flow["a"])  # noqa: E731
    fits = _lease_means_active(flow, "always", otherwise="blocked")

    async def check(replayed: Any, claimed: Any) -> bool:
        return await flow.member("b") == "blocked" and await fits(replayed, claimed)

    return Pair(replay, _claim(flow, "always"), check)


async def replays_of_both_failed_upstreams(engine: Engine) -> Pair:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"], "d": ["c"]})
    await flow.fail("a", "b")
    one: Act = lambda side: side.operator.replay(flow["a"])  # noqa: E731
    other: Act = lambda side: side.operator.replay(flow["b"])  # noqa: E731

    async def check(first: Any, second: Any) -> bool:
        revived = first.revived + second.revived
        return revived == 2 and set((await flow.states()).values()) == {"waiting", "blocked"}

    return Pair(one, other, check)


async def replay_races_with_another_failure(engine: Engine) -> Pair:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"]})
    fence = (await flow.claim("b")).fence
    await flow.fail("a")
    replay: Act = lambda side: side.operator.replay(flow["a"])  # noqa: E731
    fail: Act = lambda side: side.leases.fail(fence, "broken", failure_class="permanent")  # noqa: E731

    async def check(*_: Any) -> bool:
        return await flow.states() == {"a": "waiting", "b": "failed", "c": "skipped"}

    return Pair(replay, fail, check)


async def flow_replay_races_with_replay_of_a_member(engine: Engine) -> Pair:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.fail("a")
    whole: Act = lambda side: side.flows.replay(flow.id, failed=True)  # noqa: E731
    one: Act = lambda side: side.operator.replay(flow["a"], expected_generation=0)  # noqa: E731

    async def check(replayed: Any, _: Any) -> bool:
        member = await engine.executions.describe(flow["a"])
        revived = await engine.executions.describe(flow["b"])
        return replayed.replayed in (0, 1) and (member.generation, revived.generation) == (1, 1)

    return Pair(whole, one, check)


async def flow_replay_races_with_flow_cancel(engine: Engine) -> Pair:
    flow = await built(engine, {"a": [], "b": ["a"], "c": []})
    await flow.fail("a")
    replay: Act = lambda side: side.flows.replay(flow.id, failed=True)  # noqa: E731
    cancel: Act = lambda side: side.flows.cancel(flow.id, "enough")  # noqa: E731

    async def check(replayed: Any, _: Any) -> bool:
        refused = code_of(replayed) == "flow_already_terminal"
        rest = {"a": "failed", "b": "skipped"} if refused else {"a": "cancelled", "b": "cancelled"}
        return await flow.states() == {**rest, "c": "cancelled"}

    return Pair(replay, cancel, check)


async def claim_races_with_new_edge(engine: Engine) -> Pair:
    flow = await built(engine, {"a": [], "b": []}, seal=False)
    add: Act = lambda side: side.flows.add_edge(flow.id, "a", "b")  # noqa: E731
    return Pair(add, _claim(flow, "b"), _lease_means_active(flow, "b", otherwise="blocked"))


async def release_races_with_unhold(engine: Engine) -> Pair:
    flow = await built(engine, {"a": [], "b": []}, seal=False)
    await engine.operator.hold(flow["b"], "look")
    await engine.flows.add_edge(flow.id, "a", "b")
    fence = (await flow.claim("a")).fence
    complete: Act = lambda side: side.leases.complete(fence, b"")  # noqa: E731
    unhold: Act = lambda side: side.operator.unhold(flow["b"])  # noqa: E731
    return Pair(complete, unhold, _state_is(flow, "b", "waiting"))


async def hold_races_with_block(engine: Engine) -> Pair:
    flow = await built(engine, {"a": [], "b": []}, seal=False)
    add: Act = lambda side: side.flows.add_edge(flow.id, "a", "b")  # noqa: E731
    hold: Act = lambda side: side.operator.hold(flow["b"], "look")  # noqa: E731

    async def check(added: Any, held: Any) -> bool:
        await flow.complete("a")
        if code_of(held) == "Held":
            await engine.operator.unhold(flow["b"])
        return await flow.member("b") == "waiting"

    return Pair(add, hold, check)


async def edge_added_while_upstream_ends(engine: Engine) -> Pair:
    flow = await built(engine, {"a": [], "b": []}, seal=False)
    fence = (await flow.claim("a")).fence
    complete: Act = lambda side: side.leases.complete(fence, b"")  # noqa: E731
    add: Act = lambda side: side.flows.add_edge(flow.id, "a", "b")  # noqa: E731
    return Pair(complete, add, _state_is(flow, "b", "waiting"))


async def member_added_while_upstream_ends(engine: Engine) -> Pair:
    flow = await built(engine, {"a": []}, seal=False)
    fence = (await flow.claim("a")).fence
    complete: Act = lambda side: side.leases.complete(fence, b"")  # noqa: E731
    add: Act = lambda side: side.flows.add(flow.id, "b", "job", after=["a"])  # noqa: E731

    async def check(_: Any, added: Any) -> bool:
        return (await engine.executions.describe(added.execution_id)).state.value == "waiting"

    return Pair(complete, add, check)


async def member_added_while_flow_is_cancelled(engine: Engine) -> Pair:
    flow = await created(engine)
    cancel: Act = lambda side: side.flows.cancel(flow.id, "enough")  # noqa: E731
    add: Act = lambda side: side.flows.add(flow.id, "a", "job")  # noqa: E731

    async def check(_: Any, added: Any) -> bool:
        if code_of(added) == "flow_already_terminal":
            return True
        return (await engine.executions.describe(added.execution_id)).state.value == "cancelled"

    return Pair(cancel, add, check)


async def flow_sealed_while_last_member_ends(engine: Engine) -> Pair:
    flow = await built(engine, {"a": []}, seal=False)
    fence = (await flow.claim("a")).fence
    complete: Act = lambda side: side.leases.complete(fence, b"")  # noqa: E731
    seal: Act = lambda side: side.flows.seal(flow.id)  # noqa: E731

    async def check(*_: Any) -> bool:
        return await flow.state() == "completed"

    return Pair(complete, seal, check)


async def child_ends_while_parent_starts_to_wait(engine: Engine) -> Pair:
    return await _parent_and_child(engine, lambda fence, kid: lambda side: side.leases.wait_children(fence, [kid]))


async def child_ends_while_parent_suspends(engine: Engine) -> Pair:
    return await _parent_and_child(
        engine, lambda fence, kid: lambda side: side.leases.suspend(fence, [Child("kid", kid)])
    )


async def first_children_while_parent_is_cancelled(engine: Engine) -> Pair:
    lease = await leased(engine)
    submit: Act = lambda side: side.leases.submit_children(lease.fence, [child("kid")])  # noqa: E731
    cancel: Act = lambda side: side.operator.cancel(lease.execution_id, "all", children=True)  # noqa: E731

    async def check(submitted: Any, _: Any) -> bool:
        if code_of(submitted) == "execution_not_active":
            return True
        return (await engine.executions.describe(submitted[0].id)).state.value == "cancelled"

    return Pair(submit, cancel, check)


async def first_children_while_parent_completes(engine: Engine) -> Pair:
    """Submit the first children and complete their parent concurrently."""
    lease = await leased(engine)
    submit: Act = lambda side: side.leases.submit_children(lease.fence, [child("kid")])  # noqa: E731
    complete: Act = lambda side: side.leases.complete(lease.fence, b"")  # noqa: E731

    async def check(submitted: Any, _: Any) -> bool:
        if code_of(submitted) == "execution_not_active":
            return True
        kid = await engine.leases.claim_execution(submitted[0].id, "worker-2")
        await engine.leases.complete(kid.fence, b"")
        return (await engine.flows.describe(lease.execution_id)).state.value == "completed"

    return Pair(submit, complete, check)


async def first_children_under_two_keys(engine: Engine) -> Pair:
    """Submit the first children of one parent concurrently under two keys, as two branches would."""
    lease = await leased(engine)
    one: Act = lambda side: side.leases.submit_children(lease.fence, [child("one")])  # noqa: E731
    other: Act = lambda side: side.leases.submit_children(lease.fence, [child("other")])  # noqa: E731

    async def check(*submitted: Any) -> bool:
        kinds = [code_of(result[0]) for result in submitted if isinstance(result, list)]
        counts = (await engine.flows.describe(lease.execution_id)).counts
        return kinds == ["Created", "Created"] and sum(counts.values()) == 2

    return Pair(one, other, check)


async def first_children_while_parent_waits(engine: Engine) -> Pair:
    """Let the parent wait for a child before the reply to the child's submit has arrived."""
    lease = await leased(engine)
    kid = derive_id(lease.execution_id, "child", "0", "kid")
    submit: Act = lambda side: side.leases.submit_children(lease.fence, [child("kid")])  # noqa: E731
    wait: Act = lambda side: side.leases.wait_children(lease.fence, [kid])  # noqa: E731

    async def check(_: Any, waited: Any) -> bool:
        state = (await engine.executions.describe(lease.execution_id)).state.value
        return (code_of(waited), state) in {("WaitingForChildren", "blocked"), ("NotFound", "active")}

    return Pair(submit, wait, check)


async def loser_suspends(engine: Engine) -> Pair:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"]}, joins={"c": any_of()})
    winner, loser = await flow.claim("a"), await flow.claim("b")
    complete: Act = lambda side: side.leases.complete(winner.fence, b"")  # noqa: E731
    suspend: Act = lambda side: side.leases.suspend(loser.fence, ["go"])  # noqa: E731

    async def check(*_: Any) -> bool:
        execution = await engine.executions.describe(flow["b"])
        return execution.state.value == "cancelled" and not execution.waitpoints and execution.suspension is None

    return Pair(complete, suspend, check)


async def loser_is_signalled(engine: Engine) -> Pair:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"]}, joins={"c": any_of()})
    winner, loser = await flow.claim("a"), await flow.claim("b")
    result: Any = await engine.leases.suspend(loser.fence, ["go"])
    complete: Act = lambda side: side.leases.complete(winner.fence, b"")  # noqa: E731
    signal: Act = lambda side: side.signals.deliver(result.token("go"), "go")  # noqa: E731
    return Pair(complete, signal, _state_is(flow, "b", "cancelled"))


PAIRS = [
    claim_races_with_flow_cancel, claim_races_with_upstream_replay, claim_races_with_revival_of_its_upstream,
    replays_of_both_failed_upstreams, replay_races_with_another_failure, flow_replay_races_with_replay_of_a_member,
    flow_replay_races_with_flow_cancel, claim_races_with_new_edge,
    release_races_with_unhold, hold_races_with_block, edge_added_while_upstream_ends, member_added_while_upstream_ends,
    member_added_while_flow_is_cancelled, flow_sealed_while_last_member_ends,
    child_ends_while_parent_starts_to_wait, child_ends_while_parent_suspends,
    first_children_while_parent_is_cancelled, first_children_while_parent_completes,
    first_children_under_two_keys, first_children_while_parent_waits, loser_suspends, loser_is_signalled,
]  # fmt: skip


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
@pytest.mark.parametrize("arrange", PAIRS, ids=lambda pair: pair.__name__.replace("_", " "))
async def test_two_operations_keep_the_rules_in_every_order_of_statements(
    store: PostgresTestStore,
    engine: Engine,
    clock: VirtualClock,
    size: Size,
    arrange: Callable[[Engine], Any],
    deadlocks: list[BaseException],
) -> None:
    orders, most = Orders(switches=size.of(1, 1, 2)), size.of(16, 99, 999)
    async with two_walkers(store, clock) as walkers:
        while orders.runs < most:
            pair: Pair = await arrange(engine)
            await walk(walkers, (pair.one, pair.other), orders)
            results = [walker.result() for walker in walkers]
            assert await pair.check(*results), f"order {orders.runs}: {results}; {orders}"
            if not orders.again():
                break
    await assert_flows_sound(store)
    assert deadlocks == []


def _claim(flow: Flow, name: str) -> Act:
    return lambda side: side.leases.claim_execution(flow[name], "worker-1")


def _lease_means_active(flow: Flow, name: str, *, otherwise: str) -> Check:
    async def check(_: Any, claimed: Any) -> bool:
        return await flow.member(name) == ("active" if isinstance(claimed, Lease) else otherwise)

    return check


def _state_is(flow: Flow, name: str, state: str) -> Check:
    async def check(*_: Any) -> bool:
        return await flow.member(name) == state

    return check


async def _parent_and_child(engine: Engine, wait: Callable[[Any, Any], Act]) -> Pair:
    lease = await leased(engine)
    kid = (await with_children(engine, lease, "kid"))["kid"]
    inner = await engine.leases.claim_execution(kid, "worker-2")
    complete: Act = lambda side: side.leases.complete(inner.fence, b"")  # noqa: E731

    async def check(_: Any, waited: Any) -> bool:
        """Return True if the parent kept its lease and got the child's outcome, or was suspended and can resume."""
        state = (await engine.executions.describe(lease.execution_id)).state.value
        if isinstance(waited, ChildrenReady | Satisfied):
            received = waited.outcomes if isinstance(waited, ChildrenReady) else waited.signals
            return state == "active" and len(received) == 1
        return state == "waiting"

    return Pair(complete, wait(lease.fence, kid), check)
