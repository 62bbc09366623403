"""Members that end at the same time, each on a connection of its own: a join hears of both, and finishes once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from flowfabric.engine import Engine, FlowAlreadyCancelled, FlowCancelled, Join, Siblings, all_of, any_of, quorum
from flowfabric.testing import VirtualClock
from tests.concurrency.flow_soundness import assert_flows_sound
from tests.concurrency.gates import all_wait_for_a_lock
from tests.concurrency.interleaving import WITHOUT_BOUND, Orders, two_walkers, walk
from tests.concurrency.waits import Act, code_of, forced
from tests.flows import Flow, built
from tests.sizes import Size
from tests.stores import PostgresTestStore, TestStore, opened

BOTH_ORDERS = pytest.mark.parametrize("swapped", [False, True], ids=["in order", "swapped"])
SIDES = {"a": [], "b": [], "join": ["a", "b"]}
# How the two ends come about, the join, and what must have become of it, whoever was first.
ENDS: dict[str, tuple[str, str, Join, set[str]]] = {
    "all of both": ("complete", "complete", all_of(), {"waiting"}),
    "any of both": ("complete", "complete", any_of(siblings=Siblings.LET_RUN), {"waiting"}),
    "first wins": ("complete", "complete", any_of(), {"waiting"}),
    "one fails": ("complete", "fail", all_of(), {"skipped"}),
    "one fails, the others go": ("complete", "fail", all_of(siblings=Siblings.CANCEL_REMAINING), {"skipped"}),
    "one is cancelled": ("complete", "cancel", quorum(1), {"waiting", "skipped"}),
    "both fail": ("fail", "fail", any_of(), {"skipped"}),
}
# Those that are walked through more closely than the others.
CLOSE = ("all of both", "first wins")


@pytest.fixture
async def rival(store: TestStore, engine: Engine, clock: VirtualClock) -> AsyncIterator[Engine]:
    """A second engine on the same store, with connections of its own."""
    async with opened(store, clock) as rival:
        yield rival


async def two_ends(engine: Engine, case: str) -> tuple[Flow, Act, Act]:
    """A flow, and the two calls that end the upstreams of its join."""
    one, other, join, _ = ENDS[case]
    flow = await built(engine, SIDES, joins={"join": join})
    return flow, await an_end(flow, "a", one), await an_end(flow, "b", other)


async def an_end(flow: Flow, name: str, how: str) -> Act:
    fence = (await flow.claim(name)).fence
    acts: dict[str, Act] = {
        "complete": lambda engine: engine.leases.complete(fence, name.encode()),
        "fail": lambda engine: engine.leases.fail(fence, "broken", failure_class="permanent"),
        "cancel": lambda engine: engine.operator.cancel(flow[name], "stop"),
    }
    return acts[how]


@BOTH_ORDERS
@pytest.mark.parametrize("case", ENDS)
async def test_two_upstreams_that_end_at_once_decide_their_join(
    store: TestStore, engine: Engine, rival: Engine, case: str, swapped: bool
) -> None:
    flow, first, second = await two_ends(engine, case)
    if swapped:
        first, second = second, first
    await forced(store, (engine, first), (rival, second))
    assert await flow.member("join") in ENDS[case][3]
    await assert_flows_sound(store)


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
@pytest.mark.parametrize(
    "case", [case if case in CLOSE else pytest.param(case, marks=pytest.mark.long) for case in ENDS]
)
async def test_their_join_is_decided_in_every_order_of_their_statements(
    store: PostgresTestStore, engine: Engine, clock: VirtualClock, size: Size, case: str,
    scoreboard: Callable[[str], None],
) -> None:  # fmt: skip
    closely = case in CLOSE
    orders = Orders(switches=size.of(1, 2 if closely else 1, WITHOUT_BOUND if closely else 3))
    async with two_walkers(store, clock) as walkers:
        while True:
            flow, first, second = await two_ends(engine, case)
            await walk(walkers, (first, second), orders)
            assert await flow.member("join") in ENDS[case][3], f"order {orders.runs}: {orders}"
            if not orders.again():
                break
    most = "any number of" if orders.switches == WITHOUT_BOUND else f"at most {orders.switches}"
    scoreboard(f"{orders.runs} orders, all that there are with {most} switches")
    await assert_flows_sound(store)


@BOTH_ORDERS
async def test_an_edge_and_the_end_of_its_upstream_find_each_other(
    store: TestStore, engine: Engine, rival: Engine, swapped: bool
) -> None:
    flow = await built(engine, {"a": [], "b": []}, seal=False)
    complete = await an_end(flow, "a", "complete")
    add: Act = lambda side: side.flows.add_edge(flow.id, "a", "b")  # noqa: E731
    calls = [(engine, complete), (rival, add)]
    await forced(store, *(reversed(calls) if swapped else calls))
    assert await flow.member("b") == "waiting"
    await assert_flows_sound(store)


async def test_whoever_claims_while_an_edge_is_added_comes_too_late(
    store: TestStore, engine: Engine, rival: Engine
) -> None:
    flow = await built(engine, {"a": [], "b": []}, seal=False)
    add: Act = lambda side: side.flows.add_edge(flow.id, "a", "b")  # noqa: E731
    claim: Act = lambda side: side.leases.claim_execution(flow["b"], "worker-1")  # noqa: E731
    _, claimed = await forced(store, (engine, add), (rival, claim))
    assert (code_of(claimed), await flow.member("b")) == ("execution_not_leaseable", "blocked")
    await assert_flows_sound(store)


@BOTH_ORDERS
async def test_a_loser_completes_before_the_winner_or_not_at_all(
    store: TestStore, engine: Engine, rival: Engine, swapped: bool
) -> None:
    flow = await built(engine, SIDES, joins={"join": any_of()})
    calls = [(engine, await an_end(flow, "a", "complete")), (rival, await an_end(flow, "b", "complete"))]
    _, late = await forced(store, *(reversed(calls) if swapped else calls))
    assert code_of(late) == "execution_not_active"
    assert sorted([await flow.member("a"), await flow.member("b")]) == ["cancelled", "completed"]
    await assert_flows_sound(store)


@BOTH_ORDERS
async def test_a_member_completes_before_its_flow_is_cancelled_or_not_at_all(
    store: TestStore, engine: Engine, rival: Engine, swapped: bool
) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    complete = await an_end(flow, "a", "complete")
    cancel: Act = lambda side: side.flows.cancel(flow.id, "enough")  # noqa: E731
    if swapped:
        answer, late = await forced(store, (rival, cancel), (engine, complete))
        assert (answer, code_of(late)) == (FlowCancelled(2), "execution_not_active")
        assert await flow.states() == {"a": "cancelled", "b": "cancelled"}
    else:
        _, answer = await forced(store, (engine, complete), (rival, cancel))
        assert answer == FlowCancelled(1)
        assert await flow.states() == {"a": "completed", "b": "cancelled"}
    await assert_flows_sound(store)


async def test_of_two_cancels_of_a_flow_one_cancels(store: TestStore, engine: Engine, rival: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    act: Callable[[str], Act] = lambda who: lambda side: side.flows.cancel(flow.id, who)  # noqa: E731
    first, second = await forced(store, (engine, act("one")), (rival, act("two")))
    assert first == FlowCancelled(2)
    assert isinstance(second, FlowAlreadyCancelled)
    assert second.reason == "one"
    await assert_flows_sound(store)


@BOTH_ORDERS
async def test_a_flow_finishes_once_when_its_last_two_members_end_at_once(
    store: TestStore, engine: Engine, rival: Engine, swapped: bool
) -> None:
    flow = await built(engine, {"a": [], "b": []})
    calls = [(engine, await an_end(flow, "a", "complete")), (rival, await an_end(flow, "b", "complete"))]
    await forced(store, *(reversed(calls) if swapped else calls))
    assert await flow.state() == "completed"
    await assert_flows_sound(store)


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
@pytest.mark.parametrize("act", ["complete", "cancel flow"])
async def test_a_deadlock_with_a_stranger_is_retried_and_never_seen(
    store: PostgresTestStore, engine: Engine, act: str, deadlocks: list[BaseException]
) -> None:
    """The stranger locks the rows the other way round, and is the one whom the server lets live."""
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
        await all_wait_for_a_lock(store, engine, 1)
        await stranger.execute(f'SELECT id FROM "{store.schema}".flow WHERE id = $1 FOR UPDATE', flow.id)
        assert not call.done()
    await call
    await stranger.close()
    assert len(deadlocks) >= 1
    assert await flow.member("b") == ("waiting" if act == "complete" else "cancelled")
    await assert_flows_sound(store)
