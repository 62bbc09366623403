"""Test flows of ten thousand members: a join of all members, and a cancellation that continues after its process was
killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from flowfabric.engine import CancelPolicy, Engine, FlowAlreadyTerminal, FlowState, Unavailable, any_of
from tests.children import children
from tests.concurrency.flow_soundness import assert_flows_sound
from tests.concurrency.waits import duty
from tests.faults.failing_driver import FAILURES, fit_fuse
from tests.flows import Flow, built, flow_events
from tests.sizes import Size
from tests.stores import PostgresTestStore, TestStore, opened

CLAIMED = 1_000
BATCH = 1_000
LONG = pytest.mark.long


async def counted(store: TestStore) -> dict[str, int]:
    """Return the number of executions in each state."""
    rows = await store.query("SELECT state, COUNT(*) AS number FROM ff.execution GROUP BY state")
    return {row["state"]: row["number"] for row in rows}


async def complete_everything(engine: Engine) -> int:
    """Complete all waiting executions. Return their number."""
    done = 0
    while leases := await engine.leases.claim(["default"], "worker-1", limit=CLAIMED):
        results = await engine.leases.complete_many([(lease.fence, b"") for lease in leases])
        assert all(getattr(result, "state", None) == "completed" for result in results), results[:3]
        done += len(leases)
    return done


async def test_fan_in_of_ten_thousand_completes(
    store: TestStore, size: Size, scoreboard: Callable[[str], None]
) -> None:
    number = size.of(500, 9_998, 9_998)
    names = [f"m{place}" for place in range(number)]
    async with opened(store) as engine:
        began = time.monotonic()
        flow = await built(engine, {"first": [], **{name: ["first"] for name in names}, "last": names})
        submitted = time.monotonic() - began
        assert await complete_everything(engine) == number + 2
        scoreboard(f"{number + 2} members: submitted in {submitted:.1f} s, all done {time.monotonic() - began:.1f} s")
        assert await flow.state() == "completed"
        assert await flow_events(store, flow.id) == ["finished"]
        assert await counted(store) == {"completed": number + 2}
    await assert_flows_sound(store)


@LONG
async def test_fan_in_completes_with_members_ending_in_several_engines(
    store: TestStore, scoreboard: Callable[[str], None]
) -> None:
    """Four engines complete the members concurrently, and every completion needs the lock of the flow."""
    number = 9_999
    names = [f"m{place}" for place in range(number)]
    async with opened(store) as first, opened(store) as second, opened(store) as third, opened(store) as fourth:
        flow = await built(first, {**{name: [] for name in names}, "last": names})
        began = time.monotonic()
        done = await asyncio.gather(*(complete_singly(engine) for engine in (first, second, third, fourth)))
        scoreboard(f"{number} members ended by four engines in {time.monotonic() - began:.1f} s, {done} by each")
        # SQLite's write lock is not fair, so some engines may complete no member.
        assert sum(count > 0 for count in done) > 1
        assert sum(done) + await complete_everything(first) == number + 1
        assert await flow.state() == "completed"
        assert await flow_events(store, flow.id) == ["finished"]
    await assert_flows_sound(store)


async def complete_singly(engine: Engine) -> int:
    """Complete all waiting executions, one call each."""
    done = 0
    while leases := await engine.leases.claim(["default"], "worker-1", limit=50):
        await asyncio.gather(*(engine.leases.complete(lease.fence, b"") for lease in leases))
        done += len(leases)
    return done


async def test_winner_and_hundred_losers_end_in_one_transaction_or_not_at_all(store: TestStore) -> None:
    names = [f"m{place}" for place in range(101)]
    async with opened(store, retry_for=0) as engine:
        flow = await built(engine, {**{name: [] for name in names}, "end": names}, joins={"end": any_of()})
        lease, fuse, at = await flow.claim("m0"), fit_fuse(engine), 0
        while await flow.member("m0") == "active":
            assert await counted(store) == {"active": 1, "waiting": 100, "blocked": 1}
            at += 1
            fuse.arm(at, FAILURES[store.name]["outage"])
            with contextlib.suppress(Unavailable):
                await engine.leases.complete(lease.fence, b"")
            fuse.disarm()
        assert at > 4, "the call has failed at several statements before it succeeded"
        assert await counted(store) == {"completed": 1, "cancelled": 100, "waiting": 1}
    await assert_flows_sound(store)


@pytest.mark.parametrize(
    "killed_in",
    [
        pytest.param(1, id="first batch", marks=LONG),
        pytest.param(2, id="second batch"),
        pytest.param(3, id="third batch", marks=LONG),
    ],
)
async def test_flow_cancel_continues_after_its_process_was_killed(
    store: TestStore, size: Size, killed_in: int, scoreboard: Callable[[str], None]
) -> None:
    enough = 100 + BATCH * (killed_in - 1)
    number = size.of(max(1_200, enough), 10_000 if killed_in == 2 else enough, 10_000)
    async with opened(store) as engine:
        flow = await big_flow(engine, number)
        leases = await engine.leases.claim(["default"], "worker-1", limit=10)
        await engine.leases.complete_many([(lease.fence, b"kept") for lease in leases[:5]])
        with children("tests.faults.flow_canceller", [store.url, options(store), str(flow.id), str(killed_in)]) as [
            child
        ]:
            child.send_line("go")
            assert child.read_reply() == "inside"
            child.kill()
        killed = await counted(store)
        assert killed.get("cancelled", 0) in (BATCH * (killed_in - 1), BATCH * (killed_in - 2)), killed
        began = time.monotonic()
        result: Any = await engine.flows.cancel(flow.id, "again", wait="1m")
        while await duty("flow_cancellation")(engine):
            pass
        took_s, done = time.monotonic() - began, killed.get("cancelled", 0)
        scoreboard(f"{number} members, killed with {done} of them cancelled; the rest took {took_s:.1f} s")
        assert killed_in == 1 or result == FlowAlreadyTerminal(
            FlowState.CANCELLED, CancelPolicy.CANCEL_ALL, "enough", "child"
        )
        assert await counted(store) == {"completed": 5, "cancelled": number - 5}
        for lease in leases[5:]:
            [late] = await engine.leases.complete_many([(lease.fence, b"late")])
            assert getattr(late, "code", None) == "execution_not_active"
        assert await flow.state() == "cancelled"
        assert isinstance(await engine.flows.cancel(flow.id, "once more"), FlowAlreadyTerminal)
        assert await counted(store) == {"completed": 5, "cancelled": number - 5}
        assert await flow_events(store, flow.id) == ["cancel_requested", "finished"]
    await assert_flows_sound(store)


async def big_flow(engine: Engine, number: int) -> Flow:
    """Return a flow in which half of the members wait for the other half."""
    half = number // 2
    shape: dict[str, list[str]] = {f"a{place}": [] for place in range(half)}
    return await built(engine, shape | {f"b{place}": [f"a{place}"] for place in range(number - half)})


def options(store: TestStore) -> str:
    connect_options: dict[str, Any] = {"durable": False}
    if isinstance(store, PostgresTestStore):
        connect_options["schema"] = store.schema
    return json.dumps(connect_options)
