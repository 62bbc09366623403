"""`flowfabric doctor`: check a store and suggest repairs.

The command first reads all data into a `DoctorContext`. Each check is a function that takes this context.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from flowfabric.cli import exit_codes
from flowfabric.cli.commands.lanes import read_lanes, read_workers
from flowfabric.cli.output import format_count, format_json, format_time, print_lines, stdout_screen
from flowfabric.cli.targets import open_for_reading
from flowfabric.cli.terminal import Screen, wrap_text
from flowfabric.core.errors import FlowFabricError, Unavailable
from flowfabric.core.workers import find_missing_worker
from flowfabric.engine import (
    Backlog,
    Engine,
    EventsStatus,
    HeldWork,
    KeyView,
    LaneInfo,
    LaneState,
    StoreInfo,
    WorkerInfo,
)
from flowfabric.engine.keys import FILE_VARIABLE
from flowfabric.runtime.journal import first_difference
from flowfabric.store.file_permissions import can_others_read

Verdict = Literal["ok", "warning", "wrong"]

_LISTEN_WITHIN_S = 5.0
_SKEW_WARNING = timedelta(seconds=1)
_SKEW_WRONG = timedelta(seconds=30)
_HELD_BACK_WARNING = timedelta(minutes=1)
_ERA_WARNING = timedelta(days=7)
# In older versions of SQLite, two processes that checkpoint the write-ahead log at the same time can damage it.
_SQLITE_SAFE = (3, 51, 3)
# The engine vacuums after about 20,000 claims, which leave about 40,000 dead rows.
_MAX_DEAD_ROWS = 200_000
_MAX_FINDINGS = 10
_MAX_LAX = 5
_INDENT = 22


async def examine(arguments: argparse.Namespace) -> int:
    """Print the findings of each check.

    If the store cannot be opened, print a finding for that, and raise the error.
    """
    try:
        async with open_for_reading(arguments) as engine:
            context = await gather_context(engine, deep=arguments.deep)
    except FlowFabricError as error:
        if isinstance(error, Unavailable) or error.code in _ADVICE:
            _print(arguments, [diagnose_unusable(error)])
        raise
    findings = [finding for check in CHECKS for finding in check(context)]
    _print(arguments, findings)
    return exit_codes.FAILED if any(finding.verdict == "wrong" for finding in findings) else exit_codes.OK


def format_findings(findings: Sequence[DoctorFinding], screen: Screen) -> list[str]:
    """Return the findings as lines for people."""
    lines: list[str] = []
    for finding in findings:
        head = f"{screen.paint_word(finding.verdict.ljust(8))} {finding.subject:<{_INDENT - 9}}"
        first, *rest = wrap_text(finding.text, screen, _INDENT)
        advice = wrap_text(f"-> {finding.advice}", screen, _INDENT) if finding.advice else []
        lines += [head + first, *(" " * _INDENT + line for line in (*rest, *advice))]
    return lines


def _print(arguments: argparse.Namespace, findings: Sequence[DoctorFinding]) -> None:
    print_lines(map(format_json, findings) if arguments.json else format_findings(findings, stdout_screen()))


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """The result of a check, with advice if something is wrong."""

    subject: str
    verdict: Verdict
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorContext:
    """The data that the checks read. `skew` is how far the store's clock is ahead of this host's clock."""

    store_info: StoreInfo
    skew: timedelta
    keys: tuple[KeyView, ...] | FlowFabricError
    status: EventsStatus
    now: datetime
    workers: Sequence[WorkerInfo]
    lanes: Mapping[str, LaneInfo]
    backlog: Sequence[Backlog]
    held: Sequence[HeldWork] = ()
    damage: Sequence[str] | None = None


async def gather_context(engine: Engine, *, deep: bool = False) -> DoctorContext:
    """Read everything that the checks need. With `deep`, check all stored data."""
    before = datetime.now(UTC)
    info = await engine.store_info()
    after = datetime.now(UTC)
    return DoctorContext(
        store_info=info,
        skew=_clock_skew(info.now, before, after),
        keys=await _list_keys(engine),
        status=await _wait_for_listener(engine),
        now=info.now,
        workers=await read_workers(engine),
        lanes={lane.lane: lane for lane in await read_lanes(engine)},
        backlog=await engine.backlog(),
        held=await engine.held_work(),
        damage=await engine.find_damage() if deep else None,
    )


def _clock_skew(store: datetime, before: datetime, after: datetime) -> timedelta:
    """Return how far the store's clock is ahead of this host's clock, corrected for the duration of the request."""
    if before <= store <= after:
        return timedelta(0)
    return store - after if store > after else store - before


async def _list_keys(engine: Engine) -> tuple[KeyView, ...] | FlowFabricError:
    try:
        return await engine.keys.list()
    except FlowFabricError as error:
        return error


async def _wait_for_listener(engine: Engine) -> EventsStatus:
    """Return the status when the listener has connected, or after a few seconds.

    Watch a lane, because only that starts the listener.
    """
    loop = asyncio.get_running_loop()
    ends = loop.time() + _LISTEN_WITHIN_S
    with engine.leases.watch(["default"]):
        while True:
            status = await engine.events.status()
            if status.listener.mode != "starting" or loop.time() > ends:
                return status
            await asyncio.sleep(0.02)


# What to do about a store that cannot be opened, by the code of the error.
_ADVICE = {
    "schema_outdated": "update the store: flowfabric migrate",
    "store_not_found": "check --store, or create the store: flowfabric migrate",
    "server_unreachable": "start the server, or check --store",
    "schema_newer": "upgrade flowfabric to the version of the other processes",
    "schema_edited": "install the version of flowfabric that created the store",
    "storage_damaged": "check --store; if it is the right file, run flowfabric restore BACKUP",
    "storage_log_mismatch": "put the right file in place, or run flowfabric restore BACKUP",
    "access_denied": "check the user, the password and the grants of the schema",
    "server_read_only": "use the address of the primary, or add target_session_attrs=primary to the URL",
    "unsupported_encoding": "create a database with ENCODING 'UTF8', and use it",
    "pooler_undeclared": "run the command with --pooler, and connect programs with pooler=True",
    "rows_hidden": "turn row-level security off for these tables, or give the role BYPASSRLS",
}


def diagnose_unusable(error: FlowFabricError) -> DoctorFinding:
    """Return the finding for a store that cannot be opened."""
    advice = _ADVICE.get(error.code, "check --store, and that the server runs and is reachable from here")
    return DoctorFinding("store", "wrong", str(error), advice)


def check_store(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Report the backend and the schema version."""
    info = context.store_info
    yield DoctorFinding("store", "ok", f"{info.backend} {info.version} is reachable")
    yield DoctorFinding("schema", "ok", f"version {info.schema_version}, as this program expects")


