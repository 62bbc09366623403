"""If a connection breaks before the reply, the engine repeats the call with the ids that it minted for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from flowfabric.engine import (
    Created,
    DuplicateSignal,
    Engine,
    FlowCreated,
    Graph,
    Refused,
    State,
    Step,
    Submission,
    Unavailable,
)
from flowfabric.testing import VirtualClock
from tests.faults.kit.replies import Losing, LosingStore, lose_each, losing_engine
from tests.scenarios import completed, leased, submitted, suspended
from tests.stores import TestStore

Call = Callable[[Engine, Any], Awaitable[Any]]


def with_losses(engine: Engine, losing: Losing, retry_for_s: float = 5.0) -> tuple[Engine, LosingStore]:
    lossy, store = losing_engine(engine, losing)
    return Engine(replace(lossy._context, retry_for_s=retry_for_s)), store


def always(what: str) -> Losing:
    return lambda: what


async def count(store: TestStore, table: str) -> int:
    return len(await store.query(f"SELECT 1 FROM ff.{table}"))


# A lost reply.


async def test_submit_whose_reply_is_lost_stores_one_execution(engine: Engine, store: TestStore) -> None:
    lossy, losing = with_losses(engine, lose_each("reply"))
    outcome = await lossy.executions.submit("job", b"in")
    assert outcome == Created(outcome.id, State.WAITING)
    assert (losing.lost, await count(store, "execution")) == (1, 1)


async def test_delayed_submit_with_a_key_whose_reply_is_lost_is_reported_as_created(engine: Engine) -> None:
    lossy, losing = with_losses(engine, lose_each("reply"))
    outcome = await lossy.executions.submit("job", key="once", delay="1h")
    assert outcome == Created(outcome.id, State.DELAYED)
    assert losing.lost == 1


async def test_submit_many_whose_reply_is_lost_stores_each_execution_once(engine: Engine, store: TestStore) -> None:
    lossy, losing = with_losses(engine, lose_each("reply"))
    outcomes = await lossy.executions.submit_many([Submission(kind="job") for _ in range(20)])
    assert all(isinstance(outcome, Created) for outcome in outcomes)
    assert (losing.lost, await count(store, "execution")) == (1, 20)


async def test_flow_whose_reply_is_lost_is_stored_once(engine: Engine, store: TestStore) -> None:
    lossy, losing = with_losses(engine, lose_each("reply"))
    graph = Graph("report")
    graph.add("load", "job")
    assert isinstance(await lossy.flows.submit(graph), FlowCreated)
    assert (losing.lost, await count(store, "flow"), await count(store, "execution")) == (1, 1, 1)


@pytest.mark.parametrize("key", [None, "once"])
async def test_signal_whose_reply_is_lost_is_stored_once(engine: Engine, store: TestStore, key: str | None) -> None:
    id_ = await submitted(engine, signals=["mail"])
    lossy, losing = with_losses(engine, lose_each("reply"))
    outcome = await lossy.signals.send(id_, "mail", b"1", key=key, or_wait=True)
    assert isinstance(outcome, DuplicateSignal)
    assert (losing.lost, await count(store, "signal")) == (1, 1)


async def test_operator_signal_whose_reply_is_lost_is_stored_once(engine: Engine, store: TestStore) -> None:
    waiting = await suspended(engine)
    lossy, losing = with_losses(engine, lose_each("reply"))
    await lossy.signals.approve(waiting.id, "go")
    assert (losing.lost, await count(store, "signal")) == (1, 1)


async def test_read_whose_reply_is_lost_is_repeated(engine: Engine) -> None:
    id_ = await submitted(engine)
    lossy, losing = with_losses(engine, lose_each("reply", "request", "reply"))
    assert (await lossy.executions.describe(id_)).id == id_
    assert losing.calls == 4


async def test_requests_of_one_batch_are_repeated_together(engine: Engine, store: TestStore) -> None:
    lossy, losing = with_losses(engine, lose_each("reply", "request", "reply"))
    outcomes = await asyncio.gather(*(lossy.executions.submit("job") for _ in range(30)))
    assert all(isinstance(outcome, Created) for outcome in outcomes)
    assert losing.lost == 3
    assert await count(store, "execution") == 30


# Calls that are not repeated.


async def test_claim_whose_reply_is_lost_is_left_to_the_caller(engine: Engine) -> None:
    for _ in range(2):
        await submitted(engine)
    lossy, losing = with_losses(engine, lose_each("reply"))
    with pytest.raises(Unavailable):
        await lossy.leases.claim(["default"], "w", limit=1)
    assert losing.calls == 1
    assert len(await engine.leases.held("w")) == 1


async def test_claim_that_was_not_sent_is_repeated(engine: Engine) -> None:
    await submitted(engine)
    lossy, losing = with_losses(engine, lose_each("request", "request"))
    assert len(await lossy.leases.claim(["default"], "w")) == 1
    assert losing.calls == 3


NOT_SAFE: dict[str, tuple[Callable[[Engine, VirtualClock], Awaitable[Any]], Call]] = {
    "claim by id": (lambda engine, _: submitted(engine), lambda engine, id_: engine.leases.claim_execution(id_, "w")),
    "replay of any generation": (completed, lambda engine, id_: engine.operator.replay(id_)),
    "revocation of any lease": (
        lambda engine, _: leased(engine),
        lambda engine, lease: engine.operator.revoke_lease(lease.execution_id),
    ),
    "resume of any suspension": (
        lambda engine, _: suspended(engine),
        lambda engine, waiting: engine.operator.resume(waiting.id),
    ),
}
SAFE: dict[str, tuple[Callable[[Engine, VirtualClock], Awaitable[Any]], Call]] = {
    "replay of one generation": (
        completed,
        lambda engine, id_: engine.operator.replay(id_, expected_generation=0),
    ),
    "revocation of one lease": (
        lambda engine, _: leased(engine),
        lambda engine, lease: engine.operator.revoke_lease(lease.execution_id, epoch=lease.fence.epoch),
    ),
    "resume of one suspension": (
        lambda engine, _: suspended(engine),
        lambda engine, waiting: engine.operator.resume(waiting.id, suspension=waiting.suspension),
    ),
}


@pytest.mark.parametrize("name", NOT_SAFE)
async def test_call_that_is_not_safe_to_repeat_is_left_to_the_caller(
    engine: Engine, clock: VirtualClock, name: str
) -> None:
    arrange, call = NOT_SAFE[name]
    subject = await arrange(engine, clock)
    lossy, losing = with_losses(engine, lose_each("reply"))
    with pytest.raises(Unavailable):
        await call(lossy, subject)
    assert losing.calls == 1


@pytest.mark.parametrize("name", SAFE)
async def test_call_that_names_what_it_changes_is_repeated(engine: Engine, clock: VirtualClock, name: str) -> None:
    arrange, call = SAFE[name]
    subject = await arrange(engine, clock)
    lossy, losing = with_losses(engine, lose_each("reply"))
    await call(lossy, subject)
    assert losing.calls == 2


async def test_user_code_is_not_repeated_after_it_has_run(engine: Engine, store: TestStore) -> None:
    lease, runs = await leased(engine), list[object]()

    async def async_body(connection: Any) -> None:
        runs.append(connection)

    body = async_body if store.name == "postgres" else runs.append
    lossy, losing = with_losses(engine, lose_each("request", "reply"))
    with pytest.raises(Unavailable):
        await lossy.leases.transact(lease.fence, body, lambda _: Step(name="paid"))
    assert (len(runs), losing.calls) == (1, 2)


@pytest.mark.parametrize("code", ["statement_timeout", "storage_full", "storage_busy", "retry_exhausted"])
async def test_other_errors_of_the_store_are_not_repeated(
    engine: Engine, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    async def fail(body: object) -> None:
        calls.append(body)
        raise Unavailable(code, "for some reason")

    for method in ("run", "run_single"):
        monkeypatch.setattr(engine._context.store, method, fail)
    with pytest.raises(Unavailable) as raised:
        await engine.executions.submit("job")
    assert (raised.value.code, len(calls)) == (code, 1)
    assert isinstance(raised.value.fields["id"], UUID)


async def test_refusal_is_not_repeated(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.complete(lease.fence)
    lossy, losing = with_losses(engine, lose_each())
    with pytest.raises(Refused):
        await lossy.leases.fail(lease.fence, "late")
    assert losing.calls == 1


# The time limit.


async def test_call_is_repeated_for_a_limited_time(engine: Engine) -> None:
    lossy, losing = with_losses(engine, always("request"), retry_for_s=0.3)
    began = time.monotonic()
    with pytest.raises(Unavailable) as raised:
        await lossy.executions.count()
    assert 0.3 <= time.monotonic() - began < 3
    assert losing.calls > 3
    assert "the engine repeated it for" in raised.value.message
    assert raised.value.fields == {"sent": False}


async def test_error_says_that_an_earlier_try_may_have_taken_effect(engine: Engine) -> None:
    whats = iter(["reply"])
    lossy, _ = with_losses(engine, lambda: next(whats, "request"), retry_for_s=0.1)
    with pytest.raises(Unavailable) as raised:
        await lossy.executions.count()
    assert "an earlier try may have taken effect" in raised.value.message
    assert "sent" not in raised.value.fields


async def test_calls_of_one_batch_share_the_time_limit(engine: Engine) -> None:
    lossy, _ = with_losses(engine, always("request"), retry_for_s=0.3)
    began = time.monotonic()
    outcomes = await lossy.executions.submit_many([Submission(kind="job", key=str(n)) for n in range(30)])
    assert all(isinstance(outcome, Unavailable) for outcome in outcomes)
    assert time.monotonic() - began < 3, "each of the 30 submits was repeated for the full time"


async def test_calls_that_wait_behind_a_lost_batch_are_not_delayed_by_every_batch(engine: Engine) -> None:
    lossy, _ = with_losses(engine, always("request"), retry_for_s=0.5)
    began = time.monotonic()
    outcomes = await asyncio.gather(*(lossy.executions.submit("job") for _ in range(3000)), return_exceptions=True)
    assert all(isinstance(outcome, Unavailable) for outcome in outcomes)
    # Two of the 24 batches are under way at the same time.
    assert time.monotonic() - began < 4, "each batch was repeated for the full time"


async def test_repetition_can_be_switched_off(engine: Engine) -> None:
    lossy, losing = with_losses(engine, lose_each("request"), retry_for_s=0)
    with pytest.raises(Unavailable):
        await lossy.executions.count()
    assert losing.calls == 1


# The error after the time limit.


async def prepare_signal(engine: Engine) -> UUID:
    return await submitted(engine, signals=["mail"])


async def prepare_nothing(_: Engine) -> None:
    return None


def graph() -> Graph:
    new = Graph("report")
    new.add("load", "job")
    return new


IDS: dict[str, tuple[str, str, Callable[[Engine], Awaitable[Any]], Callable[..., Awaitable[Any]]]] = {
    "submit": ("id", "execution", prepare_nothing, lambda e, _, **ids: e.executions.submit("job", b"in", **ids)),
    "submit and wait": (
        "id",
        "execution",
        prepare_nothing,
        lambda e, _, **ids: e.executions.submit_and_wait(Submission(kind="job", **ids), lambda _: True),
    ),
    "submit_flow": ("id", "flow", prepare_nothing, lambda e, _, **ids: e.flows.submit(graph(), **ids)),
    "create_flow": ("id", "flow", prepare_nothing, lambda e, _, **ids: e.flows.create("report", **ids)),
    "send": ("signal_id", "signal", prepare_signal, lambda e, id_, **ids: e.signals.send(id_, "mail", b"1", **ids)),
    "deliver": (
        "signal_id",
        "signal",
        suspended,
        lambda e, waiting, **ids: e.signals.deliver(waiting.token(), "yes", b"1", **ids),
    ),
    "approve": ("signal_id", "signal", suspended, lambda e, waiting, **ids: e.signals.approve(waiting.id, "go", **ids)),
}


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("what", ["request", "reply"])
async def test_error_carries_the_id_with_which_the_call_can_be_repeated(
    engine: Engine, store: TestStore, name: str, what: str
) -> None:
    field, table, arrange, call = IDS[name]
    subject = await arrange(engine)
    before = await count(store, table)
    lossy, _ = with_losses(engine, always(what), retry_for_s=0.05)
    with pytest.raises(Unavailable) as raised:
        await call(lossy, subject)
    id_ = raised.value.fields[field]
    assert f"pass {field}={id_}" in raised.value.message
    await call(engine, subject, **{field: id_})
    assert await count(store, table) == before + 1


async def test_errors_of_submit_many_carry_the_ids(engine: Engine, store: TestStore) -> None:
    lossy, _ = with_losses(engine, always("reply"), retry_for_s=0.05)
    errors = await lossy.executions.submit_many([Submission(kind="job") for _ in range(3)])
    ids = [error.fields["id"] for error in errors if isinstance(error, Unavailable)]
    assert len(set(ids)) == 3
    await engine.executions.submit_many([Submission(kind="job", id=id_) for id_ in ids])
    assert await count(store, "execution") == 3
