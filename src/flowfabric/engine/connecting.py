"""Opening a store by its address."""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol, TypedDict
from urllib.parse import SplitResult, unquote, urlsplit

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.trimming import EventKeeping
from flowfabric.engine.context import Context, WaitOperations
from flowfabric.engine.engine import Engine
from flowfabric.engine.key_source import key_source
from flowfabric.ops.deliver_signal import delivering
from flowfabric.ops.key_ring import KeySource
from flowfabric.ops.renew import renewing
from flowfabric.ops.suspend import suspending
from flowfabric.reconcilers.loop import Reconcilers
from flowfabric.store.transaction import Store
from flowfabric.wakeups.wakeups import Wakeups

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
STATEMENT_TIMEOUT_MOST = timedelta(days=1)
POOL_SIZE_MOST = 1000
_POSTGRES = ("postgresql://", "postgres://")


class Clock(Protocol):
    """A clock that stands in for the store's own, for tests."""

    def now(self) -> datetime:
        """The present time, in UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to use a store; `schema`, `pooler` and `pool_size` are for PostgreSQL only."""

    schema: str
    durable: bool
    migrate: bool
    pooler: bool
    pool_size: int
    statement_timeout_s: float
    listen_url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What an engine does by itself, whatever the store."""

    namespace: str
    keys: KeySource
    notify: bool
    keeping: EventKeeping
    renewal_events: bool


class Connecting:
    """What `connect` returns: await it for an engine, or enter it to have the engine closed at the end."""

    def __init__(self, url: str, settings: Settings, habits: Habits, clock: Clock | None) -> None:
        self._url = url
        self._habits = habits
        self._settings = settings
        self._clock = clock
        self._engine: Engine | None = None

    def __await__(self) -> Generator[Any, None, Engine]:
        return self._open().__await__()

    async def __aenter__(self) -> Engine:
        self._engine = await self._open()
        return self._engine

    async def __aexit__(self, *_: object) -> None:
        if self._engine is not None:
            await self._engine.close()

    async def _open(self) -> Engine:
        store = await _open_store(self._url, self._settings, self._clock)
        habits = self._habits
        waits = WaitOperations(suspending(habits.keys), delivering(habits.keys))
        renew = renewing(noted=habits.renewal_events)
        clock = self._clock.now if self._clock else None
        wakeups = Wakeups(store.telling, enabled=habits.notify, clock=clock)
        await _learn_time(store, wakeups)
        reconcilers = Reconcilers(store, wakeups, habits.keeping)
        return Engine(Context(store, habits.namespace, reconcilers, wakeups, habits.keys, waits, renew=renew))


class StoreOptions(TypedDict, total=False):
    """What `connect` can be told about a store, for those who hand it on."""

    schema: str
    durable: bool
    migrate: bool
    pooler: bool
    pool_size: int
    statement_timeout: limits.Duration
    key_file: str | None
    notify: bool
    listen_url: str | None
    event_retention: limits.Duration
    subscriber_expiry: limits.Duration
    renewal_events: bool


def connect(
    url: str, *, namespace: str = "default", schema: str = "flowfabric", durable: bool = True, migrate: bool = True,
    pooler: bool = False, pool_size: int = 10, statement_timeout: limits.Duration = 30, key_file: str | None = None,
    notify: bool = True, listen_url: str | None = None, event_retention: limits.Duration = "7d",
    subscriber_expiry: limits.Duration = "7d", renewal_events: bool = False, clock: Clock | None = None,
) -> Connecting:  # fmt: skip
    """An engine on the store at `url`: `async with connect("jobs.db") as engine`, or `engine = await connect(…)`.

    `url` is `postgresql://…`, `sqlite:///path`, a plain path of a file, or `:memory:`. The store is made and brought to
    the present schema unless `migrate` is off. `durable=False` allows settings under which a power cut may lose
    acknowledged work. `pooler=True` is for PostgreSQL behind a pooler in transaction mode. `key_file` holds the keys
    that sign tokens, one `kid=64 hex` a line; without one, and without FLOWFABRIC_KEY_FILE or FLOWFABRIC_KEYS, they
    are kept in the store. `notify=False` switches wake-ups off: everything works, but is noticed only by looking.
    `listen_url` is a direct address of the server for wake-ups behind a pooler. `event_retention` says how long events
    stay after their execution was removed, `subscriber_expiry` after which silence they are not kept any longer for a
    named subscriber. With `renewal_events` each renewal of a lease by this engine leaves an event too. `clock` is for
    tests.
    """
    limits.text(url, "url")
    if clock is not None:
        _check_clock(clock)
    switches = {"durable": durable, "migrate": migrate, "pooler": pooler, "notify": notify}
    for name, value in (switches | {"renewal_events": renewal_events}).items():
        limits.truth(value, name)
    timeout = limits.duration(statement_timeout, "statement_timeout", limits.LEASE_TTL_LEAST, STATEMENT_TIMEOUT_MOST)
    settings = Settings(
        schema=_schema(schema), durable=durable, migrate=migrate, pooler=pooler,
        pool_size=limits.whole(pool_size, "pool_size", 1, POOL_SIZE_MOST), statement_timeout_s=timeout.total_seconds(),
        listen_url=None if listen_url is None else _listen_url(listen_url),
    )  # fmt: skip
    keeping = EventKeeping(
        retention=limits.duration(event_retention, "event_retention"),
        subscriber_expiry=limits.duration(subscriber_expiry, "subscriber_expiry", limits.LEASE_TTL_LEAST),
    )
    habits = Habits(
        namespace=limits.name(namespace, "namespace"), keys=key_source(key_file), notify=notify, keeping=keeping,
        renewal_events=renewal_events,
    )  # fmt: skip
    return Connecting(url, settings, habits, clock)


def _check_clock(clock: object) -> None:
    now = getattr(clock, "now", None)
    if not callable(now):
        raise InvalidRequest(
            "invalid_type", f"clock must have a method now(), {type(clock).__name__} has none", field="clock"
        )
    limits.moment(now(), "clock.now()")


def _listen_url(value: object) -> str:
    text = limits.text(value, "listen_url")
    if not text.startswith(_POSTGRES):
        raise InvalidRequest("invalid_url", "listen_url must be the address of a server: postgresql://…")
    return text


def _schema(value: object) -> str:
    if not isinstance(value, str) or not _SCHEMA.fullmatch(value):
        message = "schema must be a lower-case name of at most 63 letters, digits and _"
        raise InvalidRequest("invalid_name", message, field="schema")
    return value


async def _open_store(url: str, settings: Settings, clock: Clock | None) -> Store:
    now = clock.now if clock else None
    if url.startswith(_POSTGRES):
        return await _open_postgres(url, settings, now)
    # The driver of the other store is never imported, so each needs only its own.
    from flowfabric.backends.sqlite import open_sqlite

    return await open_sqlite(
        _path(url), clock=now, durable=settings.durable, statement_timeout_s=settings.statement_timeout_s,
        may_migrate=settings.migrate,
    )  # fmt: skip


async def _learn_time(store: Store, wakeups: Wakeups) -> None:
    try:
        wakeups.learn_time(await store.read_single(lambda tx: tx.now()))
    except BaseException:
        await store.close()
        raise


async def _open_postgres(url: str, settings: Settings, now: Any) -> Store:
    try:
        from flowfabric.backends.postgres import open_postgres
    except ModuleNotFoundError as error:
        message = "PostgreSQL needs the asyncpg driver: pip install 'flowfabric[postgres]'"
        raise InvalidRequest("driver_missing", message) from error
    return await open_postgres(url, settings, now)


def _path(url: str) -> str:
    if not url:
        raise InvalidRequest("invalid_url", "url must be text such as 'jobs.db' or 'postgresql://…'")
    if "://" not in url:
        return url
    parts = _split(url)
    if parts.scheme != "sqlite" or parts.netloc not in ("", ":memory:") or parts.query:
        message = (
            f"url must be postgresql://…, sqlite:///path, a path or :memory:, not {limits.shown(parts.scheme)}://…"
        )
        raise InvalidRequest("invalid_url", message)
    path = limits.text(unquote(parts.path), "the path of the url")
    if parts.netloc == ":memory:" or path in ("", "/", "/:memory:"):
        return ":memory:"
    # As elsewhere in Python, three slashes begin a relative path and four an absolute one.
    return path[1:]


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        raise InvalidRequest("invalid_url", "the url cannot be read; check its brackets and slashes") from None
