"""Send and receive hints with PostgreSQL's NOTIFY, on one channel per schema. The payload holds the hints."""

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

from flowfabric.backends.postgres.pool import EngineConnection, Pool, acquire
from flowfabric.core.errors import Unavailable
from flowfabric.store.commit_hints import CommitHints, HintHandler
from flowfabric.store.rows import to_datetime, to_epoch_us

_MAX_CHANNEL_LENGTH = 63
_MAX_PAYLOAD_BYTES = 7900
_MAX_NAMED = 64
_CHECK_EVERY_S = 20.0
_TIMEOUT_S = 5.0
# A hint may be lost, so the commit does not wait for the disk. A slow commit would delay all senders, because NOTIFY
# holds a lock that all of them need until it commits.
_NOTIFY = "SELECT set_config('synchronous_commit', 'off', TRUE), pg_notify($1, $2)"


def channel_name(schema: str) -> str:
    """Return the name of the channel of a schema."""
    channel = f"flowfabric.{schema}"
    if len(channel) <= _MAX_CHANNEL_LENGTH:
        return channel
    return f"flowfabric.{hashlib.sha256(schema.encode()).hexdigest()[:32]}"


def to_payload(hints: CommitHints, sender: str = "") -> str:
    """Return hints as a payload of at most 8,000 bytes.

    If the hints do not fit, the payload is `anything`. It names the sender, if given, so that the sender can skip it.
    """
    are_named = len(hints.ended) <= _MAX_NAMED and not hints.many_ended
    document = {
        "by": sender or [],
        "lanes": sorted(hints.lanes),
        "events": sorted(hints.namespaces),
        "leases": sorted(hints.instances),
        "ended": sorted(id_.hex for id_ in hints.ended) if are_named else None,
        "due": None if hints.due is None else to_epoch_us(hints.due),
    }
    text = json.dumps({name: value for name, value in document.items() if value != []}, ensure_ascii=False)
    if hints.anything or len(text.encode()) > _MAX_PAYLOAD_BYTES:
        return json.dumps({"by": sender, "anything": True})
    return text


def from_payload(text: str, receiver: str = "") -> CommitHints:
    """Return the hints in a payload. Return no hints if the receiver sent it itself, and `anything` if malformed."""
    try:
        document = json.loads(text)
        if receiver and document.get("by") == receiver:
            return CommitHints()
        ended = document.get("ended", [])
        return CommitHints(
            lanes={(namespace, lane) for namespace, lane in document.get("lanes", ())},
            namespaces=set(document.get("events", ())),
            instances=set(document.get("leases", ())),
            ended={UUID(hex=id_) for id_ in ended or ()},
            due=to_datetime(document.get("due")),
            many_ended=ended is None,
            anything=bool(document.get("anything")),
        )
    except (ValueError, TypeError, AttributeError):
        return CommitHints(anything=True)


class PostgresNotifier:
    """Reports commits to this process by a function call, and to other processes by NOTIFY."""

    can_announce = True

    def __init__(self, pool: Pool, schema: str, source: PostgresNotificationSource | None) -> None:
        self._pool = pool
        self._channel = channel_name(schema)
        self._source = source
        self._sender = source.receiver if source is not None else ""
        self._handler: HintHandler | None = None

    def on_commit(self, handler: HintHandler) -> None:
        self._handler = handler

    def report_commit(self, hints: CommitHints) -> None:
        """Pass on the hints of a committed transaction."""
        if self._handler is not None and hints:
            self._handler(hints)

    async def announce(self, hints: CommitHints) -> None:
        async with acquire(self._pool, _TIMEOUT_S) as connection:
            await connection.fetch(_NOTIFY, self._channel, to_payload(hints, self._sender))

    def source(self) -> PostgresNotificationSource | None:
        return self._source


class PostgresNotificationSource:
    """A separate connection that listens for NOTIFY. It reads the time regularly to check that the connection works."""

    def __init__(self, url: str, schema: str, clock: Callable[[], datetime] | None) -> None:
        self._url = url
        self._channel = channel_name(schema)
        self._clock = clock
        self.receiver = os.urandom(6).hex()

    async def listen(self, handler: HintHandler, on_alive: Callable[[datetime | None], None]) -> None:
        connection = await asyncpg.connect(
            self._url,
            connection_class=EngineConnection,
            timeout=_TIMEOUT_S,
            server_settings={"application_name": "flowfabric-listener"},
        )

        def on_message(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            handler(from_payload(str(payload), self.receiver))

        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        try:
            await connection.add_listener(self._channel, on_message)
            while not lost.is_set():
                on_alive(await self._check_alive(connection))
                await _wait_for(_CHECK_EVERY_S, lost)
            raise Unavailable("connection_lost", "the server closed the listening connection")
        finally:
            connection.terminate()

    async def _check_alive(self, connection: asyncpg.Connection[Any]) -> datetime | None:
        now: datetime = await connection.fetchval("SELECT clock_timestamp()", timeout=_TIMEOUT_S)
        return self._clock() if self._clock else now


async def _wait_for(seconds: float, event: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
