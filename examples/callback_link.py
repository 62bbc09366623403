"""Wait for an external service that calls back through a signed link.

The web application uses FastAPI. Starlette, or any framework that can mount ASGI applications, works as well.
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
app = App(url=f"{address}/callbacks")


@dataclass
class Export:
    """The document that the service sends when the export is done."""

    file: str
    rows: int


@app.task
async def export(table: str) -> str:
    """Order an export and wait for the callback, which may come hours later and reach another process."""
    reply = callback("export", Export, timeout="2h")
    await step(order_export, table, await reply.url())
    match await reply:
        case Received(value=done):
            return f"{done.rows} rows in {done.file}"
        case TimedOut():
            return "the service did not call back in time"


@asynccontextmanager
async def working(_: FastAPI) -> AsyncIterator[None]:
    """Run a worker inside the web application. The worker could also be a separate process."""
    async with app, app.worker():
        yield


web = FastAPI(lifespan=working)
web.mount("/callbacks", app.asgi())


@web.post("/exports/{table}")
async def start_export(table: str) -> dict[str, str]:
    """Start an export and return its execution id immediately."""
    return {"execution": str((await export.submit(table)).id)}


# The simulated environment: a service that takes orders and sends its reply to the given URL.

orders: asyncio.Queue[tuple[str, str]] = asyncio.Queue()


async def order_export(table: str, reply_to: str) -> None:
    await orders.put((table, reply_to))


async def post(url: str, document: object = None) -> tuple[int, dict[str, str]]:
    """Send a JSON document and return the status and the body of the response."""
    body = json.dumps(document).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    try:
        with await asyncio.to_thread(urllib.request.urlopen, request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, json.load(refusal)


@asynccontextmanager
async def served() -> AsyncIterator[None]:
    """Serve the web application on the loopback interface."""
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
        print(f"the service received a signed link for {table}")
        done = {"file": "sales.csv", "rows": 1200}
        for what, url, document in (
            ("a forged link:", link[:-4] + "AAAA", done),
            ("a wrong document:", link, {"file": "sales.csv"}),
            ("the real document:", link, done),
            ("the same again:", link, done),
        ):
            status, body = await post(url, document)
            print(f"{what:<25} {status} {body}")
        print(f"the task resumes:         {await export.handle(ordered['execution'])}")


if __name__ == "__main__":
    play(main)
