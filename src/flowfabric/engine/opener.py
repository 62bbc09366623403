"""`connect`: open a store by its URL."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol, TypedDict
from urllib.parse import SplitResult, unquote, urlsplit

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.retention import EventRetention
from flowfabric.core.store_address import make_absolute, without_driver
from flowfabric.engine.claim_namespaces import ClaimNamespaces
from flowfabric.engine.context import Context, WaitOperations
from flowfabric.engine.engine import Engine
from flowfabric.engine.keys import key_source
from flowfabric.notify.hub import NotifyHub
from flowfabric.ops.events.eras import read_era, renew_era
from flowfabric.ops.executions.read import read_time
from flowfabric.ops.keys import KeySource
from flowfabric.ops.leases.renew import make_renew
from flowfabric.ops.waits.deliver_signal import make_deliver_signal
from flowfabric.ops.waits.suspend import make_suspend
from flowfabric.reconcilers.loop import Reconcilers
from flowfabric.reconcilers.vacuum import Vacuum
from flowfabric.store.checks import POSTGRES_BACKUPS, backup_unsupported_error
from flowfabric.store.ports import Store

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
MAX_STATEMENT_TIMEOUT = timedelta(days=1)
MAX_RETRY_FOR = timedelta(hours=1)
MAX_POOL_SIZE = 1000
_POSTGRES = ("postgresql://", "postgres://")


class Clock(Protocol):
    """The interface of a clock that replaces the store's clock in tests."""

    def now(self) -> datetime:
        """Return the present time, in UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSettings:
    """Options of the store.

    `schema`, `pooler` and `pool_size` apply only to PostgreSQL, `transaction_limit_s` only to SQLite.
    """

    schema: str
    durable: bool
    migrate: bool
    pooler: bool
    pool_size: int
    statement_timeout_s: float
    retry_for_s: float
    listen_url: str | None
    transaction_limit_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Options of the engine, independent of the store."""

    namespace: str
    keys: KeySource
    notify: bool
    retention: EventRetention
    renewal_events: bool
    vacuum: bool
    retry_for_s: float
    claim_namespaces: ClaimNamespaces | None


class EngineOpener:
    """The return value of `connect`.

    Await it to get an engine, or use it with `async with`, which also closes the engine.
    """

    def __init__(
        self, url: str, settings: BackendSettings, engine_settings: EngineSettings, clock: Clock | None
    ) -> None:
        self._url = url
        self._settings = settings
        self._engine_settings = engine_settings
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
        return await self._build(await _open_store(self._url, self._settings, self._clock))

    async def _build(self, store: Store) -> Engine:
        """Return a new engine on an open store."""
        settings = self._engine_settings
        waits = WaitOperations(make_suspend(settings.keys), make_deliver_signal(settings.keys))
        renew = make_renew(with_events=settings.renewal_events)
        clock = self._clock.now if self._clock else store.local_clock
        wakeups = NotifyHub(store.notifier, enabled=settings.notify, clock=clock)
        vacuum = Vacuum(store, enabled=settings.vacuum)
        reconcilers = Reconcilers(store, wakeups, settings.retention, vacuum)
        context = Context(
            store,
            settings.namespace,
            reconcilers,
            vacuum,
            wakeups,
            settings.keys,
            waits,
            renew=renew,
            retry_for_s=settings.retry_for_s,
            claim_namespaces=settings.claim_namespaces,
        )
        await _read_store(context)
        return Engine(context)


class StoreOptions(TypedDict, total=False):
    """The options of `connect` that concern the store, as a type for functions that pass them to `connect`."""

    schema: str
    durable: bool
    migrate: bool
    pooler: bool
    pool_size: int
    statement_timeout: validation.Duration
    retry_for: validation.Duration
    key_file: str | None
    notify: bool
    listen_url: str | None
    event_retention: validation.Duration
    subscriber_expiry: validation.Duration
    renewal_events: bool
    vacuum: bool
    transaction_limit: validation.Duration | None
    claim_namespaces: Sequence[str]


