"""Approvals: who decides, when it is decided, and what is recorded of it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flowfabric import (
    App,
    Approved,
    Ask,
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
from tests.end_to_end.durable.kits import NewKit

Answer = Approved | Rejected | TimedOut


async def test_all_of_by_are_needed_unless_told_otherwise(app: App, kit: Kit) -> None:
    seen: list[Answer] = []

    @app.task
    async def task() -> None:
        seen.append(await approval("refund", by=["ops", "finance"]))

    handle = await kit.start(task)
    await kit.approve(handle, "refund", by="finance", comment="fine")
    assert seen == []
    await kit.approve(handle, "refund", by="ops")

    [answer] = seen
    assert isinstance(answer, Approved)
    assert answer.by == ("finance", "ops")
    assert [(item.by, item.approve, item.comment) for item in answer.decisions] == [
        ("finance", True, "fine"),
        ("ops", True, ""),
    ]


async def test_fewer_may_be_needed(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> list[str]:
        match await approval("refund", by=["ops", "finance", "boss"], need=2):
            case Approved(by=who):
                return list(who)
            case Rejected():
                return []

    handle = await kit.start(task)
    await kit.approve(handle, "refund", by="ops")
    await kit.approve(handle, "refund", by="boss")

    assert await kit.finish(handle) == ["ops", "boss"]


@pytest.mark.parametrize(
    ("by", "need"),
    [(["ops"], 2), (["ops", "ops"], None), ([], None), (["ops"], 0)],
    ids=["more", "twice", "nobody", "0"],
)
async def test_approvers_that_cannot_be_are_refused_at_the_call(
    app: App, kit: Kit, by: list[str], need: int | None
) -> None:
    @app.task
    async def task() -> str:
        try:
            await approval("refund", by=by, need=need)
        except InvalidRequest as refused:
            return type(refused).__name__
        return "taken"

    assert await kit.run(task) == "InvalidRequest"


async def test_a_text_is_one_approver(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> list[str]:
        answer = await approval("refund", by="ops")
        assert isinstance(answer, Approved)
        return list(answer.by)

    handle = await kit.start(task)
    await kit.approve(handle, "refund", by="ops")

    assert await kit.finish(handle) == ["ops"]


async def test_without_by_anybody_decides_and_there_are_no_tokens(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> list[str]:
        asked = approval("refund")
        with pytest.raises(InvalidRequest, match="no_tokens"):
            await asked.tokens()
        answer = await asked
        assert isinstance(answer, Approved)
        return list(answer.by)

    handle = await kit.start(task)
    await kit.approve(handle, "refund", by="somebody")

    assert await kit.finish(handle) == ["somebody"]


async def test_each_approver_has_a_token_of_their_own_and_it_decides_for_them_alone(app: App, kit: Kit) -> None:
    tokens: dict[str, str] = {}

    @app.task
    async def task() -> list[str]:
        asked = approval("refund", by=["ops", "finance"])
        tokens.update(await asked.tokens())
        answer = await asked
        assert isinstance(answer, Approved)
        return list(answer.by)

    handle = await kit.start(task)
    await kit.engine.signals.deliver(tokens["ops"], "approve", b"{}", source_identity="finance")
    await kit.work()
    assert (await handle.status()).state is State.SUSPENDED
    await app.approve(tokens["finance"])

    assert await kit.finish(handle) == ["ops", "finance"]


async def test_the_first_decision_counts_and_a_second_answers_as_its_duplicate(app: App, kit: Kit) -> None:
    tokens: dict[str, str] = {}

    @app.task
    async def task() -> list[str]:
        asked = approval("refund", by=["ops", "finance"])
        tokens.update(await asked.tokens())
        answer = await asked
        assert isinstance(answer, Approved)
        return list(answer.by)

    handle = await kit.start(task)
    first = await app.approve(tokens["ops"])
    second = await app.reject(tokens["ops"], "changed my mind")
    await app.approve(tokens["finance"])

    assert isinstance(second, DuplicateSignal)
    assert second.signal_id == first.signal_id
    assert await kit.finish(handle) == ["ops", "finance"]


async def test_the_first_rejection_ends_it(app: App, kit: Kit) -> None:
    seen: list[Answer] = []

    @app.task
    async def task() -> None:
        seen.append(await approval("refund", by=["ops", "finance", "boss"], need=2))
        await sleep("1h")

    handle = await kit.start(task)
    await kit.approve(handle, "refund", by="ops")
    await kit.reject(handle, "refund", by="boss", reason="too much")
    await kit.finish(handle)

    answer, again = seen
    assert answer == again
    assert isinstance(answer, Rejected)
    assert (answer.by, answer.reason, len(answer.decisions)) == ("boss", "too much", 2)


async def test_without_a_veto_it_ends_when_it_can_no_longer_be_reached(app: App, kit: Kit) -> None:
    seen: list[Answer] = []

    @app.task
    async def task() -> None:
        seen.append(await approval("refund", by=["ops", "finance", "boss"], need=2, veto=False))

    handle = await kit.start(task)
    await kit.reject(handle, "refund", by="ops")
    assert seen == []
    await kit.reject(handle, "refund", by="boss", reason="no")

    [answer] = seen
    assert isinstance(answer, Rejected)
    assert answer.by == "boss"


async def test_without_a_veto_the_others_can_still_approve(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> str:
        return type(await approval("refund", by=["ops", "finance", "boss"], need=2, veto=False)).__name__

    handle = await kit.start(task)
    await kit.reject(handle, "refund", by="ops")
    await kit.approve(handle, "refund", by="boss")
    await kit.approve(handle, "refund", by="finance")

    assert await kit.finish(handle) == "Approved"


async def test_links_are_under_the_address_of_the_app(app: App, kit: Kit) -> None:
    found: dict[str, str] = {}

    @app.task
    async def task() -> None:
        asked = approval("refund", by=["ops", "finance"])
        found.update(await asked.links())
        await asked

    _ = await kit.start(task)

    assert list(found) == ["ops", "finance"]
    assert all(link.startswith("https://shop.example/ff/") for link in found.values())


async def test_without_the_address_of_the_app_there_are_tokens_but_no_links(new_kit: NewKit) -> None:
    app = App("durable.db")

    @app.task
    async def task() -> list[str]:
        asked = approval("refund", by="ops", timeout="1h")
        with pytest.raises(InvalidRequest, match="no_url"):
            await asked.links()
        found = list(await asked.tokens())
        await asked
        return found

    async with new_kit(app) as kit:
        assert await kit.run(task) == ["ops"]


async def test_an_operator_who_resumes_says_neither_yes_nor_no(app: App, kit: Kit) -> None:
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


async def test_every_run_has_the_same_tokens(app: App, kit: Kit) -> None:
    seen: list[dict[str, str]] = []

    @app.task
    async def task() -> None:
        asked = approval("refund", by=["ops", "finance"])
        seen.append(await asked.tokens())
        await sleep("1h")
        seen.append(await asked.tokens())
        await asked

    _ = await kit.start(task)
    await kit.advance("2h")

    assert len(seen) == 3
    assert all(tokens == seen[0] for tokens in seen)


async def test_each_approver_is_asked_once_in_a_step_within_the_approval(app: App, kit: Kit) -> None:
    asked: list[Ask] = []

    def mail(ask: Ask) -> None:
        asked.append(ask)

    @app.task
    async def task() -> str:
        return type(await approval("refund", by=["ops", "finance"], timeout="1d", notify=mail)).__name__

    handle = await kit.start(task)
    due = kit.now() + timedelta(days=1)
    await kit.approve(handle, "refund", by="ops")
    await app.approve(asked[1].token)

    assert await kit.finish(handle) == "Approved"
    assert [(ask.name, ask.approver, ask.expires) for ask in asked] == [
        ("refund", "ops", due),
        ("refund", "finance", due),
    ]
    assert all(ask.link is not None and ask.link.startswith(str(app.url)) for ask in asked)
    assert await kit.steps(handle) == [
        "approval:refund",
        "approval:refund/mail[ops]",
        "approval:refund/mail[finance]",
    ]


async def test_a_crash_between_two_mails_sends_neither_twice(app: App, kit: Kit) -> None:
    asked: list[str] = []

    def mail(ask: Ask) -> None:
        asked.append(f"{ask.approver} {ask.token}")

    @app.task
    async def task() -> str:
        return type(await approval("refund", by=["ops", "finance"], timeout="1d", notify=mail)).__name__

    kit.crash_after("approval:refund/mail[ops]")
    handle = await kit.start(task)
    await kit.approve(handle, "refund", by="ops")
    await kit.approve(handle, "refund", by="finance")

    assert await kit.finish(handle) == "Approved"
    assert len(asked) == len(set(asked)) == 2


async def test_the_same_name_is_asked_for_again(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> list[str]:
        return [type(await approval("review", by="editor")).__name__ for _ in range(2)]

    handle = await kit.start(task)
    await kit.reject(handle, "review", by="editor")
    await kit.approve(handle, "review", by="editor")

    assert await kit.finish(handle) == ["Rejected", "Approved"]
    assert await kit.steps(handle) == ["approval:review", "approval:review#2"]


async def test_an_approval_that_is_made_and_never_awaited_fails_the_execution(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        _ = approval("refund", by="ops")
        await step(str)

    with pytest.raises(ExecutionFailed, match="made but never awaited: approval:refund"):
        await kit.run(task)


async def test_an_approver_may_have_brackets_in_the_name(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> list[str]:
        match await approval("refund", by=["team[1]", "ops"]):
            case Approved(by=who):
                return list(who)
        return []

    handle = await kit.start(task)
    for who in ("team[1]", "ops"):
        await kit.approve(handle, "refund", by=who)

    assert await kit.finish(handle) == ["team[1]", "ops"]
