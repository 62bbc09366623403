"""A proxy in front of PostgreSQL that loses, holds back or cuts what passes through it.

The proxy parses the frames of the wire protocol: a letter, a length and a body. So it knows when a reply is complete,
and which messages make the server commit.

| control | effect |
|---|---|
| `arm(place)` | the `place`-th commit happens, its reply is lost, and the connection closes |
| `drops_replies` | the server gets every request, and the client gets no reply (a one-way partition) |
| `stalls` | nothing passes in either direction, and new connections hang |
| `vanish_at(place)` | the proxy stalls after the next transaction has locked rows, like a host that vanishes |
| `reset_rate` | each reply is lost with this probability, and its connection is reset |
| `cut()` | every open connection is reset |
| `target` | new connections go to another server |

Proxies run in a thread with its own event loop, separate from the tested code.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import random
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal
from urllib.parse import parse_qs, urlsplit

QUERY, PARSE, BIND, EXECUTE, ROW, READY = b"Q", b"P", b"B", b"E", b"D", b"Z"
IDLE, IN_TRANSACTION = b"I", b"T"
VanishingPlace = Literal["inside a statement", "between statements"]
WRITES = (b"INSERT INTO", b'UPDATE "', b"DELETE FROM")
LOCK = b"FOR NO KEY UPDATE"
# The event loop calls `accept` at most so many turns after it has accepted a connection.
_ACCEPT_TURNS = 5
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Proxy:
    """The controls of one proxy, and counts of what it did. All of them may be used from any thread."""

    def __init__(self, target: str, loop: asyncio.AbstractEventLoop, seed: int = 0) -> None:
        self.target = target
        self.drops_replies = False
        self.reset_rate = 0.0
        self.lost = 0
        self.resets = 0
        self.dropped = 0
        self.startups: list[dict[str, str]] = []
        self.has_vanished = threading.Event()
        self._vanishes: VanishingPlace | None = None
        self._countdown = 0
        self._loop = loop
        self._random = random.Random(seed)
        self._lines = set[Line]()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._stalls = False

    def arm(self, place: int = 1) -> None:
        """Lose the reply to the `place`-th commit from now."""
        self._countdown = place

    def vanish_at(self, place: VanishingPlace) -> None:
        """Stall at the first statement after the one that locks rows in the next transaction.

        Inside a statement, the server gets its first message, which is Parse or Bind, and nothing after it.
        """
        self._vanishes = place

    async def vanish(self, send: Callable[[], Awaitable[None]]) -> None:
        """Stall now if `vanish_at` was called. `send` sends the first message of the statement."""
        if (place := self._vanishes) is None:
            return
        self._vanishes = None
        if place == "inside a statement":
            await send()
        self.stalls = True
        self._flowing.clear()
        self.has_vanished.set()

    def cut(self) -> None:
        """Reset every open connection."""
        self._loop.call_soon_threadsafe(self._cut)

    @property
    def stalls(self) -> bool:
        """True while nothing passes."""
        return self._stalls

    @stalls.setter
    def stalls(self, value: bool) -> None:
        self._stalls = value
        self._loop.call_soon_threadsafe(self._flowing.clear if value else self._flowing.set)

    def heal(self) -> None:
        """Let everything pass from now on. What was dropped stays lost."""
        self.drops_replies, self.reset_rate, self._countdown, self.stalls = False, 0.0, 0, False

    def loses(self) -> bool:
        """Count one commit. Return True if its reply must be lost, which also disarms the proxy."""
        if not self._countdown:
            return False
        self._countdown -= 1
        return not self._countdown

    def resets_now(self) -> bool:
        """Return True if the connection of this reply must be reset."""
        return self.reset_rate > 0 and self._random.random() < self.reset_rate

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one client connection until one of its sides closes."""
        line: Line | None = None
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self.until_flowing()
                line = Line(self, (reader, writer), await _connect(self.target))
                self._lines.add(line)
                await line.run()
        finally:
            if line is not None:
                self._lines.discard(line)
            writer.close()

    async def until_flowing(self) -> None:
        """Wait while the proxy stalls."""
        await self._flowing.wait()

    def _cut(self) -> None:
        for line in list(self._lines):
            line.reset()


