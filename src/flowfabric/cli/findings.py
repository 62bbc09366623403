"""What `doctor` looks at, and how it judges: each judge is a function of what was seen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from flowfabric.cli.saying import count_of, moment
from flowfabric.core.errors import FlowFabricError, Unavailable
from flowfabric.core.workers import nobody_offers
from flowfabric.engine import Backlog, Engine, EventsStatus, KeyView, LaneState, StoreFacts, Worker

Verdict = Literal["ok", "warning", "wrong"]

_LISTEN_WITHIN_S = 5.0
_SKEW_WARNS = timedelta(seconds=1)
_SKEW_WRONG = timedelta(seconds=30)
_HELD_BACK_WARNS = timedelta(minutes=1)
# Before it, two processes that checkpoint the log at once can damage it; the engine lets only one do it.
_SQLITE_SAFE = (3, 51, 3)
_MOST_LANES = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what was seen, whether that is good, and what to do if not."""

    subject: str
    verdict: Verdict
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Everything that was seen. `skew` is how far the store's clock is ahead of this host's."""

    facts: StoreFacts
    skew: timedelta
    keys: tuple[KeyView, ...] | FlowFabricError
    status: EventsStatus
    now: datetime
    workers: Sequence[Worker]
    lanes: Mapping[str, LaneState]
    backlog: Sequence[Backlog]


async def look_around(engine: Engine) -> Surroundings:
    """Sees what there is to see."""
    before = datetime.now(UTC)
    facts = await engine.facts()
    after = datetime.now(UTC)
    return Surroundings(
        facts=facts, skew=_skew(facts.now, before, after), keys=await _keys(engine), status=await _listening(engine),
        now=facts.now, workers=await engine.workers.list(), lanes=await engine.lanes.list(),
        backlog=await engine.backlog(),
    )  # fmt: skip


def of_unusable(error: Unavailable) -> Finding:
    """A store that cannot be opened."""
    advice = {
        "schema_outdated": "check --store, or make or update the store there: flowfabric migrate",
        "schema_newer": "upgrade flowfabric to the version that the other processes run",
        "schema_edited": "install the version of flowfabric that made the store",
        "storage_damaged": "check --store; if that is the right file, restore a backup",
        "access_denied": "check the user, the password and the grants of the schema",
    }.get(error.code, "check --store, and that the server is up and can be reached from here")
    return Finding("store", "wrong", str(error), advice)


def judge_store(around: Surroundings) -> Iterator[Finding]:
    """What it is, and which schema it has."""
    facts = around.facts
    yield Finding("store", "ok", f"{facts.backend} {facts.version} answers")
    yield Finding("schema", "ok", f"version {facts.schema_version}, which this program knows")


def judge_durability(around: Surroundings) -> Iterator[Finding]:
    """Whether what was acknowledged survives a power cut."""
    facts, settings = around.facts, around.facts.settings
    if facts.backend == "sqlite":
        yield from _judge_file(facts)
        return
    off = [name for name in ("fsync", "full_page_writes", "synchronous_commit") if settings.get(name) in ("off", None)]
    if off:
        text = f"{', '.join(off)} {'is' if len(off) == 1 else 'are'} off: a power cut may lose acknowledged work"
        yield Finding("durability", "wrong", text, "switch it on in postgresql.conf and reload the server")
    else:
        yield Finding("durability", "ok", "the server acknowledges durably")


def _judge_file(facts: StoreFacts) -> Iterator[Finding]:
    mode = facts.settings.get("journal_mode")
    if mode != "wal":
        yield Finding("durability", "wrong", f"the journal mode is {mode}", "open the store once with flowfabric")
    else:
        yield Finding("durability", "ok", "write-ahead log; writers wait for the disk (synchronous=FULL)")
    version = tuple(int(part) for part in facts.version.split(".") if part.isdigit())
    if version < _SQLITE_SAFE:
        text = (
            f"SQLite {facts.version} can damage its log if two processes checkpoint at once; flowfabric lets only "
            "one do it, other programs that open the file may not"
        )
        yield Finding("sqlite", "ok", text, "open the file with nothing else, or use SQLite 3.51.3 or later")


def judge_clock(around: Surroundings) -> Iterator[Finding]:
    """Whether the store and this host agree on the time."""
    off = abs(around.skew)
    seconds = f"{off.total_seconds():.1f} s"
    ahead = "ahead of" if around.skew > timedelta(0) else "behind"
    if off < _SKEW_WARNS:
        yield Finding("clock", "ok", "the store's clock agrees with this host's")
    else:
        verdict: Verdict = "wrong" if off >= _SKEW_WRONG else "warning"
        text = f"the store's clock is {seconds} {ahead} this host's"
        yield Finding("clock", verdict, text, "let both hosts follow the same time servers")


def judge_keys(around: Surroundings) -> Iterator[Finding]:
    """Whether tokens can be made and verified here."""
    if isinstance(around.keys, FlowFabricError):
        yield Finding("keys", "wrong", str(around.keys), "repair the key file or its variable")
        return
    missing = [key.kid for key in around.keys if not key.known and key.state in ("active", "verifying")]
    active = [key.kid for key in around.keys if key.state == "active"]
    if missing:
        text = f"the secret of {', '.join(missing)} is not known here: tokens of it are refused"
        yield Finding("keys", "wrong", text, "put the line back into the key file, or set FLOWFABRIC_KEY_FILE here too")
    elif not active:
        yield Finding("keys", "ok", "none yet; the first token makes one")
    else:
        old = sum(key.state == "verifying" for key in around.keys)
        yield Finding("keys", "ok", f"{active[0]} signs, {count_of(old, 'older key')} still verify")


def judge_wakeups(around: Surroundings) -> Iterator[Finding]:
    """Whether processes hear of each other, and whether events come through."""
    mode, since = around.status.listener.mode, around.status.held_back_since
    if mode == "listening":
        yield Finding("wake-ups", "ok", "hints of other processes arrive")
    elif mode == "polling":
        text = "there is no line for hints behind a pooler: idle workers look once a second"
        yield Finding("wake-ups", "warning", text, "give connect() a listen_url that leads to the server itself")
    else:
        text = f"the line for hints is {mode}: everything works, but is noticed up to a second late"
        yield Finding("wake-ups", "warning", text, "check that this user may open one more connection and LISTEN")
    if around.status.from_elsewhere:
        text = "events were loaded from a dump of another server: subscribers miss them, or what comes after them"
        yield Finding("events", "wrong", text, "put them in order as docs/guides/deploying.md says under Backups")
    elif since is not None and around.now - since > _HELD_BACK_WARNS:
        text = f"a transaction that is open since {moment(since)} holds events back"
        yield Finding("events", "warning", text, "find it in pg_stat_activity (backend_xid is not null) and end it")


def judge_workers(around: Surroundings) -> Iterator[Finding]:
    """Whether somebody is there to do the work."""
    if around.workers:
        busy, slots = sum(item.busy for item in around.workers), sum(item.slots for item in around.workers)
        live = count_of(len(around.workers), "live worker")
        yield Finding("workers", "ok", f"{live}, {busy} of {count_of(slots, 'slot')} busy")
        if slots and busy >= slots and around.backlog:
            text = "all slots are busy and work waits"
            yield Finding("workers", "warning", text, "start more workers, or give them more --concurrency")
    else:
        text = "no live worker is registered, so nothing runs and no timer fires"
        yield Finding("workers", "warning", text, "start one: flowfabric worker MODULE:APP")


def judge_lanes(around: Surroundings) -> Iterator[Finding]:
    """Whether everything that waits may be taken by somebody."""
    stuck = [finding for item in around.backlog for finding in _judge_backlog(around, item)]
    yield from stuck[:_MOST_LANES]
    if len(stuck) > _MOST_LANES:
        yield Finding("lanes", "warning", f"{len(stuck) - _MOST_LANES} more kinds of work wait in vain")
    if not stuck:
        total = sum(item.waiting.number for item in around.backlog)
        yield Finding("lanes", "ok", f"{count_of(total, 'execution')} waiting, all for somebody who is there")


def _judge_backlog(around: Surroundings, item: Backlog) -> Iterator[Finding]:
    what = f"{count_of(item.waiting.number, 'execution')} of {item.kind} on lane {item.lane}"
    if around.lanes.get(item.lane) is LaneState.PAUSED:
        advice = f"flowfabric lanes resume {item.lane}"
        yield Finding("lanes", "warning", f"{what}: the lane is paused", advice)
        return
    there = [worker for worker in around.workers if item.lane in worker.lanes]
    if not there:
        advice = f"start one: flowfabric worker MODULE:APP --lane {item.lane}"
        yield Finding("lanes", "warning", f"{what}: no live worker claims from it", advice)
    elif not any(set(item.requires) <= set(worker.capabilities) for worker in there):
        lacking = ", ".join(nobody_offers(item.requires, there) or item.requires)
        advice = "start a worker with " + " ".join(f"--capability {word}" for word in item.requires)
        yield Finding("lanes", "warning", f"{what}: no live worker there offers {lacking}", advice)


ALL = (
    judge_store, judge_durability, judge_clock, judge_keys, judge_wakeups, judge_workers, judge_lanes,
)  # fmt: skip


def _skew(store: datetime, before: datetime, after: datetime) -> timedelta:
    """How far the store's clock was ahead, not counting the time that the answer took."""
    if before <= store <= after:
        return timedelta(0)
    return store - after if store > after else store - before


async def _keys(engine: Engine) -> tuple[KeyView, ...] | FlowFabricError:
    try:
        return await engine.keys.list()
    except FlowFabricError as error:
        return error


async def _listening(engine: Engine) -> EventsStatus:
    """How the listener is after it had time to connect; it begins when somebody waits for work."""
    ends = asyncio.get_running_loop().time() + _LISTEN_WITHIN_S
    with engine.leases.watch(["default"]):
        while True:
            status = await engine.events.status()
            if status.listener.mode != "starting" or asyncio.get_running_loop().time() > ends:
                return status
            await asyncio.sleep(0.02)