def connect(
    url: str,
    *,
    namespace: str = "default",
    schema: str = "flowfabric",
    durable: bool = True,
    migrate: bool = True,
    pooler: bool = False,
    pool_size: int = 10,
    statement_timeout: validation.Duration = 30,
    retry_for: validation.Duration = 5,
    key_file: str | None = None,
    notify: bool = True,
    listen_url: str | None = None,
    event_retention: validation.Duration = "7d",
    subscriber_expiry: validation.Duration = "7d",
    renewal_events: bool = False,
    vacuum: bool = True,
    transaction_limit: validation.Duration | None = None,
    claim_namespaces: Sequence[str] = (),
    clock: Clock | None = None,
) -> EngineOpener:
    """Connect to the store at `url`: `async with connect("jobs.db") as engine`, or `engine = await connect(…)`.

    `url` is `postgresql://…`, `sqlite:///path`, the path of a file, or `:memory:`. If necessary, the store is created
    or migrated, unless `migrate` is False. `durable=False` allows settings under which a power cut may lose
    acknowledged work. `pooler=True` is for PostgreSQL behind a pooler in transaction mode. If a connection breaks
    before the reply, the engine repeats the call on a new connection for up to `retry_for`. `key_file` contains the
    keys that sign tokens, one `kid=SECRET` per line. If `key_file` and the environment variables FLOWFABRIC_KEY_FILE
    and FLOWFABRIC_KEYS are all missing, the store keeps the keys. `notify=False` turns wake-ups off, so changes are
    noticed only by polling. Behind a pooler, wake-ups need `listen_url`, a direct address of the server. Events are
    kept for `event_retention` after their execution was removed, and longer for a named subscriber that has not read
    them, until it has been silent for `subscriber_expiry`. With `renewal_events`, each renewal of a lease appends an
    event. On PostgreSQL, workers vacuum the executions after about 20,000 claims, unless `vacuum=False`. On SQLite, a
    `step.tx` blocks all other writes and fails after `transaction_limit`, by default a third of its lease. With
    `claim_namespaces`, claims cover these namespaces, and calls with a fence act in that of the lease.
    """
    retry_for_s = validation.duration(retry_for, "retry_for", maximum=MAX_RETRY_FOR).total_seconds()
    settings = BackendSettings(
        schema=_check_schema(schema),
        durable=validation.boolean(durable, "durable"),
        migrate=validation.boolean(migrate, "migrate"),
        pooler=validation.boolean(pooler, "pooler"),
        pool_size=validation.integer(pool_size, "pool_size", 1, MAX_POOL_SIZE),
        statement_timeout_s=_statement_timeout_s(statement_timeout),
        retry_for_s=retry_for_s,
        listen_url=None if listen_url is None else _check_listen_url(listen_url),
        transaction_limit_s=_limit_s(transaction_limit),
    )
    engine_settings = EngineSettings(
        namespace=validation.name(namespace, "namespace"),
        keys=key_source(key_file),
        notify=validation.boolean(notify, "notify"),
        retention=_event_retention(event_retention, subscriber_expiry),
        renewal_events=validation.boolean(renewal_events, "renewal_events"),
        vacuum=validation.boolean(vacuum, "vacuum"),
        retry_for_s=retry_for_s,
        claim_namespaces=None if claim_namespaces == () else ClaimNamespaces(claim_namespaces),
    )
    return EngineOpener(_absolute(url), settings, engine_settings, _check_clock(clock))


def _absolute(url: object) -> str:
    # The program may change its working directory before it opens the engine.
    return make_absolute(validation.text(url, "url"), _working_directory())


def _statement_timeout_s(value: object) -> float:
    timeout = validation.duration(value, "statement_timeout", validation.MIN_LEASE_TTL, MAX_STATEMENT_TIMEOUT)
    return timeout.total_seconds()


def _event_retention(retention: object, subscriber_expiry: object) -> EventRetention:
    return EventRetention(
        retention=validation.duration(retention, "event_retention"),
        subscriber_expiry=validation.duration(subscriber_expiry, "subscriber_expiry", validation.MIN_LEASE_TTL),
    )


def _working_directory() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - only the text is needed
    except FileNotFoundError:
        return ""


