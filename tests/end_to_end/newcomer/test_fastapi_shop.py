"""The shop with FastAPI runs behind a real server: orders, refunds, and approvals by link and on the command line."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.cli.shell import Shell, process_environment
from tests.stores import PostgresTestStore, TestStore

STARTS_WITHIN_S = 60.0
Reply = tuple[int, str]


class Shop:
    """An HTTP client of the shop."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def get(self, path: str) -> Reply:
        return await asyncio.to_thread(self._send, urllib.request.Request(self._absolute(path)))

    async def post(self, path: str, value: Any = None) -> Any:
        """Post JSON, and return the JSON of the reply."""
        data, headers = json.dumps(value).encode(), {"content-type": "application/json"}
        request = urllib.request.Request(self._absolute(path), data, headers)
        return json.loads((await asyncio.to_thread(self._send, request))[1])

    async def post_form(self, path: str, **fields: str) -> Reply:
        request = urllib.request.Request(self._absolute(path), urllib.parse.urlencode(fields).encode())
        return await asyncio.to_thread(self._send, request)

    async def until(self, path: str, is_done: Callable[[Any], bool]) -> Any:
        """Read JSON until the condition holds, and return it."""
        async with asyncio.timeout(STARTS_WITHIN_S):
            while True:
                value = json.loads((await self.get(path))[1])
                if is_done(value):
                    return value
                await asyncio.sleep(0.02)

    def _absolute(self, path: str) -> str:
        return path if path.startswith("http") else f"{self.url}{path}"

    @staticmethod
    def _send(request: urllib.request.Request) -> Reply:
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture
async def shop(store: TestStore) -> AsyncIterator[Shop]:
    """Run the shop with uvicorn in a separate process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    options = {"durable": False} | ({"schema": store.schema} if isinstance(store, PostgresTestStore) else {})
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "uvicorn", "fastapi_shop:web", "--port", str(port), "--log-level", "warning"],
        cwd=Path(__file__).parent,
        env=process_environment(SHOP_STORE=store.url, SHOP_URL=url, SHOP_OPTIONS=json.dumps(options)),
    )
    try:
        await _wait_until_listening(process, port)
        yield Shop(url)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _wait_until_listening(process: asyncio.subprocess.Process, port: int) -> None:
    ends = time.monotonic() + STARTS_WITHIN_S
    while True:
        assert process.returncode is None, "the shop did not start"
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            assert time.monotonic() < ends, "the shop did not start in time"
            await asyncio.sleep(0.02)
        else:
            writer.close()
            return


async def request_refund(shop: Shop, number: str, cents: int) -> str:
    assert await shop.post("/orders", {"number": number, "cents": cents}) == {"number": number, "cents": cents}
    refund = await shop.post(f"/orders/{number}/refund")
    assert refund == await shop.post(f"/orders/{number}/refund"), "a repeated request finds the same refund"
    return str(refund["id"])


async def result_of(shop: Shop, id_: str) -> Any:
    return (await shop.until(f"/refunds/{id_}", lambda value: value["state"] == "completed"))["result"]


async def links_of(shop: Shop, number: str) -> tuple[str, str]:
    names = [f"{number} ops", f"{number} finance"]
    mails = await shop.until("/mails", lambda value: all(name in value for name in names))
    return mails[names[0]], mails[names[1]]


async def test_refund_above_the_limit_is_approved_by_link_and_on_the_command_line(
    shop: Shop, store: TestStore, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(store, capsys)
    assert await result_of(shop, await request_refund(shop, "o-1", 1250)) == "o-1: 12.50 paid back"

    id_ = await request_refund(shop, "o-17", 12_000)
    ops, finance = await links_of(shop, "o-17")
    waiting = await shop.until(f"/refunds/{id_}", lambda value: value["state"] == "suspended")
    assert 'approval "refund": 0 of 2 (ops and finance have not decided)' in waiting["why"]
    first, second = await shop.get(ops), await shop.get(ops)
    assert first == second and first[0] == 200, "opening a link changes nothing"
    for words in ("<h1>Refund 120.00 euros?</h1>", "It arrived broken.", "o-17", "12000", "Approve", "Reject"):
        assert words in first[1]

    assert "Your approval is recorded." in (await shop.post_form(ops, decision="approve", comment="I saw it"))[1]
    again = await shop.get(ops)
    assert again[0] == 200 and "You already approved this." in again[1] and "I saw it" in again[1]
    repeated = await shell.run("reject", id_, "--as", "ops", "--principal", "ann")
    assert repeated.lines == ["Already approved as ops; the first decision counts."]
    assert "Refund 120.00 euros?" in "\n".join((await shell.run("show", id_)).lines)

    approved = await shell.run("approve", id_, "--as", "finance", "--principal", "ann", "--reason", "fine")
    assert approved.lines == ["Approved as finance."]
    assert await result_of(shop, id_) == "o-17: 120.00 paid back"
    page = await shop.get(finance)
    assert (
        "Already approved on your behalf." in page[1]
        and "operator:ann" in page[1]
        and "ops and finance approved it" in page[1]
    )
    assert json.loads((await shop.get("/paid"))[1]) == ["o-1", "o-17"]


async def test_rejection_on_the_command_line_closes_the_links(
    shop: Shop, store: TestStore, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(store, capsys)
    id_ = await request_refund(shop, "o-18", 50_000)
    ops, finance = await links_of(shop, "o-18")
    refused = await shell.run("reject", id_, "--principal", "ann", "--reason", "too late")
    assert refused.code == 3 and '"refund" as ops, "refund" as finance' in refused.error
    rejected = await shell.run("reject", id_, "--as", "ops", "--principal", "ann", "--reason", "too late")
    assert rejected.lines == ["Rejected as ops."]
    assert await result_of(shop, id_) == "o-18: rejected by ops (too late)"
    assert "Already rejected on your behalf." in (await shop.post_form(ops, decision="approve"))[1]
    late = await shop.post_form(finance, decision="approve")
    assert late[0] == 410 and "ops rejected it" in late[1]
    assert json.loads((await shop.get("/paid"))[1]) == []