def check_durability(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check that acknowledged work survives a power cut."""
    info, settings = context.store_info, context.store_info.settings
    if info.backend == "sqlite":
        yield from _check_file(info)
        return
    off = [name for name in ("fsync", "full_page_writes", "synchronous_commit") if settings.get(name) in ("off", None)]
    if off:
        text = f"{', '.join(off)} {'is' if len(off) == 1 else 'are'} off: a power cut may lose acknowledged work"
        yield DoctorFinding("durability", "wrong", text, "switch it on in postgresql.conf and reload the server")
    else:
        yield DoctorFinding("durability", "ok", "acknowledged work is durable")
    if info.lax:
        names = ", ".join(info.lax[:_MAX_LAX]) + (" and others" if len(info.lax) > _MAX_LAX else "")
        text = (
            f"synchronous_commit is off for {names}: flowfabric turns it on in its own transactions, but "
            "submit_in_transaction has the setting of the caller's connection"
        )
        advice = "set synchronous_commit = on there, or in each transaction that submits"
        yield DoctorFinding("durability", "warning", text, advice)


def _check_file(info: StoreInfo) -> Iterator[DoctorFinding]:
    mode = info.settings.get("journal_mode")
    if mode != "wal":
        yield DoctorFinding("durability", "wrong", f"the journal mode is {mode}", "open the store once with flowfabric")
    else:
        yield DoctorFinding("durability", "ok", "write-ahead log; writers wait for the disk (synchronous=FULL)")
    version = tuple(int(part) for part in info.version.split(".") if part.isdigit())
    if version < _SQLITE_SAFE:
        text = (
            f"SQLite {info.version} can damage its log if two processes checkpoint at the same time; flowfabric "
            "prevents that, but other programs that open the file may not"
        )
        yield DoctorFinding("sqlite", "ok", text, "open the file only with flowfabric, or use SQLite 3.51.3 or later")


def check_connection(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check that the server notices a host that has vanished, and ends its transaction."""
    settings = context.store_info.settings
    reached_by = settings.get("reached_by")
    if reached_by == "pooler":
        text = "behind a pooler, only the pooler can notice that a host has vanished inside a step.tx"
        advice = (
            "set the keepalives of the pooler (PgBouncer: tcp_keepidle = 10, tcp_keepintvl = 5, tcp_keepcnt = 2, "
            "tcp_user_timeout = 20000); see docs/guides/poolers.md"
        )
        yield DoctorFinding("connection", "ok", text, advice)
    elif reached_by == "tcp" and settings.get("tcp_keepalives_idle") == "0":
        text = "the server sends no keepalives, so a host that vanishes inside a step.tx keeps its row locked for hours"
        advice = "run the server on a system with TCP keepalives; see docs/guides/poolers.md"
        yield DoctorFinding("connection", "warning", text, advice)
    elif reached_by == "tcp":
        yield DoctorFinding("connection", "ok", "the server notices within 20 s that a host has vanished")


def check_dead_rows(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check that PostgreSQL cleans up the dead rows of executions, which slow claims down."""
    info = context.store_info
    if info.backend != "postgresql":
        return
    number = f"about {format_count(info.dead_rows, 'dead row')}"
    if info.dead_rows <= _MAX_DEAD_ROWS:
        yield DoctorFinding("dead rows", "ok", f"{number} in the table of executions")
    elif info.vacuum_blockers:
        text = f"{number} in the table of executions slow claims down; blocked by {'; '.join(info.vacuum_blockers)}"
        advice = "end it: SELECT pg_terminate_backend(PROCESS), ROLLBACK PREPARED or pg_drop_replication_slot"
        yield DoctorFinding("dead rows", "warning", text, advice)
    else:
        text = f"{number} in the table of executions slow claims down, and no transaction blocks their removal"
        advice = "let the owner of the tables run the workers, without vacuum=False; see docs/guides/tuning.md"
        yield DoctorFinding("dead rows", "warning", text, advice)


def check_data(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Report damage in the stored data, if it was checked."""
    for problem in context.damage or ():
        yield DoctorFinding("data", "wrong", problem, "restore a backup, as described in docs/guides/backups.md")
    if context.damage is not None and not context.damage:
        yield DoctorFinding("data", "ok", "all stored data was checked, and no damage was found")


def check_permissions(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check that other users of this host cannot read the signing keys."""
    key_file = os.environ.get(FILE_VARIABLE)
    if context.store_info.settings.get("readable_by_others") == "on":
        text = "every user of this host can read the store, which contains the signing keys"
        yield DoctorFinding("permissions", "warning", text, "run chmod o-rwx on the file")
    if key_file and can_others_read(key_file):
        text = f"every user of this host can read the key file {key_file}"
        yield DoctorFinding("permissions", "warning", text, "run chmod o-rwx on the file")


def check_clock(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check that the store and this host agree on the time."""
    off = abs(context.skew)
    seconds = f"{off.total_seconds():.1f} s"
    ahead = "ahead of" if context.skew > timedelta(0) else "behind"
    if off < _SKEW_WARNING:
        yield DoctorFinding("clock", "ok", "the clocks of the store and of this host agree")
    else:
        # The time of a file is ahead after the host's clock went back. Durations are still right.
        is_file = context.store_info.backend == "sqlite"
        verdict: Verdict = "wrong" if off >= _SKEW_WRONG and not is_file else "warning"
        text = f"the store's clock is {seconds} {ahead} this host's"
        advice = (
            "check the host's clock; if it is right, absolute times come early by this much (see docs/guides/clocks.md)"
            if is_file
            else "synchronize both hosts with the same time servers"
        )
        yield DoctorFinding("clock", verdict, text, advice)


def check_keys(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check that this host can sign and verify tokens."""
    if isinstance(context.keys, FlowFabricError):
        yield DoctorFinding("keys", "wrong", str(context.keys), "repair the key file or its variable")
        return
    missing = [key.kid for key in context.keys if not key.known and key.state in ("active", "verifying")]
    active = [key.kid for key in context.keys if key.state == "active"]
    if missing:
        text = f"the secret of {', '.join(missing)} is missing on this host, so its tokens are refused"
        yield DoctorFinding(
            "keys", "wrong", text, "put the line back into the key file, or set FLOWFABRIC_KEY_FILE here too"
        )
    elif not active:
        yield DoctorFinding("keys", "ok", "no key yet; the first token creates one")
    else:
        old = sum(key.state == "verifying" for key in context.keys)
        yield DoctorFinding("keys", "ok", f"{active[0]} is active; {format_count(old, 'older key')} can still verify")


def check_notifications(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check that notifications from other processes arrive, and that subscribers can read all events in time."""
    mode, since = context.status.listener.mode, context.status.held_back_since
    if mode == "listening":
        yield DoctorFinding("listener", "ok", "notifications of other processes arrive")
    elif mode == "polling":
        text = "there is no connection for notifications behind a pooler, so idle workers poll once a second"
        yield DoctorFinding("listener", "warning", text, "give connect() a listen_url that bypasses the pooler")
    else:
        text = f"the connection for notifications is {mode}, so changes are noticed up to a second late"
        advice = "check that this user may open one more connection and LISTEN"
        yield DoctorFinding("listener", "warning", text, advice)
    if context.status.is_restored:
        text = "events were restored from a dump of another server, so subscribers may miss some"
        yield DoctorFinding("events", "wrong", text, "repair them as described in docs/guides/deploying.md, Backups")
    elif since is not None and context.now - since > _HELD_BACK_WARNING:
        text = f"a transaction that has been open since {format_time(since)} holds events back"
        yield DoctorFinding(
            "events", "warning", text, "find it in pg_stat_activity (backend_xid is not null) and end it"
        )
    era, era_since = context.status.era, context.status.era_since
    if era_since is not None and context.now - era_since < _ERA_WARNING:
        text = (
            f"the store went back to an earlier state, noticed at {format_time(era_since)} (era {era}), so the last "
            "transactions before it are lost, and subscribers received some events again"
        )
        yield DoctorFinding("era", "warning", text, "use synchronous replication; see docs/guides/failover.md")


def check_workers(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check that workers are alive and have free slots."""
    silent = [worker for worker in context.workers if worker.is_silent(context.now)]
    alive = [worker for worker in context.workers if not worker.is_silent(context.now)]
    for worker in silent[:_MAX_FINDINGS]:
        text = f"worker {worker.id.instance} has not been heard from since {format_time(worker.seen_at)}"
        advice = "start another worker if its process is dead; its leases expire automatically"
        yield DoctorFinding("workers", "warning", text, advice)
    if alive:
        busy, slots = sum(worker.busy for worker in alive), sum(worker.slots for worker in alive)
        live = format_count(len(alive), "live worker")
        yield DoctorFinding("workers", "ok", f"{live}, {busy} of {format_count(slots, 'slot')} busy")
        versions = Counter(worker.version for worker in alive)
        if len(versions) > 1:
            listed = ", ".join(f"{version} ({number})" for version, number in sorted(versions.items()))
            yield DoctorFinding("versions", "ok", f"the live workers run different code: {listed}")
        if slots and busy >= slots and context.backlog:
            text = "all slots are busy and executions are waiting"
            yield DoctorFinding("workers", "warning", text, "start more workers, or increase --concurrency")
    else:
        text = "no live worker is registered, so nothing runs and no timer fires"
        yield DoctorFinding("workers", "warning", text, "start one: flowfabric worker MODULE:APP")


def check_lanes(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check that a live worker can claim each waiting execution."""
    stuck = [finding for backlog in context.backlog for finding in _check_backlog(context, backlog)]
    yield from stuck[:_MAX_FINDINGS]
    if len(stuck) > _MAX_FINDINGS:
        text = f"{len(stuck) - _MAX_FINDINGS} more kinds of work have no worker"
        yield DoctorFinding("lanes", "warning", text)
    if not stuck:
        total = sum(backlog.waiting.value for backlog in context.backlog)
        yield DoctorFinding("lanes", "ok", f"{format_count(total, 'execution')} waiting, all with a suitable worker")


def _check_backlog(context: DoctorContext, backlog: Backlog) -> Iterator[DoctorFinding]:
    what = f"{format_count(backlog.waiting.value, 'execution')} of {backlog.kind} on lane {backlog.lane}"
    lane = context.lanes.get(backlog.lane)
    if lane is not None and lane.state is LaneState.PAUSED:
        advice = f"flowfabric lanes resume {backlog.lane}"
        yield DoctorFinding("lanes", "warning", f"{what}: the lane is {lane}", advice)
        return
    missing = find_missing_worker(backlog.lane, backlog.kind, backlog.requires, context.workers)
    if missing is not None:
        remedies = {
            "lane": f"start one: flowfabric worker MODULE:APP --lane {backlog.lane}",
            "kind": f"start a worker whose app has a task {backlog.kind}: flowfabric worker MODULE:APP",
            "capabilities": "start a worker with " + " ".join(f"--capability {name}" for name in backlog.requires),
        }
        yield DoctorFinding("lanes", "warning", f"{what}: {missing.sentence}", remedies[missing.cause])


def check_held(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Check that no execution is held. Work that a worker held needs a repair, so it is wrong."""
    for held in context.held:
        number = format_count(held.number.value, "execution") + ("" if held.number.is_exact else " or more")
        verb = "is" if held.number.value == 1 else "are"
        which = f"--all --kind {shlex.quote(held.kind)} --held-for {shlex.quote(held.reason)}"
        unhold = f"flowfabric unhold {which if 0 < len(held.reason) < 256 else held.first}"
        if held.report is None:
            text = f"{number} of {held.kind} {verb} held by an operator ({held.reason or 'no reason given'})"
            yield DoctorFinding("held", "warning", text, f"to continue: {unhold}")
            continue
        text = f"{number} of {held.kind} {verb} held ({held.reason}). First: {first_difference(held.report)}"
        repair = _REPAIRS.get(held.reason, "repair the cause")
        advice = f"{repair}, then {unhold}; flowfabric show {held.first} prints the report"
        yield DoctorFinding("held", "wrong", text, advice)
    if not context.held:
        yield DoctorFinding("held", "ok", "no execution is held")


# How to repair the cause of a hold, by its reason.
_REPAIRS = {
    "diverged": 'deploy the former code, or repair the new code with changed("…"), a step name or version=2',
    "input_mismatch": "restore the old parameters, or register version=2",
    "run_failed": "upgrade or report the error in flowfabric's own code",
}
CHECKS = (
    check_store, check_durability, check_connection, check_dead_rows, check_data, check_permissions, check_clock,
    check_keys, check_notifications, check_workers, check_lanes, check_held,
)  # fmt: skip