class Line:
    """One client connection through a proxy."""

    def __init__(self, proxy: Proxy, client: Streams, server: Streams) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._state = IDLE
        self._losing = False
        self._prepared: dict[bytes, bytes] = {}
        self._bound = b""
        self._locks = False
        self._has_locked = False

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

    def reset(self) -> None:
        """Reset the client's connection. The server keeps what it has received and sees the connection close."""
        self._proxy.resets += 1
        _, writer = self._client
        if (client := writer.get_extra_info("socket")) is not None:
            # Closing a socket that lingers for zero seconds sends a reset.
            with contextlib.suppress(OSError):
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async def _requests(self) -> None:
        reader, _ = self._client
        length = await reader.readexactly(4)
        # The startup message has no type letter.
        startup = await reader.readexactly(int.from_bytes(length) - 4)
        words = [word.decode() for word in startup[4:].split(b"\0")]
        self._proxy.startups.append(dict(zip(words[:-2:2], words[1:-2:2], strict=False)))
        await self._send(self._server, length + startup)
        while True:
            kind, message = await _message(reader)
            if self._commits(kind, message[5:]) and self._proxy.loses():
                self._losing = True
            if self._follows_lock(kind):
                await self._proxy.vanish(partial(self._send, self._server, message))
            await self._send(self._server, message)

    def _follows_lock(self, kind: bytes) -> bool:
        """Return True if this message begins a statement in a transaction that has locked rows."""
        if self._state != IN_TRANSACTION:
            self._locks = self._has_locked = False
        elif kind == EXECUTE:
            self._locks = LOCK in self._prepared.get(self._bound, b"")
        return self._has_locked and kind in (PARSE, BIND)

    def _commits(self, kind: bytes, body: bytes) -> bool:
        """Return True if the server commits before it responds to this message."""
        if kind == PARSE:
            name, statement, _ = body.split(b"\0", 2)
            self._prepared[name] = statement
        elif kind == BIND:
            _, self._bound, _ = body.split(b"\0", 2)
        elif kind == EXECUTE:
            return self._state == IDLE and any(word in self._prepared.get(self._bound, b"") for word in WRITES)
        return kind == QUERY and body.startswith(b"COMMIT")

    async def _replies(self) -> None:
        reader, _ = self._server
        while True:
            kind, message = await _message(reader)
            if kind == ROW and self._locks:
                self._has_locked = True
            if kind == READY:
                self._state = message[5:6]
                if self._losing:
                    self._proxy.lost += 1
                    return
                if self._proxy.resets_now():
                    self.reset()
                    return
            if self._proxy.drops_replies:
                self._proxy.dropped += 1
            elif not self._losing:
                await self._send(self._client, message)

    async def _send(self, to: Streams, message: bytes) -> None:
        await self._proxy.until_flowing()
        to[1].write(message)
        await to[1].drain()


@contextmanager
def proxied(dsn: str, seed: int = 0) -> Iterator[tuple[Proxy, str]]:
    """Yield a proxy in front of the server at `dsn`, and the DSN of the proxy."""
    with proxies(dsn, 1, seed) as [pair]:
        yield pair


@contextmanager
def proxies(dsn: str, number: int, seed: int = 0) -> Iterator[list[tuple[Proxy, str]]]:
    """Yield several proxies in front of the server at `dsn`, each with its DSN. They share one thread."""
    loop = asyncio.new_event_loop()
    controls = [Proxy(target_of(dsn), loop, seed + index) for index in range(number)]
    ports = queue.Queue[list[int]]()
    serving = loop.create_task(_serve(controls, ports))
    thread = threading.Thread(target=_run, args=(loop, serving))
    thread.start()
    try:
        dsns = [f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable" for port in ports.get(timeout=10)]
        yield list(zip(controls, dsns, strict=True))
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join()


def target_of(dsn: str) -> str:
    """Return the address of a server: the path of its Unix socket, or `host:port`."""
    parts = urlsplit(dsn)
    if folders := parse_qs(parts.query).get("host"):
        return f"{folders[0]}/.s.PGSQL.{parts.port or 5432}"
    return f"{parts.hostname or '127.0.0.1'}:{parts.port or 5432}"


async def _connect(target: str) -> Streams:
    if target.startswith("/"):
        return await asyncio.open_unix_connection(target)
    host, _, port = target.rpartition(":")
    return await asyncio.open_connection(host, int(port))


def _run(loop: asyncio.AbstractEventLoop, serving: asyncio.Task[None]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        loop.run_until_complete(serving)
    loop.close()


async def _serve(controls: Sequence[Proxy], ports: queue.Queue[list[int]]) -> None:
    lines = set[asyncio.Task[None]]()

    def accept(proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = asyncio.create_task(proxy.serve(reader, writer))
        lines.add(line)
        line.add_done_callback(lines.discard)
        # A task that is cancelled before it begins does not close its connection.
        line.add_done_callback(lambda _: writer.close())

    listeners = [await asyncio.start_server(partial(accept, proxy), "127.0.0.1", 0) for proxy in controls]
    ports.put([listener.sockets[0].getsockname()[1] for listener in listeners])
    try:
        await asyncio.Future[None]()
    finally:
        # A server that is closed leaves the connections open that it has just accepted. So first stop accepting.
        for listener in listeners:
            asyncio.get_running_loop().remove_reader(listener.sockets[0])
        for _ in range(_ACCEPT_TURNS):
            await asyncio.sleep(0)
        for listener in listeners:
            listener.close()
        while lines:
            for line in lines:
                line.cancel()
            await asyncio.gather(*lines, return_exceptions=True)
        await asyncio.sleep(0)  # Let the transports close.


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:]) - 4)