def _check_clock(clock: Clock | None) -> Clock | None:
    if clock is None:
        return None
    now = getattr(clock, "now", None)
    if not callable(now):
        raise InvalidRequest(
            "invalid_type", f"clock must have a method now(), but {type(clock).__name__} has none", field="clock"
        )
    validation.timestamp(now(), "clock.now()")
    return clock


def _check_listen_url(value: object) -> str:
    text = without_driver(validation.text(value, "listen_url"))
    if not text.startswith(_POSTGRES):
        raise InvalidRequest("invalid_url", "listen_url must be the address of a server, such as postgresql://…")
    return text


def _limit_s(value: object) -> float | None:
    if value is None:
        return None
    limit = validation.duration(value, "transaction_limit", timedelta(milliseconds=1), MAX_STATEMENT_TIMEOUT)
    return limit.total_seconds()


def _check_schema(value: object) -> str:
    if not isinstance(value, str) or not _SCHEMA.fullmatch(value):
        message = "schema must be a lower-case name of at most 63 letters, digits and _"
        raise InvalidRequest("invalid_name", message, field="schema")
    return value


async def _open_store(url: str, settings: BackendSettings, clock: Clock | None) -> Store:
    now = clock.now if clock else None
    if url.startswith(_POSTGRES):
        return await _open_postgres(url, settings, now)
    # Import each backend only when it is used, because it imports its database driver.
    from flowfabric.backends.sqlite import open_sqlite

    return await open_sqlite(
        _sqlite_path(url),
        clock=now,
        durable=settings.durable,
        statement_timeout_s=settings.statement_timeout_s,
        may_migrate=settings.migrate,
        transaction_limit_s=settings.transaction_limit_s,
    )


async def restore_backup(url: str, file: str) -> str | None:
    """Put a checked copy of a backup in the place of the SQLite store at `url`, which may be missing.

    Return the path of the former store, which is kept, or None. Raise if another process uses the store. This process
    must not have opened it.
    """
    path = restorable_path(url)
    from flowfabric.backends.sqlite import restore_sqlite

    return await asyncio.to_thread(restore_sqlite, validation.text(file, "file"), path)


def restorable_path(url: str) -> str:
    """Return the path of the SQLite store at `url`. Raise if a store there cannot be restored from a backup."""
    url = without_driver(url)
    if url.startswith(_POSTGRES):
        raise backup_unsupported_error(POSTGRES_BACKUPS)
    path = _sqlite_path(url)
    if path == ":memory:":
        raise backup_unsupported_error("a store in memory cannot be restored; name a file")
    return path


async def _read_store(context: Context) -> None:
    """Read the store's time, and begin a new era of event positions if the store went back to an earlier state."""
    try:
        requested_at = time.monotonic()
        context.wakeups.learn_time(await context.call(read_time, None), requested_at)
        _, is_current = await context.call(read_era, None)
        if not is_current:
            await context.call(renew_era, None)
    except BaseException:
        await context.store.close()
        raise


async def _open_postgres(url: str, settings: BackendSettings, now: Any) -> Store:
    try:
        from flowfabric.backends.postgres import open_postgres
    except ModuleNotFoundError as error:
        message = "PostgreSQL needs the asyncpg driver; run pip install 'flowfabric[postgres]'"
        raise InvalidRequest("driver_missing", message) from error
    return await open_postgres(url, settings, now)


def _sqlite_path(url: str) -> str:
    if not url:
        raise InvalidRequest("invalid_url", "url must be text such as 'jobs.db' or 'postgresql://…'")
    if "://" not in url:
        return url
    parts = _split_url(url)
    if parts.scheme != "sqlite" or parts.netloc not in ("", ":memory:") or parts.query:
        message = f"url must be postgresql://…, sqlite:///path, a path or :memory:, not {validation.preview(parts.scheme)}://…"
        raise InvalidRequest("invalid_url", message)
    path = validation.text(unquote(parts.path), "the path of the url")
    if parts.netloc == ":memory:" or path in ("", "/", "/:memory:"):
        return ":memory:"
    # As in other Python libraries, `sqlite:///` is followed by a relative path, and `sqlite:////` by an absolute path.
    return path[1:]


def _split_url(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        raise InvalidRequest("invalid_url", "the url cannot be read; check its brackets and slashes") from None
