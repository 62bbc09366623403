"""If the reply to a COMMIT is lost, the caller or the engine repeats the call, and the two calls have one effect."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, islice

from flowfabric.engine import Unavailable
from flowfabric.testing import VirtualClock
from tests.faults.fault_runner import Call, Fault, Whole, check, opened_bench
from tests.faults.flow_operations import EVERY_OPERATION
from tests.faults.kit.proxy import Proxy, proxied
from tests.postgres_server import PostgresServer
from tests.sizes import Size
from tests.stores import PostgresTestStore

CALLS = [
    "submit", "complete", "complete with steps", "fail, to be retried", "delay", "operator cancel", "reclaim",
    "suspend", "deliver_signal, satisfying", "rotate",
]  # fmt: skip
MORE_CALLS = [
    "submit with a key", "submit_many", "claim", "renew", "progress", "checkpoint", "complete_many",
    "complete, not plain", "fail, for good", "release", "own cancel", "own hold", "continue_with",
    "create_waitpoints", "revoke_lease", "grant_reclaim", "replay", "hold",
    "unhold", "change_priority", "create_waitpoint", "suspend with a key", "suspend, already satisfied",
    "suspends of one caller", "deliver_signal, buffered", "deliver_signal, appended", "approve", "send",
    "operator resume", "close_waitpoint", "rotate to a drawn key", "seed",
]  # fmt: skip


# A repeat of these calls could take a second lease, end a later lease or wait, or replay a later generation. The last
# one does not use an engine.
LEFT_TO_THE_CALLER = {"claim", "revoke_lease", "replay", "operator resume", "suspends of one caller"}
FLOW_CALLS = [
    "submit_flow", "create_flow", "add_to_flow", "add_edge", "seal, finishing", "cancel_flow", "submit_children",
    "submit_children, one of them detached", "wait_children", "cancel_children", "cancel with children",
    "cancel with grace", "complete a member", "unhold_all", "register a worker", "mark a worker dead", "pause a lane",
    "a subscriber commits", "a new subscriber", "submit with a standing waitpoint",
]  # fmt: skip


async def test_lost_commit_reply_never_causes_a_second_effect(
    postgres: PostgresServer, clock: VirtualClock, scoreboard: Callable[[str], None], size: Size
) -> None:
    replies, calls = size.of((35, CALLS), (500, CALLS + MORE_CALLS), (3000, CALLS + MORE_CALLS))
    store = PostgresTestStore(postgres.dsn)
    wholes: dict[str, Whole] = {}
    committed = 0
    with proxied(postgres.dsn) as (proxy, dsn):
        behind = PostgresTestStore(dsn)
        behind.schema = store.schema
        async with behind.connecting(clock, retry_for=0) as engine, opened_bench(store, clock, engine) as bench:
            for name in islice(cycle(calls), replies):
                operation = EVERY_OPERATION[name]
                whole = wholes.get(name) or await bench.whole(operation, undisturbed)
                wholes[name] = whole
                shots = await bench.disturbed(operation, losing(proxy))
                check(f"{name}: reply lost", whole, shots)
                committed += shots.error is not None and shots.after == whole.after
    await store.drop()
    scoreboard(f"{proxy.lost} replies lost (at least {replies}), {committed} of them held the whole effect, 0 doubled")
    assert proxy.lost >= replies
    assert committed >= 0.9 * replies


async def test_engine_repeats_a_call_whose_reply_was_lost_and_it_has_one_effect(
    postgres: PostgresServer, clock: VirtualClock, scoreboard: Callable[[str], None], size: Size
) -> None:
    every_call = [call for call in CALLS + MORE_CALLS + FLOW_CALLS if call not in LEFT_TO_THE_CALLER]
    calls = size.of(["submit", "complete", "suspend", "send", "submit_flow"], every_call, every_call)
    store = PostgresTestStore(postgres.dsn)
    with proxied(postgres.dsn) as (proxy, dsn):
        behind = PostgresTestStore(dsn)
        behind.schema = store.schema
        async with behind.connecting(clock) as engine, opened_bench(store, clock, engine) as bench:
            for name in calls:
                operation = EVERY_OPERATION[name]
                whole = await bench.whole(operation, undisturbed)
                lost = proxy.lost
                shots = await bench.disturbed(operation, repeated(proxy))
                assert proxy.lost == lost + 1, f"{name}: no reply was lost"
                assert shots.error is None, f"{name}: raised {shots.error!r}"
                check(f"{name}: reply lost", whole, shots)
    await store.drop()
    scoreboard(f"{len(calls)} calls repeated by the engine, 0 doubled")


async def undisturbed(call: Call) -> BaseException | None:
    return await call()


def losing(proxy: Proxy) -> Fault:
    """Return the fault of a connection that breaks between a commit and its reply."""

    async def fault(call: Call) -> BaseException | None:
        proxy.arm()
        error = await call()
        assert isinstance(error, Unavailable), f"expected Unavailable, got {error!r}"
        return error

    return fault


def repeated(proxy: Proxy) -> Fault:
    """Return the fault of a connection that breaks between a commit and its reply, and that the engine overcomes."""

    async def fault(call: Call) -> BaseException | None:
        proxy.arm()
        return await call()

    return fault
