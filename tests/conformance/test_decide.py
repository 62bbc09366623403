"""Tests of decide: the first decision of an approver counts, by any route."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest

from flowfabric.engine import (
    Accepted,
    AnyOf,
    ApprovalPrompt,
    Count,
    Decided,
    DuplicateSignal,
    Effect,
    Engine,
    InvalidRequest,
    NewWaitpoint,
    NotFound,
    Refused,
    Single,
    State,
    Timer,
    WaitEnd,
)
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written, refused
from tests.faults.kit.replies import lose_each, losing_engine
from tests.scenarios import Wait, leased, suspended
from tests.stores import TestStore

OPS, FINANCE, ANYONE = "approval:refund[ops]", "approval:refund[finance]", "approval:refund"
Route = Callable[[Engine, Wait, str], Awaitable[Any]]


async def asked(engine: Engine, *approvers: str, prompt: ApprovalPrompt | None = None, **options: Any) -> Wait:
    """Suspend an execution until these approvers approve, or one person rejects. Without approvers, anyone decides."""
    bindings = [NewWaitpoint(f"{ANYONE}[{name}]", approver=name, prompt=prompt) for name in approvers]
    bindings = bindings or [NewWaitpoint(ANYONE, prompt=prompt)]
    keys = [binding.key for binding in bindings]
    condition = AnyOf(
        [Count(options.pop("need", len(keys)), "sources", keys, "approve"), Count(1, "sources", keys, "reject")]
    )
    return await suspended(engine, bindings, condition, **options)


async def stored(engine: Engine, wait: Wait) -> list[tuple[str, str]]:
    return [(one.name, one.source) for one in await engine.signals.list(wait.id, include_unmatched=True)]


# One operation decides for every sender.


async def test_token_decides_for_its_approver(engine: Engine) -> None:
    wait = await asked(engine, "ops", "finance")
    decided = await engine.signals.decide(wait.token(OPS), "approve", "fine")
    assert (decided.execution_id, decided.waitpoint_id) == (wait.id, wait.waitpoint(OPS))
    decision = decided.decision
    assert (decision.by, decision.approve, decision.comment, decision.sender) == ("ops", True, "fine", None)
    assert isinstance(decided.delivery, Accepted) and not decided.repeated
    last = await engine.signals.decide(wait.token(FINANCE), "approve")
    assert isinstance(last.delivery, Accepted) and last.delivery.effect is Effect.SATISFIED
    assert await stored(engine, wait) == [("approve", "approver:ops"), ("approve", "approver:finance")]


async def test_principal_decides_for_an_approver_and_is_on_record(engine: Engine) -> None:
    wait = await asked(engine, "ops", "finance")
    decided = await engine.signals.decide(wait.waitpoint(OPS), "reject", "too much", principal="ann", for_="ops")
    assert (decided.decision.by, decided.decision.approve, decided.decision.sender) == ("ops", False, "operator:ann")
    assert (await engine.executions.describe(wait.id)).state is State.WAITING
    [event] = [event for event in await engine.executions.history(wait.id) if event.name == "delivered"]
    assert event.principal == "ann" and event.details is not None
    assert (event.details["source"], event.details["sender"]) == ("approver:ops", "operator:ann")


async def test_approver_of_the_same_name_decides_without_for(engine: Engine) -> None:
    wait = await asked(engine, "ops", "finance")
    decided = await engine.signals.decide(wait.waitpoint(OPS), "approve", principal="ops")
    assert decided.decision.by == "ops"


async def test_approval_without_approvers_takes_one_decision_from_each_principal(engine: Engine) -> None:
    wait = await asked(engine, need=2)
    id_ = wait.waitpoint(ANYONE)
    assert not (await engine.signals.decide(id_, "approve", principal="ann")).repeated
    again = await engine.signals.decide(id_, "reject", principal="ann")
    assert again.repeated and again.decision.approve
    other = await engine.signals.decide(id_, "approve", principal="bob")
    assert (other.decision.by, other.decision.sender, other.repeated) == ("bob", "operator:bob", False)
    assert (await engine.executions.describe(wait.id)).state is State.WAITING


# The first decision counts, by any route.

ROUTES: dict[str, Route] = {
    "link": lambda engine, wait, word: engine.signals.decide(wait.token(OPS), word),  # type: ignore[arg-type]
    "operator": lambda engine, wait, word: engine.signals.decide(
        wait.waitpoint(OPS), word, principal="ann", for_="ops"  # type: ignore[arg-type]
    ),
    "signal with the token": lambda engine, wait, word: engine.signals.deliver(wait.token(OPS), word),
    "signal with a key": lambda engine, wait, word: engine.signals.deliver(wait.token(OPS), word, key="mine"),
    "signal of an operator": lambda engine, wait, word: engine.signals.approve(wait.id, OPS, word),
    "signal with a suffix": lambda engine, wait, word: engine.signals.approve(wait.id, OPS, word, suffix="once"),
}  # fmt: skip


@pytest.mark.parametrize("first", ROUTES)
async def test_first_decision_of_an_approver_counts_whichever_way_it_comes(
    engine: Engine, store: TestStore, first: str
) -> None:
    wait = await asked(engine, "ops", "finance")
    accepted = await ROUTES[first](engine, wait, "approve")
    original = accepted.delivery if isinstance(accepted, Decided) else accepted
    assert isinstance(original, Accepted)
    async with nothing_written(store):
        for name, second in ROUTES.items():
            for word in ("reject", "approve"):
                repeated = await second(engine, wait, word)
                delivery = repeated.delivery if isinstance(repeated, Decided) else repeated
                assert delivery == DuplicateSignal(original.signal_id), name
                assert not isinstance(repeated, Decided) or repeated.decision.approve, name
    assert await stored(engine, wait) == [("approve", "approver:ops")]


async def test_first_decision_is_returned_after_the_execution_has_ended(engine: Engine, store: TestStore) -> None:
    wait = await asked(engine, "ops")
    first = await engine.signals.decide(wait.token(OPS), "approve", "fine")
    await engine.operator.cancel(wait.id)
    async with nothing_written(store):
        again = await engine.signals.decide(wait.waitpoint(OPS), "reject", principal="ann", for_="ops")
    assert (again.decision, again.repeated) == (first.decision, True)


async def test_repeat_after_a_lost_reply_returns_the_recorded_decision(engine: Engine) -> None:
    wait = await asked(engine, "ops", "finance")
    lossy, losing = losing_engine(engine, lose_each("reply"))
    first = await lossy.signals.decide(wait.token(OPS), "approve", "fine")
    assert (losing.lost, first.repeated, first.decision.comment) == (1, False, "fine")
    assert isinstance(first.delivery, DuplicateSignal)
    again = await engine.signals.decide(wait.token(OPS), "reject")
    assert again.repeated and again.decision.approve and again.decision.comment == "fine"
    assert await stored(engine, wait) == [("approve", "approver:ops")]


async def test_signal_of_another_name_cannot_take_the_place_of_a_decision(engine: Engine) -> None:
    wait = await asked(engine, "ops", "finance")
    note = await engine.signals.deliver(wait.token(OPS), "note", key="decision")
    assert isinstance(note, Accepted)
    assert await engine.signals.deliver(wait.token(OPS), "note", key="decision") == DuplicateSignal(note.signal_id)
    decided = await engine.signals.decide(wait.token(OPS), "approve")
    assert isinstance(decided.delivery, Accepted)
    assert [decision.approve for decision in (await engine.waitpoints.describe(wait.token(OPS))).decisions] == [True]


async def test_decision_before_the_wait_counts_in_it(engine: Engine) -> None:
    lease = await leased(engine)
    [ops] = await engine.waitpoints.create_many(lease.fence, [NewWaitpoint(OPS, approver="ops")])
    early = await engine.signals.decide(ops.id, "approve", principal="ops")
    assert isinstance(early.delivery, Accepted) and early.delivery.effect is Effect.BUFFERED
    wait = await asked(engine, "ops", "finance", lease=lease)
    await engine.signals.decide(wait.token(FINANCE), "approve")
    assert (await engine.executions.describe(wait.id)).state is State.WAITING


# A decision that comes too late, or to the wrong place.


async def closed_by_timeout(engine: Engine, clock: VirtualClock) -> Wait:
    wait = await asked(engine, "ops", "finance", timeout="1h", on_timeout="fail")
    clock.advance("1h")
    await engine.reconcilers.tick()
    return wait


async def past_its_timeout(engine: Engine, clock: VirtualClock) -> Wait:
    lease = await leased(engine)
    binding = NewWaitpoint(OPS, approver="ops", ends_at=clock.now())
    return await suspended(engine, [binding], Single(OPS, "approve"), lease=lease)


async def decided_by_others(engine: Engine, clock: VirtualClock) -> Wait:
    wait = await asked(engine, "ops", "finance", need=1)
    await engine.signals.decide(wait.token(FINANCE), "approve")
    return wait


async def ended(engine: Engine, clock: VirtualClock) -> Wait:
    wait = await asked(engine, "ops", "finance")
    await engine.operator.cancel(wait.id)
    return wait


async def resumed(engine: Engine, clock: VirtualClock) -> Wait:
    wait = await asked(engine, "ops", "finance")
    await engine.operator.resume(wait.id)
    return wait


async def closed(engine: Engine, clock: VirtualClock) -> Wait:
    wait = await asked(engine, "ops", "finance")
    await engine.waitpoints.close(wait.waitpoint(OPS))
    return wait


CLOSED = [
    (closed_by_timeout, WaitEnd.EXPIRED, "it expired at 2030-01-01 01:00 UTC"),
    (past_its_timeout, WaitEnd.EXPIRED, "it expired at 2030-01-01 00:00 UTC"),
    (decided_by_others, WaitEnd.DECIDED, "finance approved it"),
    (ended, WaitEnd.ENDED, "its task has ended (cancelled)"),
    (resumed, WaitEnd.CLOSED, "the task no longer waits for it"),
    (closed, WaitEnd.CLOSED, "the task no longer waits for it"),
]  # fmt: skip


@pytest.mark.parametrize(("close", "end", "reason"), CLOSED, ids=lambda value: getattr(value, "__name__", None))
async def test_closed_approval_says_why_it_takes_no_more_decisions(
    engine: Engine, clock: VirtualClock, store: TestStore, close: Any, end: WaitEnd, reason: str
) -> None:
    wait = await close(engine, clock)
    async with nothing_written(store):
        for waitpoint in (wait.token(OPS), wait.waitpoint(OPS)):
            description = await engine.waitpoints.describe(waitpoint)
            assert (description.end, description.end_reason) == (end, reason)
            error = await refused(
                engine.signals.decide(waitpoint, "approve", principal="ops"), "approval_closed", Refused
            )
            assert error.fields["end"] == end and reason in error.message


async def test_operator_decides_an_escalated_approval_but_a_token_does_not(engine: Engine, clock: VirtualClock) -> None:
    wait = await asked(engine, "ops", timeout="1h", on_timeout="escalate")
    clock.advance("1h")
    await engine.reconcilers.tick()
    await refused(engine.signals.decide(wait.token(OPS), "approve"), "approval_closed", Refused)
    assert (await engine.waitpoints.describe(wait.token(OPS))).end is WaitEnd.EXPIRED
    assert (await engine.waitpoints.describe(wait.waitpoint(OPS))).end is None
    decided = await engine.signals.decide(wait.waitpoint(OPS), "approve", principal="ann", for_="ops")
    assert isinstance(decided.delivery, Accepted) and decided.delivery.effect is Effect.SATISFIED


async def test_principal_cannot_decide_for_another_approver_by_mistake(engine: Engine, store: TestStore) -> None:
    wait, open_to_all = await asked(engine, "ops", "finance"), await asked(engine)
    async with nothing_written(store):
        for options in ({"principal": "ann"}, {"principal": "ann", "for_": "finance"}, {}):
            await refused(engine.signals.decide(wait.waitpoint(OPS), "approve", **options), "not_the_approver", Refused)
        await refused(engine.signals.decide(wait.token(OPS), "approve", for_="finance"), "not_the_approver", Refused)
        for_other = engine.signals.decide(open_to_all.waitpoint(ANYONE), "approve", principal="ann", for_="bob")
        await refused(for_other, "not_the_approver", Refused)


async def test_only_approvals_can_be_decided(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    keys = ["callback:export", "signal:paid", "late"]
    wait = await suspended(engine, [*keys[:2], Timer("late", clock.now())], AnyOf([Single(key) for key in keys]))
    async with nothing_written(store):
        for key in keys:
            await refused(engine.signals.decide(wait.waitpoint(key), "approve"), "not_an_approval", InvalidRequest)
        await refused(engine.signals.decide(wait.token("signal:paid"), "approve"), "not_an_approval", InvalidRequest)


async def test_forged_token_and_unknown_waitpoint_are_refused(engine: Engine, store: TestStore) -> None:
    wait = await asked(engine, "ops", "finance")
    text = wait.token(OPS).reveal()
    forged = f"{text.rpartition('.')[0]}.{wait.token(FINANCE).reveal().rpartition('.')[2]}"
    other = engine.for_namespace("other")
    async with nothing_written(store):
        for token in (forged, text[:-2], "ffw1."):
            await refused(engine.signals.decide(token, "approve", for_="finance"), "invalid_token", InvalidRequest)
            await refused(engine.waitpoints.describe(token), "invalid_token", InvalidRequest)
        await refused(other.signals.decide(text, "approve"), "invalid_token", InvalidRequest)
        for side, id_ in ((engine, uuid4()), (other, wait.waitpoint(OPS))):
            await refused(side.signals.decide(id_, "approve"), "waitpoint_not_found", NotFound)
            await refused(side.waitpoints.describe(id_), "waitpoint_not_found", NotFound)
        await refused(engine.signals.decide(text, "maybe"), "invalid_choice", InvalidRequest)  # type: ignore[arg-type]


# What the approver sees.


async def test_prompt_is_stored_with_the_wait_and_listed(engine: Engine) -> None:
    prompt = ApprovalPrompt("Refund 120?", "It arrived broken.", {"order": "o-17", "items": [{"sku": "a"}], "n": 1.5})
    lease = await leased(engine)
    [early] = await engine.waitpoints.create_many(lease.fence, [NewWaitpoint(OPS, approver="ops", prompt=prompt)])
    single = await engine.waitpoints.create(lease.fence, "approval:other", prompt=prompt)
    wait = await asked(engine, "ops", "finance", prompt=prompt, lease=lease)
    views = {view.key: view for view in await engine.waitpoints.list(wait.id)}
    assert {view.prompt for view in views.values()} == {prompt} and len(views) == 3
    assert (views[OPS].id, views["approval:other"].id) == (early.id, single.id)
    assert [view.prompt for view in (await engine.executions.describe(wait.id)).waitpoints] == [prompt] * 3
    await engine.signals.decide(wait.token(OPS), "reject")
    description = await engine.waitpoints.describe(early.id)
    assert (description.prompt, description.approval, description.task) == (prompt, "refund", "job")
    assert description.execution_state is State.WAITING
    assert [(decision.by, decision.approve) for decision in description.decisions] == [("ops", False)]
    assert description.progress is not None and description.progress.rejected == ("ops",)


async def test_repeated_suspend_with_another_prompt_keeps_the_first(engine: Engine) -> None:
    first, second = ApprovalPrompt("first"), ApprovalPrompt("second")
    lease = await leased(engine)
    await engine.waitpoints.create_many(lease.fence, [NewWaitpoint(OPS, approver="ops", prompt=first)])
    wait = await asked(engine, "ops", prompt=second, lease=lease)
    [view] = await engine.waitpoints.list(wait.id)
    assert view.prompt == first


async def test_payload_of_a_decision_is_its_comment(engine: Engine) -> None:
    wait = await asked(engine, "ops")
    await engine.signals.decide(wait.token(OPS), "approve", "fine\nby me")
    [signal] = await engine.signals.list(wait.id)
    assert json.loads(signal.payload) == {"comment": "fine\nby me"}
    assert (signal.category, signal.source_type, signal.source_identity) == ("approval", "token", "unknown")
