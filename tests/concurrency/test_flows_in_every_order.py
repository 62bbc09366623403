"""Pairs of calls on one flow, statement by statement on two connections, in one order after another: whoever is first,
nobody hangs, nobody who was told that it has the work loses it against the rules, and nobody waits in a circle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from flowfabric.core.ids import derived_id
from flowfabric.engine import Child, ChildrenReady, Engine, Lease, Replayed, Satisfied, any_of
from flowfabric.testing import VirtualClock
from tests.concurrency.flow_soundness import assert_flows_sound
from tests.concurrency.interleaving import Orders, two_walkers, walk
from tests.concurrency.waits import Act, code_of
from tests.flows import Flow, built, child, created, with_children
from tests.scenarios import leased
from tests.sizes import Size
from tests.stores import PostgresTestStore

Check = Callable[[Any, Any], Awaitable[bool]]


@dataclass(frozen=True)
class Pair:
    """Two calls, and what must be true of their answers and of what they leave."""

    one: Act
    other: Act
    check: Check
    note: dict[str, Any] = field(default_factory=dict)


async def claimed_or_cancelled(engine: Engine) -> Pair:
    flow = await built(engine, {"a": [], "b": []})
    cancel: Act = lambda side: side.flows.cancel(flow.id, "enough", policy="cancel_pending")  # noqa: E731
    return Pair(cancel, _claim(flow, "a"), _lease_means_active(flow, "a", otherwise="cancelled"))


async def claimed_or_blocked_by_a_replay(engine: Engine) -> Pair:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.complete("a")
    replay: Act = lambda side: side.operator.replay(flow["a"])  # noqa: E731
    fits = _lease_means_active(flow, "b", otherwise="blocked")

    async def check(replayed: Any, claimed: Any) -> bool:
        """Who has started keeps what it got, and is no reason to refuse the replay."""
        [edge] = (await engine.flows.describe(flow.id)).edges
        kept = edge.state.value == ("satisfied" if isinstance(claimed, Lease) else "open")
        return kept and isinstance(replayed, Replayed) and await fits(replayed, claimed)

    return Pair(replay, _claim(flow, "b"), check)


async def claimed_or_blocked_by_an_edge(engine: Engine) -> Pair:
    flow = await built(engine, {"a": [], "b": []}, seal=False)
    add: Act = lambda side: side.flows.add_edge(flow.id, "a", "b")  # noqa: E731
    return Pair(add, _claim(flow, "b"), _lease_means_active(flow, "b", otherwise="blocked"))


async def released_while_it_is_unheld(engine: Engine) -> Pair:
    flow = await built(engine, {"a": [], "b": []}, seal=False)
    await engine.operator.hold(flow["b"], "look")
    await engine.flows.add_edge(flow.id, "a", "b")
    fence = (await flow.claim("a")).fence
    complete: Act = lambda side: side.leases.complete(fence, b"")  # noqa: E731
    unhold: Act = lambda side: side.operator.unhold(flow["b"])  # noqa: E731
    return Pair(complete, unhold, _is(flow, "b", "waiting"))


async def held_while_it_is_blocked(engine: Engine) -> Pair:
    flow = await built(engine, {"a": [], "b": []}, seal=False)
    add: Act = lambda side: side.flows.add_edge(flow.id, "a", "b")  # noqa: E731
    hold: Act = lambda side: side.operator.hold(flow["b"], "look")  # noqa: E731

    async def check(added: Any, held: Any) -> bool:
        await flow.complete("a")
        if code_of(held) == "Held":
            await engine.operator.unhold(flow["b"])
        return await flow.member("b") == "waiting"

    return Pair(add, hold, check)


async def an_edge_from_one_that_ends(engine: Engine) -> Pair:
    flow = await built(engine, {"a": [], "b": []}, seal=False)
    fence = (await flow.claim("a")).fence
    complete: Act = lambda side: side.leases.complete(fence, b"")  # noqa: E731
    add: Act = lambda side: side.flows.add_edge(flow.id, "a", "b")  # noqa: E731
    return Pair(complete, add, _is(flow, "b", "waiting"))


async def a_member_after_one_that_ends(engine: Engine) -> Pair:
    flow = await built(engine, {"a": []}, seal=False)
    fence = (await flow.claim("a")).fence
    complete: Act = lambda side: side.leases.complete(fence, b"")  # noqa: E731
    add: Act = lambda side: side.flows.add(flow.id, "b", "job", after=["a"])  # noqa: E731

    async def check(_: Any, added: Any) -> bool:
        return (await engine.executions.describe(added.execution_id)).state.value == "waiting"

    return Pair(complete, add, check)


async def a_member_of_a_flow_that_is_cancelled(engine: Engine) -> Pair:
    flow = await created(engine)
    cancel: Act = lambda side: side.flows.cancel(flow.id, "enough")  # noqa: E731
    add: Act = lambda side: side.flows.add(flow.id, "a", "job")  # noqa: E731

    async def check(_: Any, added: Any) -> bool:
        if code_of(added) == "flow_already_terminal":
            return True
        return (await engine.executions.describe(added.execution_id)).state.value == "cancelled"

    return Pair(cancel, add, check)


async def sealed_while_the_last_one_ends(engine: Engine) -> Pair:
    flow = await built(engine, {"a": []}, seal=False)
    fence = (await flow.claim("a")).fence
    complete: Act = lambda side: side.leases.complete(fence, b"")  # noqa: E731
    seal: Act = lambda side: side.flows.seal(flow.id)  # noqa: E731

    async def check(*_: Any) -> bool:
        return await flow.state() == "completed"

    return Pair(complete, seal, check)


async def a_child_ends_while_its_parent_begins_to_wait(engine: Engine) -> Pair:
    return await _parent_and_child(engine, lambda fence, kid: lambda side: side.leases.wait_children(fence, [kid]))


async def a_child_ends_while_its_parent_is_suspended(engine: Engine) -> Pair:
    return await _parent_and_child(
        engine, lambda fence, kid: lambda side: side.leases.suspend(fence, [Child("kid", kid)])
    )


async def first_children_of_one_that_is_cancelled(engine: Engine) -> Pair:
    lease = await leased(engine)
    submit: Act = lambda side: side.leases.submit_children(lease.fence, [child("kid")])  # noqa: E731
    cancel: Act = lambda side: side.operator.cancel(lease.execution_id, "all", children=True)  # noqa: E731

    async def check(submitted: Any, _: Any) -> bool:
        if code_of(submitted) == "execution_not_active":
            return True
        return (await engine.executions.describe(submitted[0].id)).state.value == "cancelled"

    return Pair(submit, cancel, check)


async def first_children_of_one_that_completes(engine: Engine) -> Pair:
    """Its worker sends both at once, on two connections."""
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
    """Branches of one worker send them, on two connections."""
    lease = await leased(engine)
    one: Act = lambda side: side.leases.submit_children(lease.fence, [child("one")])  # noqa: E731
    other: Act = lambda side: side.leases.submit_children(lease.fence, [child("other")])  # noqa: E731

    async def check(*submitted: Any) -> bool:
        made = [code_of(answer[0]) for answer in submitted if isinstance(answer, list)]
        counts = (await engine.flows.describe(lease.execution_id)).counts
        return made == ["Created", "Created"] and sum(counts.values()) == 2

    return Pair(one, other, check)


async def first_children_that_are_waited_for(engine: Engine) -> Pair:
    """The worker sends the wait before it has heard that the child is stored."""
    lease = await leased(engine)
    kid = derived_id(lease.execution_id, "child", "0", "kid")
    submit: Act = lambda side: side.leases.submit_children(lease.fence, [child("kid")])  # noqa: E731
    wait: Act = lambda side: side.leases.wait_children(lease.fence, [kid])  # noqa: E731

    async def check(_: Any, waited: Any) -> bool:
        state = (await engine.executions.describe(lease.execution_id)).state.value
        return (code_of(waited), state) in {("WaitingForChildren", "blocked"), ("NotFound", "active")}

    return Pair(submit, wait, check)


async def a_loser_that_suspends(engine: Engine) -> Pair:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"]}, joins={"c": any_of()})
    winner, loser = await flow.claim("a"), await flow.claim("b")
    complete: Act = lambda side: side.leases.complete(winner.fence, b"")  # noqa: E731
    suspend: Act = lambda side: side.leases.suspend(loser.fence, ["go"])  # noqa: E731

    async def check(*_: Any) -> bool:
        found = await engine.executions.describe(flow["b"])
        return found.state.value == "cancelled" and not found.waitpoints and found.suspension is None

    return Pair(complete, suspend, check)


async def a_loser_that_is_signalled(engine: Engine) -> Pair:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"]}, joins={"c": any_of()})
    winner, loser = await flow.claim("a"), await flow.claim("b")
    answer: Any = await engine.leases.suspend(loser.fence, ["go"])
    complete: Act = lambda side: side.leases.complete(winner.fence, b"")  # noqa: E731
    signal: Act = lambda side: side.signals.deliver(answer.token("go"), "go")  # noqa: E731
    return Pair(complete, signal, _is(flow, "b", "cancelled"))


PAIRS = [
    claimed_or_cancelled, claimed_or_blocked_by_a_replay, claimed_or_blocked_by_an_edge, released_while_it_is_unheld,
    held_while_it_is_blocked, an_edge_from_one_that_ends, a_member_after_one_that_ends,
    a_member_of_a_flow_that_is_cancelled, sealed_while_the_last_one_ends,
    a_child_ends_while_its_parent_begins_to_wait, a_child_ends_while_its_parent_is_suspended,
    first_children_of_one_that_is_cancelled, first_children_of_one_that_completes,
    first_children_under_two_keys, first_children_that_are_waited_for, a_loser_that_suspends, a_loser_that_is_signalled,
]  # fmt: skip


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
@pytest.mark.parametrize("arrange", PAIRS, ids=lambda pair: pair.__name__.replace("_", " "))
async def test_in_every_order_of_their_statements_both_keep_to_the_rules(
    store: PostgresTestStore, engine: Engine, clock: VirtualClock, size: Size, arrange: Callable[[Engine], Any],
    deadlocks: list[BaseException],
) -> None:  # fmt: skip
    orders, most = Orders(switches=size.of(1, 1, 2)), size.of(8, 99, 999)
    async with two_walkers(store, clock) as walkers:
        while orders.runs < most:
            pair: Pair = await arrange(engine)
            await walk(walkers, (pair.one, pair.other), orders)
            answers = [walker.answer() for walker in walkers]
            assert await pair.check(*answers), f"order {orders.runs}: {answers}; {orders}"
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


def _is(flow: Flow, name: str, state: str) -> Check:
    async def check(*_: Any) -> bool:
        return await flow.member(name) == state

    return check


async def _parent_and_child(engine: Engine, wait: Callable[[Any, Any], Act]) -> Pair:
    lease = await leased(engine)
    kid = (await with_children(engine, lease, "kid"))["kid"]
    inner = await engine.leases.claim_execution(kid, "worker-2")
    complete: Act = lambda side: side.leases.complete(inner.fence, b"")  # noqa: E731

    async def check(_: Any, waited: Any) -> bool:
        """Its lease was kept because the child had ended, or it was given up and the parent may go on by now."""
        state = (await engine.executions.describe(lease.execution_id)).state.value
        if isinstance(waited, ChildrenReady | Satisfied):
            told = waited.outcomes if isinstance(waited, ChildrenReady) else waited.signals
            return state == "active" and len(told) == 1
        return state == "waiting"

    return Pair(complete, wait(lease.fence, kid), check)
