"""A proxy in front of PostgreSQL that can lose the reply to a COMMIT, so that the client does not know the outcome.

The proxy parses the frames of the wire protocol: a letter, a length and a body. When armed, the proxy forwards the next
commit, which is a COMMIT or a write outside a transaction. It waits for the complete reply, so that the commit has
happened. Then it discards the reply and closes the client's connection.

The proxy runs in a thread with its own event loop, separate from the tested code.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

QUERY, PARSE, BIND, EXECUTE, READY = b"Q", b"P", b"B", b"E", b"Z"
IDLE = b"I"
WRITES = (b"INSERT INTO", b'UPDATE "', b"DELETE FROM")


class Proxy:
    """The controls of the proxy: arm it before a call and read how many replies it has dropped."""

    def __init__(self) -> None:
        self.lost = 0
        self._countdown = 0

    def arm(self, place: int = 1) -> None:
        """Drop the reply to the `place`-th commit from now."""
        self._countdown = place

    def loses(self) -> bool:
        """Count one commit. Return True if its reply must be dropped, which also disarms the proxy."""
        if not self._countdown:
            return False
        self._countdown -= 1
        return not self._countdown


class Line:
    """One client connection through the proxy."""

    def __init__(self, proxy: Proxy, client: Streams, server: Streams) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._state = IDLE
        self._losing = False
        self._writing: dict[bytes, bool] = {}
        self._bound = b""

    async def run(self) -> None:
        """Forward messages until one side closes."""
        directions = [asyncio.create_task(self._requests()), asyncio.create_task(self._replies())]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)
            for _, writer in (self._client, self._server):
                writer.close()

    async def _requests(self) -> None:
        reader, _ = self._client
        length = await reader.readexactly(4)
        # The startup message has no type letter.
        await self._send(self._server, length + await reader.readexactly(int.from_bytes(length) - 4))
        while True:
            kind, message = await _message(reader)
            if self._commits(kind, message[5:]) and self._proxy.loses():
                self._losing = True
            await self._send(self._server, message)

    def _commits(self, kind: bytes, body: bytes) -> bool:
        """Return True if the server commits before it responds to this message."""
        if kind == PARSE:
            name, statement, _ = body.split(b"\0", 2)
            self._writing[name] = any(word in statement for word in WRITES)
        elif kind == BIND:
            _, self._bound, _ = body.split(b"\0", 2)
        elif kind == EXECUTE:
            return self._state == IDLE and self._writing.get(self._bound, False)
        return kind == QUERY and body.startswith(b"COMMIT")

    async def _replies(self) -> None:
        reader, _ = self._server
        while True:
            kind, message = await _message(reader)
            if kind == READY:
                self._state = message[5:6]
                if self._losing:
                    self._proxy.lost += 1
                    return
            if not self._losing:
                await self._send(self._client, message)

    async def _send(self, to: Streams, message: bytes) -> None:
        to[1].write(message)
        await to[1].drain()


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextmanager
def proxied(dsn: str) -> Iterator[tuple[Proxy, str]]:
    """Yield a proxy on a Unix socket in front of the server at `dsn`, and the DSN of the proxy."""
    [folder] = parse_qs(urlsplit(dsn).query)["host"]
    proxy, ports = Proxy(), queue.Queue[int]()
    loop = asyncio.new_event_loop()
    serving = loop.create_task(_serve(proxy, f"{folder}/.s.PGSQL.5432", ports))
    thread = threading.Thread(target=_run, args=(loop, serving))
    thread.start()
    try:
        yield proxy, f"postgresql://postgres@127.0.0.1:{ports.get(timeout=10)}/postgres?sslmode=disable"
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join()


def _run(loop: asyncio.AbstractEventLoop, serving: asyncio.Task[None]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        loop.run_until_complete(serving)
    loop.close()


async def _serve(proxy: Proxy, socket: str, ports: queue.Queue[int]) -> None:
    lines = set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio serves a client in a task"
        lines.add(task)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await Line(proxy, (reader, writer), await asyncio.open_unix_connection(socket)).run()
        lines.discard(task)

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    ports.put(listener.sockets[0].getsockname()[1])
    try:
        await asyncio.Future[None]()
    finally:
        listener.close()
        for task in lines:
            task.cancel()
        await asyncio.gather(*lines, return_exceptions=True)


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:]) - 4)
