"""Somebody else's service answers by a signed link: without it nobody can say anything, and saying it twice is once.

The web application is FastAPI; Starlette or any other that mounts ASGI applications does as well.
"""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import uvicorn
from fastapi import FastAPI

from flowfabric import App, Received, TimedOut, callback, step
from stage import play

listening = socket.create_server(("127.0.0.1", 0))
address = f"http://127.0.0.1:{listening.getsockname()[1]}"
app = App(url=f"{address}/answers")


@dataclass
class Export:
    """What the service sends when it is done."""

    file: str
    rows: int


@app.task
async def export(table: str) -> str:
    """Orders an export, and goes on when the service has called back: hours later, in another process, no matter."""
    reply = callback("export", Export, timeout="2h")
    await step(order_export, table, await reply.url())
    match await reply:
        case Received(value=done):
            return f"{done.rows} rows in {done.file}"
        case TimedOut():
            return "the service never answered"


@asynccontextmanager
async def working(_: FastAPI) -> AsyncIterator[None]:
    """The worker lives as long as the web application; it may as well be a process of its own."""
    async with app, app.worker():
        yield


web = FastAPI(lifespan=working)
web.mount("/answers", app.asgi())


@web.post("/exports/{table}")
async def start_export(table: str) -> dict[str, str]:
    """What the user of the shop calls: the answer comes at once, the export when it comes."""
    return {"execution": str((await export.submit(table)).id)}


# The world around it: a service that takes orders, and answers over HTTP where it was told to.

orders: asyncio.Queue[tuple[str, str]] = asyncio.Queue()


async def order_export(table: str, reply_to: str) -> None:
    await orders.put((table, reply_to))


async def post(url: str, document: object = None) -> tuple[int, dict[str, str]]:
    """The status of the answer, and what it says."""
    body = json.dumps(document).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    try:
        with await asyncio.to_thread(urllib.request.urlopen, request) as answered:
            return answered.status, json.load(answered)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, json.load(refusal)


@asynccontextmanager
async def served() -> AsyncIterator[None]:
    """The web application, on this computer only."""
    server = uvicorn.Server(uvicorn.Config(web, log_level="warning"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


async def main() -> None:
    async with served():
        status, ordered = await post(f"{address}/exports/sales")
        print(f"a user orders an export:  {status}")
        table, link = await orders.get()
        print(f"the service got a signed link for {table}")
        done = {"file": "sales.csv", "rows": 1200}
        for what, url, document in (
            ("a forged link:", link[:-4] + "AAAA", done),
            ("a wrong document:", link, {"file": "sales.csv"}),
            ("the real answer:", link, done),
            ("the same once more:", link, done),
        ):
            status, said = await post(url, document)
            print(f"{what:<25} {status} {said}")
        print(f"and the task goes on:     {await export.handle(ordered['execution'])}")


if __name__ == "__main__":
    play(main)
