"""The approver sees what is decided: title, details and values are stored with the wait and never change."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from flowfabric import App, ApprovalRequest, Approved, InvalidRequest, Rejected, TimedOut, approval, sync
from flowfabric.engine import ApprovalPrompt, WaitpointView
from flowfabric.testing import Kit

VALUES: dict[str, Any] = {"order": "o-17", "sum": 120.5, "items": [{"sku": "a", "n": 2}], "paid": True, "note": None}
PROMPT = ApprovalPrompt("Refund 120.50 euros?", "It arrived\nbroken.", VALUES)


async def prompts_of(kit: Kit, handle: Any) -> list[ApprovalPrompt | None]:
    views: list[WaitpointView] = await kit.engine.waitpoints.list(handle.id)
    return [view.prompt for view in views]


@pytest.mark.parametrize("is_notified", [True, False], ids=["notified", "awaited"])
@pytest.mark.parametrize("by", [["ops", "finance"], "ops", None], ids=["two approvers", "one approver", "anyone"])
async def test_title_details_and_values_are_stored_with_the_wait(
    app: App, kit: Kit, by: Any, is_notified: bool
) -> None:
    requests: list[ApprovalRequest] = []

    def mail(request: ApprovalRequest) -> None:
        requests.append(request)

    @app.task
    async def task() -> str:
        notify = mail if is_notified else None
        outcome = await approval(
            "refund", by=by, notify=notify, title=PROMPT.title, details=PROMPT.details, show=VALUES
        )
        return type(outcome).__name__

    handle = await kit.start(task)
    approvers = [by] if isinstance(by, str) else by or ["guest"]
    assert await prompts_of(kit, handle) == [PROMPT] * len(approvers)
    assert [(each.title, each.details, each.show) for each in requests] == (
        [(PROMPT.title, PROMPT.details, VALUES)] * len(approvers) if is_notified and by else []
    )
    for approver in approvers:
        await kit.approve(handle, "refund", by=approver)
    assert await kit.finish(handle) == "Approved"


async def test_prompt_is_fixed_when_the_approval_opens(app: App, kit: Kit) -> None:
    titles = iter(f"title {number}" for number in range(100))
    values: dict[str, Any] = {"n": 1}

    @app.task
    async def task() -> str:
        waiting = approval("refund", by="ops", title=next(titles), show=values)
        await waiting.tokens()
        values["n"] += 1
        return type(await waiting).__name__

    handle = await kit.start(task)
    await kit.approve(handle, "refund", by="ops")
    assert await kit.finish(handle) == "Approved"
    assert await prompts_of(kit, handle) == [ApprovalPrompt("title 0", show={"n": 1})]


async def test_approval_without_a_prompt_stores_none(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        await approval("refund", by="ops", show={})

    assert await prompts_of(kit, await kit.start(task)) == [None]


async def test_plain_function_passes_a_prompt(app: App, kit: Kit) -> None:
    @app.task
    def task() -> str:
        waiting = sync.approval("refund", by="ops", timeout="1d", title="Refund?", details="why", show={"n": 1})
        match waiting.wait():
            case Approved() | Rejected():
                return "decided"
            case TimedOut():
                return "timed out"

    handle = await kit.start(task)
    assert await prompts_of(kit, handle) == [ApprovalPrompt("Refund?", "why", {"n": 1})]
    await kit.reject(handle, "refund", by="ops")
    assert await kit.finish(handle) == "decided"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"title": ""}, "invalid_name"),
    ({"title": "two\nlines"}, "invalid_name"),
    ({"title": "x" * 257}, "invalid_name"),
    ({"title": 7}, "invalid_type"),
    ({"details": "x" * (16 * 1024 + 1)}, "payload_too_large"),
    ({"details": "a\x00b"}, "invalid_text"),
    ({"details": b"x"}, "invalid_type"),
    ({"show": ["a"]}, "invalid_type"),
    ({"show": {7: "a"}}, "invalid_type"),
    ({"show": {"": "a"}}, "invalid_name"),
    ({"show": {"sum": Decimal(1)}}, "invalid_json"),
    ({"show": {"sum": float("nan")}}, "invalid_json"),
    ({"show": {"name": "a\ud800b"}}, "invalid_json"),
    ({"show": {"text": "x" * 16 * 1024}}, "payload_too_large"),
    ({"show": {f"k{number}": 1 for number in range(65)}}, "out_of_range"),
]


@pytest.mark.parametrize(("options", "code"), BAD, ids=[f"{code} {number}" for number, (_, code) in enumerate(BAD)])
async def test_prompt_that_cannot_be_stored_is_refused_by_the_call(
    app: App, kit: Kit, options: dict[str, Any], code: str
) -> None:
    @app.task
    async def task() -> str:
        try:
            await approval("refund", by="ops", **options)
        except InvalidRequest as error:
            return error.code
        return "accepted"

    assert await kit.run(task) == code


async def test_largest_prompt_is_stored(app: App, kit: Kit) -> None:
    show = {f"k{number}": "x" for number in range(63)} | {"text": "x" * 15_000}

    @app.task
    async def task() -> None:
        await approval(
            "refund", by=[f"p{number}" for number in range(64)], title="x" * 256, details="y" * 16 * 1024, show=show
        )

    prompts = await prompts_of(kit, await kit.start(task))
    assert prompts == [ApprovalPrompt("x" * 256, "y" * 16 * 1024, show)] * 64
