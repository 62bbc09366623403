"""Test that a join is resolved once when its upstream members end concurrently on separate connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from flowfabric.engine import Engine, FlowAlreadyTerminal, Join, Siblings, all_of, any_of, quorum
from flowfabric.testing import VirtualClock
from tests.concurrency.flow_soundness import assert_flows_sound
from tests.concurrency.gates import wait_until_blocked
from tests.concurrency.schedules import WITHOUT_BOUND, Orders, two_walkers, walk
from tests.concurrency.waits import Act, code_of, run_in_forced_order
from tests.flows import Flow, built, count_cancelled
from tests.sizes import Size
from tests.stores import PostgresTestStore, TestStore, opened

BOTH_ORDERS = pytest.mark.parametrize("swapped", [False, True], ids=["in order", "swapped"])
SIDES = {"a": [], "b": [], "join": ["a", "b"]}
# For each case: the calls that end the two upstream members, the join, and the allowed states of the member `join`
# afterwards.
ENDS: dict[str, tuple[str, str, Join, set[str]]] = {
    "all of both": ("complete", "complete", all_of(), {"waiting"}),
    "any of both": ("complete", "complete", any_of(siblings=Siblings.LET_RUN), {"waiting"}),
    "first wins": ("complete", "complete", any_of(), {"waiting"}),
    "one fails": ("complete", "fail", all_of(), {"skipped"}),
    "one fails, others are cancelled": ("complete", "fail", all_of(siblings=Siblings.CANCEL_REMAINING), {"skipped"}),
    "one is cancelled": ("complete", "cancel", quorum(1), {"waiting", "skipped"}),
    "both fail": ("fail", "fail", any_of(), {"skipped"}),
}
# The cases that are tested in every order of the statements.
CLOSE = ("all of both", "first wins")


@pytest.fixture
async def rival(store: TestStore, engine: Engine, clock: VirtualClock) -> AsyncIterator[Engine]:
    """A second engine on the same store with separate connections."""
    async with opened(store, clock) as rival:
        yield rival


async def build_join(engine: Engine, case: str) -> tuple[Flow, Act, Act]:
    """Return a flow and the two calls that end the upstream members of its member `join`."""
    one, other, join, _ = ENDS[case]
    flow = await built(engine, SIDES, joins={"join": join})
    return flow, await end_call(flow, "a", one), await end_call(flow, "b", other)


async def end_call(flow: Flow, name: str, how: str) -> Act:
    fence = (await flow.claim(name)).fence
    acts: dict[str, Act] = {
        "complete": lambda engine: engine.leases.complete(fence, name.encode()),
        "fail": lambda engine: engine.leases.fail(fence, "broken", failure_class="permanent"),
        "cancel": lambda engine: engine.operator.cancel(flow[name], "stop"),
    }
    return acts[how]


@BOTH_ORDERS
@pytest.mark.parametrize("case", ENDS)
async def test_two_upstreams_ending_concurrently_decide_their_join(
    store: TestStore, engine: Engine, rival: Engine, case: str, swapped: bool
) -> None:
    flow, first, second = await build_join(engine, case)
    if swapped:
        first, second = second, first
    await run_in_forced_order(store, (engine, first), (rival, second))
    assert await flow.member("join") in ENDS[case][3]
    await assert_flows_sound(store)


@pytest.mark.full
@pytest.mark.parametrize("store", ["postgres"], indirect=True)
@pytest.mark.parametrize(
    "case", [case if case in CLOSE else pytest.param(case, marks=pytest.mark.long) for case in ENDS]
)
async def test_join_is_decided_in_every_order_of_statements(
    store: PostgresTestStore,
    engine: Engine,
    clock: VirtualClock,
    size: Size,
    case: str,
    scoreboard: Callable[[str], None],
) -> None:
    closely = case in CLOSE
    orders = Orders(switches=size.of(1, 2 if closely else 1, WITHOUT_BOUND if closely else 3))
    async with two_walkers(store, clock) as walkers:
        while True:
            flow, first, second = await build_join(engine, case)
            await walk(walkers, (first, second), orders)
            assert await flow.member("join") in ENDS[case][3], f"order {orders.runs}: {orders}"
            if not orders.again():
                break
    most = "any number of" if orders.switches == WITHOUT_BOUND else f"at most {orders.switches}"
    scoreboard(f"{orders.runs} orders: every possible order with {most} switches")
    await assert_flows_sound(store)


@BOTH_ORDERS
async def test_added_edge_and_concurrent_upstream_end_are_both_seen(
    store: TestStore, engine: Engine, rival: Engine, swapped: bool
) -> None:
    flow = await built(engine, {"a": [], "b": []}, seal=False)
    complete = await end_call(flow, "a", "complete")
    add: Act = lambda side: side.flows.add_edge(flow.id, "a", "b")  # noqa: E731
    calls = [(engine, complete), (rival, add)]
    await run_in_forced_order(store, *(reversed(calls) if swapped else calls))
    assert await flow.member("b") == "waiting"
    await assert_flows_sound(store)


async def test_claim_concurrent_with_an_added_edge_is_refused(store: TestStore, engine: Engine, rival: Engine) -> None:
    flow = await built(engine, {"a": [], "b": []}, seal=False)
    add: Act = lambda side: side.flows.add_edge(flow.id, "a", "b")  # noqa: E731
    claim: Act = lambda side: side.leases.claim_execution(flow["b"], "worker-1")  # noqa: E731
    _, claimed = await run_in_forced_order(store, (engine, add), (rival, claim))
    assert (code_of(claimed), await flow.member("b")) == ("execution_not_leaseable", "blocked")
    await assert_flows_sound(store)


@BOTH_ORDERS
async def test_loser_completes_before_the_winner_or_not_at_all(
    store: TestStore, engine: Engine, rival: Engine, swapped: bool
) -> None:
    flow = await built(engine, SIDES, joins={"join": any_of()})
    calls = [(engine, await end_call(flow, "a", "complete")), (rival, await end_call(flow, "b", "complete"))]
    _, late = await run_in_forced_order(store, *(reversed(calls) if swapped else calls))
    assert code_of(late) == "execution_not_active"
    assert sorted([await flow.member("a"), await flow.member("b")]) == ["cancelled", "completed"]
    await assert_flows_sound(store)


@BOTH_ORDERS
async def test_member_completes_before_its_flow_is_cancelled_or_not_at_all(
    store: TestStore, engine: Engine, rival: Engine, swapped: bool
) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    complete = await end_call(flow, "a", "complete")
    cancel: Act = lambda side: side.flows.cancel(flow.id, "enough")  # noqa: E731
    if swapped:
        result, late = await run_in_forced_order(store, (rival, cancel), (engine, complete))
        assert (count_cancelled(result), code_of(late)) == (2, "execution_not_active")
        assert await flow.states() == {"a": "cancelled", "b": "cancelled"}
    else:
        _, result = await run_in_forced_order(store, (engine, complete), (rival, cancel))
        assert count_cancelled(result) == 1
        assert await flow.states() == {"a": "completed", "b": "cancelled"}
    await assert_flows_sound(store)


async def test_one_of_two_concurrent_flow_cancels_takes_effect(store: TestStore, engine: Engine, rival: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    act: Callable[[str], Act] = lambda who: lambda side: side.flows.cancel(flow.id, who)  # noqa: E731
    first, second = await run_in_forced_order(store, (engine, act("one")), (rival, act("two")))
    assert count_cancelled(first) == 2
    assert isinstance(second, FlowAlreadyTerminal)
    assert second.reason == "one"
    await assert_flows_sound(store)


@BOTH_ORDERS
async def test_flow_finishes_once_when_its_last_two_members_end_concurrently(
    store: TestStore, engine: Engine, rival: Engine, swapped: bool
) -> None:
    flow = await built(engine, {"a": [], "b": []})
    calls = [(engine, await end_call(flow, "a", "complete")), (rival, await end_call(flow, "b", "complete"))]
    await run_in_forced_order(store, *(reversed(calls) if swapped else calls))
    assert await flow.state() == "completed"
    await assert_flows_sound(store)


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
@pytest.mark.parametrize("act", ["complete", "cancel flow"])
async def test_deadlock_with_another_application_is_retried_invisibly(
    store: PostgresTestStore, engine: Engine, act: str, deadlocks: list[BaseException]
) -> None:
    """The other application locks the rows in reverse order, and the server aborts the engine's transaction."""
    flow = await built(engine, {"a": [], "b": ["a"]})
    fence = (await flow.claim("a")).fence
    stranger = await asyncpg.connect(store.url, server_settings={"deadlock_timeout": "10min"})
    async with stranger.transaction():
        await stranger.execute(f'SELECT id FROM "{store.schema}".execution WHERE id = $1 FOR UPDATE', flow["a"])
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "complete": lambda: engine.leases.complete(fence, b""),
            "cancel flow": lambda: engine.flows.cancel(flow.id, "enough"),
        }
        call = asyncio.ensure_future(calls[act]())
        await wait_until_blocked(store, engine, 1)
        await stranger.execute(f'SELECT id FROM "{store.schema}".flow WHERE id = $1 FOR UPDATE', flow.id)
        assert not call.done()
    await call
    await stranger.close()
    assert len(deadlocks) >= 1
    assert await flow.member("b") == ("waiting" if act == "complete" else "cancelled")
    await assert_flows_sound(store)
