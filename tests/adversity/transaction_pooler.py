"""A minimal pooler in transaction mode: each transaction of a client gets a different server connection.

A client cannot rely on any session state between its transactions, because two successive transactions never run on the
same server connection. This is the worst behaviour that a real pooler may show.

The pooler ignores the settings that a client sends at startup. With `refuses_settings`, it refuses them as PgBouncer
does.
"""

from __future__ import annotations

import asyncio
import struct
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

_READY, _IDLE = b"Z", b"I"
_ANSWERED_BY_READY = (b"Q", b"S")
_TERMINATE = b"X"
_PROTOCOL_3 = 196608
# The startup parameters that PgBouncer accepts by default.
_ACCEPTED = {
    "user",
    "database",
    "client_encoding",
    "datestyle",
    "timezone",
    "standard_conforming_strings",
    "application_name",
}


class Link:
    """One connection to the server, with the startup messages that the server sent on it."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.greeting = b""


class Client:
    """A client whose next message is read in advance."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.next = asyncio.ensure_future(_message(reader))

    async def look(self) -> tuple[bytes, bytes]:
        """Return the next message without consuming it."""
        return await asyncio.shield(self.next)

    def take(self) -> tuple[bytes, bytes]:
        """Return the next message and consume it."""
        message = self.next.result()
        self.next = asyncio.ensure_future(_message(self._reader))
        return message


class TransactionPooler:
    """Lends a server connection to a client for one transaction at a time."""

    def __init__(self, links: list[Link], *, refuses_settings: bool = False) -> None:
        self._links = links
        self._refuses_settings = refuses_settings
        self._free: asyncio.Queue[Link] = asyncio.Queue()
        for link in links:
            self._free.put_nowait(link)
        self.transactions = 0

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve one client until it disconnects."""
        try:
            refused = [name for name in await _startup(reader) if name.lower() not in _ACCEPTED]
            if refused and self._refuses_settings:
                writer.write(_error("08P01", f"unsupported startup parameter: {refused[0]}"))
                return
            writer.write(self._links[0].greeting)
            client = Client(reader, writer)
            while (await client.look())[0] != _TERMINATE:
                await self._transaction(client)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _transaction(self, client: Client) -> None:
        """Forward messages both ways until the server reports that no transaction is open."""
        link = await self._free.get()
        self.transactions += 1
        unanswered, state = 0, b""
        reply = asyncio.ensure_future(_message(link.reader))
        while unanswered or state != _IDLE:
            await asyncio.wait({client.next, reply}, return_when=asyncio.FIRST_COMPLETED)
            if reply.done():
                kind, whole = reply.result()
                client.writer.write(whole)
                if kind == _READY:
                    unanswered, state = unanswered - 1, whole[-1:]
                if unanswered or state != _IDLE:
                    reply = asyncio.ensure_future(_message(link.reader))
            elif client.next.done():
                kind, whole = client.take()
                link.writer.write(whole)
                unanswered += kind in _ANSWERED_BY_READY
        # The queue is first in, first out, so this connection is used again only after all other free connections.
        self._free.put_nowait(link)


@asynccontextmanager
async def pooler_before(
    dsn: str, folder: Path, connections: int = 3, *, refuses_settings: bool = False
) -> AsyncIterator[tuple[str, TransactionPooler]]:
    """Yield the address of a pooler in front of the server at `dsn`, and the pooler."""
    parts = urlsplit(dsn)
    socket = Path(parse_qs(parts.query)["host"][0]) / ".s.PGSQL.5432"
    links = [await _open(socket, parts.username or "postgres") for _ in range(connections)]
    pooler = TransactionPooler(links, refuses_settings=refuses_settings)
    server = await asyncio.start_unix_server(pooler.serve, folder / ".s.PGSQL.5432")
    try:
        yield f"postgresql://{parts.username}@/postgres?host={folder}", pooler
    finally:
        server.close()
        for link in links:
            link.writer.close()


async def _open(socket: Path, user: str) -> Link:
    link = Link(*await asyncio.open_unix_connection(socket))
    words = b"".join(word.encode() + b"\0" for word in ("user", user, "database", "postgres")) + b"\0"
    link.writer.write(struct.pack("!II", len(words) + 8, _PROTOCOL_3) + words)
    kind = b""
    while kind != _READY:
        kind, whole = await _message(link.reader)
        assert kind != b"E", whole
        link.greeting += whole
    return link


async def _startup(reader: StreamReader) -> list[str]:
    """Read the startup message of a client, and return the names of its parameters.

    The pooler does not forward the client's options, because clients share the server sessions.
    """
    [length] = struct.unpack("!I", await reader.readexactly(4))
    words = (await reader.readexactly(length - 4))[4:].split(b"\0")
    return [word.decode() for word in words[:-2:2]]


def _error(code: str, message: str) -> bytes:
    fields = "".join(f"{letter}{text}\0" for letter, text in (("S", "FATAL"), ("C", code), ("M", message))) + "\0"
    return b"E" + struct.pack("!I", len(fields.encode()) + 4) + fields.encode()


async def _message(reader: StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    [length] = struct.unpack("!I", head[1:])
    return head[:1], head + await reader.readexactly(length - 4)
