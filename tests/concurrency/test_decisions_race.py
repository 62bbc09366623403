"""Test races of decisions: one decision of an approver counts, and every sender receives that decision."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowfabric.engine import AnyOf, Count, Decided, Engine, NewWaitpoint, Refused
from flowfabric.testing import VirtualClock
from tests.concurrency.gates import block_writes, wait_until_engines_blocked
from tests.concurrency.wait_soundness import assert_waits_sound
from tests.concurrency.waits import code_of, run_in_forced_order
from tests.scenarios import Wait, suspended
from tests.stores import TestStore, opened

OPS, FINANCE = "approval:refund[ops]", "approval:refund[finance]"
ROUNDS = 20


async def asked(engine: Engine, need: int = 2) -> Wait:
    keys = [OPS, FINANCE]
    bindings = [NewWaitpoint(OPS, approver="ops"), NewWaitpoint(FINANCE, approver="finance")]
    condition = AnyOf([Count(need, "sources", keys, "approve"), Count(1, "sources", keys, "reject")])
    return await suspended(engine, bindings, condition)


def by_link(engine: Engine, wait: Wait, word: Any) -> Any:
    return engine.signals.decide(wait.token(OPS), word, "by link")


def by_operator(engine: Engine, wait: Wait, word: Any) -> Any:
    return engine.signals.decide(wait.waitpoint(OPS), word, "by operator", principal="ann", for_="ops")


def by_signal(engine: Engine, wait: Wait, word: Any) -> Any:
    return engine.signals.deliver(wait.token(OPS), word)


async def test_link_and_operator_decide_at_the_same_moment_and_one_decision_counts(
    store: TestStore, engine: Engine, clock: VirtualClock
) -> None:
    async with opened(store, clock) as rival:
        for number in range(ROUNDS):
            wait = await asked(engine)
            words = ("approve", "reject") if number % 2 else ("reject", "approve")
            calls = [by_link(engine, wait, words[0]), by_operator(rival, wait, words[1])]
            outcomes = await asyncio.gather(*(calls if number % 4 < 2 else calls[::-1]))
            assert sorted(outcome.repeated for outcome in outcomes) == [False, True]
            [decision] = {outcome.decision for outcome in outcomes}
            [signal] = await engine.signals.list(wait.id, include_unmatched=True)
            assert decision.approve == (signal.name == "approve")
            assert {outcome.delivery.signal_id for outcome in outcomes} == {signal.id}
            await assert_waits_sound(store, [signal.id])


@pytest.mark.parametrize("second", [by_link, by_operator, by_signal])
@pytest.mark.parametrize("first", [by_link, by_operator, by_signal])
async def test_decision_that_waits_for_another_returns_that_decision(
    store: TestStore, engine: Engine, clock: VirtualClock, first: Any, second: Any
) -> None:
    async with opened(store, clock) as rival:
        wait = await asked(engine)
        async with block_writes(store, wait.id):
            calls = [
                asyncio.ensure_future(first(engine, wait, "approve")),
                asyncio.ensure_future(second(rival, wait, "reject")),
            ]
            await wait_until_engines_blocked(store, [engine, rival])
        outcomes = await asyncio.gather(*calls)
    ids = {outcome.delivery.signal_id if isinstance(outcome, Decided) else outcome.signal_id for outcome in outcomes}
    [signal] = await engine.signals.list(wait.id, include_unmatched=True)
    assert ids == {signal.id}
    await assert_waits_sound(store, [signal.id])


@pytest.mark.parametrize("first", [by_link, by_operator])
async def test_decision_behind_the_end_of_its_wait_is_refused_with_the_reason(
    store: TestStore, engine: Engine, clock: VirtualClock, first: Any
) -> None:
    async with opened(store, clock) as rival:
        wait = await asked(engine, need=1)
        ending = (rival, lambda side: side.signals.decide(wait.token(FINANCE), "approve"))
        decided, refused = await run_in_forced_order(store, ending, (engine, lambda side: first(side, wait, "approve")))
    assert isinstance(decided, Decided) and not decided.repeated
    assert isinstance(refused, Refused) and code_of(refused) == "approval_closed"
    assert refused.fields["end"] == "decided"
    await assert_waits_sound(store, [decided.delivery.signal_id])
