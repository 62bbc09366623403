"""How wake-ups travel: one NOTIFY channel per schema, and the news as the payload."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from flowfabric.backends.postgres.errors import translated
from flowfabric.backends.postgres.pool import Pool
from flowfabric.core.errors import Unavailable
from flowfabric.sqlstore.rows import since_1970_us, when
from flowfabric.store.news import News, Tell

_LONGEST_CHANNEL = 63
_LONGEST_PAYLOAD = 7900
_MOST_NAMED = 64
_PROOF_EVERY_S = 20.0
_PROOF_WITHIN_S = 5.0
# A hint may be lost, so nobody has to wait for the disk. NOTIFY takes a lock that all senders share until it commits.
_NOTIFY = "SELECT set_config('synchronous_commit', 'off', TRUE), pg_notify($1, $2)"


def wake_channel(schema: str) -> str:
    """The channel that the workers of a schema listen on."""
    channel = f"flowfabric.{schema}"
    if len(channel) <= _LONGEST_CHANNEL:
        return channel
    return f"flowfabric.{hashlib.sha256(schema.encode()).hexdigest()[:32]}"


def news_payload(news: News, sender: str = "") -> str:
    """The news in at most 8,000 bytes; what does not fit is said in general. The sender need not hear it again."""
    named = len(news.ended) <= _MOST_NAMED and not news.many_ended
    document = {
        "by": sender or [],
        "lanes": sorted(news.lanes),
        "events": sorted(news.namespaces),
        "ended": sorted(id_.hex for id_ in news.ended) if named else None,
        "due": None if news.due is None else since_1970_us(news.due),
    }
    text = json.dumps({name: value for name, value in document.items() if value != []}, ensure_ascii=False)
    if news.anything or len(text.encode()) > _LONGEST_PAYLOAD:
        return json.dumps({"by": sender, "anything": True})
    return text


def read_payload(text: str, receiver: str = "") -> News:
    """The news in a payload, none in what the receiver has sent; whatever cannot be read is news all the same."""
    try:
        document = json.loads(text)
        if receiver and document.get("by") == receiver:
            return News()
        ended = document.get("ended", [])
        return News(
            lanes={(namespace, lane) for namespace, lane in document.get("lanes", ())},
            namespaces=set(document.get("events", ())),
            ended={UUID(hex=id_) for id_ in ended or ()},
            due=when(document.get("due")),
            many_ended=ended is None,
            anything=bool(document.get("anything")),
        )
    except (ValueError, TypeError, AttributeError):
        return News(anything=True)


class PostgresTelling:
    """Tells of commits: to this process by a call, to others by NOTIFY."""

    can_announce = True

    def __init__(self, pool: Pool, schema: str, ear: PostgresEar | None) -> None:
        self._pool = pool
        self._channel = wake_channel(schema)
        self._ear = ear
        self._sender = ear.receiver if ear is not None else ""
        self._tell: Tell | None = None

    def on_commit(self, tell: Tell) -> None:
        self._tell = tell

    def committed(self, news: News) -> None:
        """A transaction has committed, and this is what it changed."""
        if self._tell is not None and news:
            self._tell(news)

    async def announce(self, news: News) -> None:
        try:
            async with self._pool.acquire(timeout=_PROOF_WITHIN_S) as connection:
                await connection.fetch(_NOTIFY, self._channel, news_payload(news, self._sender))
        except Exception as error:
            ours = translated(error)
            if ours is error:
                raise
            raise ours from error

    def ear(self) -> PostgresEar | None:
        return self._ear


class PostgresEar:
    """A connection of its own that listens. It asks for the time now and then, to prove that it is alive."""

    def __init__(self, url: str, schema: str, clock: Callable[[], datetime] | None) -> None:
        self._url = url
        self._channel = wake_channel(schema)
        self._clock = clock
        self.receiver = os.urandom(6).hex()

    async def listen(self, tell: Tell, alive: Callable[[datetime | None], None]) -> None:
        connection = await asyncpg.connect(
            self._url, timeout=_PROOF_WITHIN_S, server_settings={"application_name": "flowfabric-listener"}
        )
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        try:
            await connection.add_listener(self._channel, lambda *heard: tell(read_payload(heard[3], self.receiver)))
            while not lost.is_set():
                alive(await self._prove(connection))
                await _at_most(_PROOF_EVERY_S, lost)
            raise Unavailable("connection_lost", "the listening connection was closed by the server")
        finally:
            connection.terminate()

    async def _prove(self, connection: asyncpg.Connection[Any]) -> datetime | None:
        now: datetime = await connection.fetchval("SELECT clock_timestamp()", timeout=_PROOF_WITHIN_S)
        return self._clock() if self._clock else now


async def _at_most(seconds: float, event: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
