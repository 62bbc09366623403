"""The application of a real app: what is sent leads to it, and what is said there goes on in the task."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flowfabric import App, Approved, Ask, Received, Rejected, TimedOut, approval, callback, step
from tests.end_to_end.asgi.browsing import Browser

BASE = "https://shop.example/ff"


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(str(tmp_path / "shop.db"), url=BASE)


def path_in(address: str | None) -> str:
    assert address is not None
    return address.removeprefix(BASE)


async def test_approvers_who_follow_their_links_wake_the_task_that_asked(app: App) -> None:
    mails: asyncio.Queue[Ask] = asyncio.Queue()

    async def mail(ask: Ask) -> None:
        await mails.put(ask)

    @app.task
    async def refund(order: str) -> list[str]:
        match await approval("refund", by=["ops", "finance"], timeout="1d", notify=mail):
            case Approved(decisions=decisions):
                return sorted(f"{each.by}: {each.comment}" for each in decisions)
            case Rejected() | TimedOut():
                return []

    browser = Browser(app.asgi(), root="/ff")
    async with app, app.worker(), asyncio.timeout(60):
        asked = await refund.submit("o-17")
        for ask in (await mails.get(), await mails.get()):
            page = await browser.get(path_in(ask.link))
            assert f"<strong>{ask.approver}</strong>" in page.text and "<h1>Approval: refund</h1>" in page.text
            await browser.post_form(path_in(ask.link), decision="approve", comment=f"fine, {ask.approver}")
        assert await asked == ["finance: fine, finance", "ops: fine, ops"]


async def test_a_program_that_calls_back_wakes_the_task_that_gave_it_the_address(app: App) -> None:
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
        exported = await export.submit()
        assert (await browser.post_json(path_in(await orders.get()), 42)).status == 200
        assert await exported == 42
