"""Approvals: who may approve, how an approval ends, and how the journal records it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flowfabric import (
    App,
    ApprovalRequest,
    Approved,
    ExecutionFailed,
    InvalidRequest,
    Rejected,
    TimedOut,
    WaitOverridden,
    approval,
    sleep,
    step,
)
from flowfabric.engine import DuplicateSignal, State
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import KitFactory

Outcome = Approved | Rejected | TimedOut


async def test_all_approvers_must_approve_by_default(app: App, kit: Kit) -> None:
    seen: list[Outcome] = []

    @app.task
    async def task() -> None:
        seen.append(await approval("refund", by=["ops", "finance"]))

    handle = await kit.start(task)
    await kit.approve(handle, "refund", by="finance", comment="fine")
    assert seen == []
    await kit.approve(handle, "refund", by="ops")

    [outcome] = seen
    assert isinstance(outcome, Approved)
    assert outcome.by == ("finance", "ops")
    assert [(decision.by, decision.approve, decision.comment) for decision in outcome.decisions] == [
        ("finance", True, "fine"),
        ("ops", True, ""),
    ]


async def test_need_lowers_the_number_of_required_approvals(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> list[str]:
        match await approval("refund", by=["ops", "finance", "boss"], need=2):
            case Approved(by=approver):
                return list(approver)
            case Rejected():
                return []

    handle = await kit.start(task)
    await kit.approve(handle, "refund", by="ops")
    await kit.approve(handle, "refund", by="boss")

    assert await kit.finish(handle) == ["ops", "boss"]


@pytest.mark.parametrize(
    ("by", "need"),
    [(["ops"], 2), (["ops", "ops"], None), ([], None), (["ops"], 0)],
    ids=["too many needed", "duplicate approver", "no approver", "none needed"],
)
async def test_invalid_approvers_are_rejected_by_the_call(app: App, kit: Kit, by: list[str], need: int | None) -> None:
    @app.task
    async def task() -> str:
        try:
            await approval("refund", by=by, need=need)
        except InvalidRequest as error:
            return type(error).__name__
        return "accepted"

    assert await kit.run(task) == "InvalidRequest"


async def test_string_is_one_approver(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> list[str]:
        outcome = await approval("refund", by="ops")
        assert isinstance(outcome, Approved)
        return list(outcome.by)

    handle = await kit.start(task)
    await kit.approve(handle, "refund", by="ops")

    assert await kit.finish(handle) == ["ops"]


async def test_approval_without_approvers_accepts_any_decision_and_has_no_tokens(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> list[str]:
        pending = approval("refund")
        with pytest.raises(InvalidRequest, match="no_tokens"):
            await pending.tokens()
        outcome = await pending
        assert isinstance(outcome, Approved)
        return list(outcome.by)

    handle = await kit.start(task)
    await kit.approve(handle, "refund", by="guest")

    assert await kit.finish(handle) == ["guest"]


async def test_each_approver_has_a_token_that_decides_only_for_that_approver(app: App, kit: Kit) -> None:
    tokens: dict[str, str] = {}

    @app.task
    async def task() -> list[str]:
        pending = approval("refund", by=["ops", "finance"])
        tokens.update(await pending.tokens())
        outcome = await pending
        assert isinstance(outcome, Approved)
        return list(outcome.by)

    handle = await kit.start(task)
    await kit.engine.signals.deliver(tokens["ops"], "approve", b"{}", source_identity="finance")
    await kit.work()
    assert (await handle.status()).state is State.SUSPENDED
    await app.approve(tokens["finance"])

    assert await kit.finish(handle) == ["ops", "finance"]


async def test_second_decision_of_an_approver_is_a_duplicate(app: App, kit: Kit) -> None:
    tokens: dict[str, str] = {}

    @app.task
    async def task() -> list[str]:
        pending = approval("refund", by=["ops", "finance"])
        tokens.update(await pending.tokens())
        outcome = await pending
        assert isinstance(outcome, Approved)
        return list(outcome.by)

    handle = await kit.start(task)
    first = await app.approve(tokens["ops"])
    second = await app.reject(tokens["ops"], "changed my mind")
    await app.approve(tokens["finance"])

    assert isinstance(second, DuplicateSignal)
    assert second.signal_id == first.signal_id
    assert await kit.finish(handle) == ["ops", "finance"]


async def test_first_rejection_ends_the_approval(app: App, kit: Kit) -> None:
    seen: list[Outcome] = []

    @app.task
    async def task() -> None:
        seen.append(await approval("refund", by=["ops", "finance", "boss"], need=2))
        await sleep("1h")

    handle = await kit.start(task)
    await kit.approve(handle, "refund", by="ops")
    await kit.reject(handle, "refund", by="boss", reason="too much")
    await kit.finish(handle)

    outcome, replayed_outcome = seen
    assert outcome == replayed_outcome
    assert isinstance(outcome, Rejected)
    assert (outcome.by, outcome.reason, len(outcome.decisions)) == ("boss", "too much", 2)


async def test_approval_without_veto_ends_when_it_cannot_succeed(app: App, kit: Kit) -> None:
    seen: list[Outcome] = []

    @app.task
    async def task() -> None:
        seen.append(await approval("refund", by=["ops", "finance", "boss"], need=2, veto=False))

    handle = await kit.start(task)
    await kit.reject(handle, "refund", by="ops")
    assert seen == []
    await kit.reject(handle, "refund", by="boss", reason="no")

    [outcome] = seen
    assert isinstance(outcome, Rejected)
    assert outcome.by == "boss"


async def test_approval_without_veto_can_succeed_after_a_rejection(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> str:
        return type(await approval("refund", by=["ops", "finance", "boss"], need=2, veto=False)).__name__

    handle = await kit.start(task)
    await kit.reject(handle, "refund", by="ops")
    await kit.approve(handle, "refund", by="boss")
    await kit.approve(handle, "refund", by="finance")

    assert await kit.finish(handle) == "Approved"


async def test_links_start_with_the_url_of_the_app(app: App, kit: Kit) -> None:
    links: dict[str, str] = {}

    @app.task
    async def task() -> None:
        pending = approval("refund", by=["ops", "finance"])
        links.update(await pending.links())
        await pending

    _ = await kit.start(task)

    assert list(links) == ["ops", "finance"]
    assert all(link.startswith("https://shop.example/ff/") for link in links.values())


async def test_app_without_a_url_has_tokens_but_no_links(new_kit: KitFactory) -> None:
    app = App("durable.db")

    @app.task
    async def task() -> list[str]:
        pending = approval("refund", by="ops", timeout="1h")
        with pytest.raises(InvalidRequest, match="no_url"):
            await pending.links()
        approvers = list(await pending.tokens())
        await pending
        return approvers

    async with new_kit(app) as kit:
        assert await kit.run(task) == ["ops"]


async def test_resume_by_an_operator_raises_wait_overridden(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> str:
        try:
            await approval("refund", by="ops")
        except WaitOverridden as overridden:
            return f"{overridden.by}: {overridden.reason}"
        return "decided"

    handle = await kit.start(task)
    await kit.engine.operator.resume(handle.id, "ops has left", principal="ann")

    assert await kit.finish(handle) == "ann: ops has left"


async def test_tokens_are_the_same_in_every_run(app: App, kit: Kit) -> None:
    seen: list[dict[str, str]] = []

    @app.task
    async def task() -> None:
        pending = approval("refund", by=["ops", "finance"])
        seen.append(await pending.tokens())
        await sleep("1h")
        seen.append(await pending.tokens())
        await pending

    _ = await kit.start(task)
    await kit.advance("2h")

    assert len(seen) == 3
    assert all(tokens == seen[0] for tokens in seen)


async def test_each_approver_is_notified_once_in_a_step_of_the_approval(app: App, kit: Kit) -> None:
    requests: list[ApprovalRequest] = []

    def mail(request: ApprovalRequest) -> None:
        requests.append(request)

    @app.task
    async def task() -> str:
        return type(await approval("refund", by=["ops", "finance"], timeout="1d", notify=mail)).__name__

    handle = await kit.start(task)
    due = kit.now() + timedelta(days=1)
    await kit.approve(handle, "refund", by="ops")
    await app.approve(requests[1].token)

    assert await kit.finish(handle) == "Approved"
    assert [(request.name, request.approver, request.expires) for request in requests] == [
        ("refund", "ops", due),
        ("refund", "finance", due),
    ]
    assert all(request.link is not None and request.link.startswith(str(app.url)) for request in requests)
    assert await kit.steps(handle) == [
        "approval:refund",
        "approval:refund/mail[ops]",
        "approval:refund/mail[finance]",
    ]


async def test_crash_between_two_notifications_repeats_neither(app: App, kit: Kit) -> None:
    notifications: list[str] = []

    def mail(request: ApprovalRequest) -> None:
        notifications.append(f"{request.approver} {request.token}")

    @app.task
    async def task() -> str:
        return type(await approval("refund", by=["ops", "finance"], timeout="1d", notify=mail)).__name__

    kit.crash_after("approval:refund/mail[ops]")
    handle = await kit.start(task)
    await kit.approve(handle, "refund", by="ops")
    await kit.approve(handle, "refund", by="finance")

    assert await kit.finish(handle) == "Approved"
    assert len(notifications) == len(set(notifications)) == 2


async def test_approval_name_can_be_used_again(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> list[str]:
        return [type(await approval("review", by="editor")).__name__ for _ in range(2)]

    handle = await kit.start(task)
    await kit.reject(handle, "review", by="editor")
    await kit.approve(handle, "review", by="editor")

    assert await kit.finish(handle) == ["Rejected", "Approved"]
    assert await kit.steps(handle) == ["approval:review", "approval:review#2"]


async def test_approval_that_is_never_awaited_fails_the_execution(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        _ = approval("refund", by="ops")
        await step(str)

    with pytest.raises(ExecutionFailed, match="made but never awaited: approval:refund"):
        await kit.run(task)


async def test_approver_name_may_contain_brackets(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> list[str]:
        match await approval("refund", by=["team[1]", "ops"]):
            case Approved(by=approver):
                return list(approver)
        return []

    handle = await kit.start(task)
    for approver in ("team[1]", "ops"):
        await kit.approve(handle, "refund", by=approver)

    assert await kit.finish(handle) == ["team[1]", "ops"]
