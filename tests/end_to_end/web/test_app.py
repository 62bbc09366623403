"""The ASGI application of an app: approval links and callbacks resume the task."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flowfabric import App, ApprovalRequest, Approved, Received, Rejected, TimedOut, approval, callback, step
from tests.end_to_end.web.browser import Browser

BASE = "https://shop.example/ff"


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(str(tmp_path / "shop.db"), url=BASE)


def path_in(address: str | None) -> str:
    assert address is not None
    return address.removeprefix(BASE)


async def test_decisions_by_link_resume_the_task(app: App) -> None:
    mails: asyncio.Queue[ApprovalRequest] = asyncio.Queue()

    async def mail(approval_request: ApprovalRequest) -> None:
        await mails.put(approval_request)

    @app.task
    async def refund(order: str) -> list[str]:
        match await approval("refund", by=["ops", "finance"], timeout="1d", notify=mail):
            case Approved(decisions=decisions):
                return sorted(f"{each.by}: {each.comment}" for each in decisions)
            case Rejected() | TimedOut():
                return []

    browser = Browser(app.asgi(), root="/ff")
    async with app, app.worker(), asyncio.timeout(60):
        handle = await refund.submit("o-17")
        for approval_request in (await mails.get(), await mails.get()):
            page = await browser.get(path_in(approval_request.link))
            assert (
                f"<strong>{approval_request.approver}</strong>" in page.text
                and "<h1>Approval: refund</h1>" in page.text
            )
            await browser.post_form(
                path_in(approval_request.link), decision="approve", comment=f"fine, {approval_request.approver}"
            )
        assert await handle == ["finance: fine, finance", "ops: fine, ops"]


async def test_callback_resumes_the_task_that_issued_the_url(app: App) -> None:
    orders: asyncio.Queue[str] = asyncio.Queue()

    async def order_export(reply_to: str) -> None:
        await orders.put(reply_to)

    @app.task
    async def export() -> int:
        reply = callback("export", int, timeout="1h")
        await step(order_export, await reply.url())
        match await reply:
            case Received(value=rows):
                return rows
            case TimedOut():
                return -1

    browser = Browser(app.asgi(), root="/ff")
    async with app, app.worker(), asyncio.timeout(60):
        handle = await export.submit()
        assert (await browser.post_json(path_in(await orders.get()), 42)).status == 200
        assert await handle == 42
