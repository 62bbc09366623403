"""Tests of the clock of a SQLite file, with every clock of the host under the control of the test."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from flowfabric.backends.sqlite import clock as clock_module
from flowfabric.backends.sqlite.clock import StoreClock

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Host:
    """The clocks of a host. The test moves both, or only the wall clock."""

    def __init__(self) -> None:
        self.wall = START
        self.since_boot = timedelta(days=3)
        self.pause = timedelta(0)

    def time_ns(self) -> int:
        wall = self.wall
        self.advance(self.pause)
        return round(wall.timestamp() * 1_000_000) * 1000

    def clock_gettime_ns(self, _: int) -> int:
        return round(self.since_boot.total_seconds() * 1_000_000) * 1000

    monotonic_ns = None

    def advance(self, duration: timedelta) -> None:
        self.wall += duration
        self.since_boot += duration


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host()
    monkeypatch.setattr(clock_module, "time", host)
    monkeypatch.setattr(clock_module, "_BOOTTIME", 7)
    monkeypatch.setattr(clock_module, "_read_boot_id", lambda: "boot")
    return host


@pytest.fixture
def file() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        columns = "newest_at INTEGER, previous_at INTEGER, boot_id TEXT, boot_offset_us INTEGER"
        connection.execute(f"CREATE TABLE ff_clock ({columns})")
        connection.execute("INSERT INTO ff_clock VALUES (0, NULL, '', 0)")
        yield connection


def store_time(clock: StoreClock, file: sqlite3.Connection) -> datetime:
    """Read the time and store it, as a write transaction does."""
    now = clock.read(file)
    clock.write(file, now)
    return now


def test_time_is_the_wall_clock_of_the_host(host: Host, file: sqlite3.Connection) -> None:
    clock = StoreClock()
    assert store_time(clock, file) == START
    host.advance(HOUR)
    assert (clock.read(file), clock.now()) == (START + HOUR, START + HOUR)


def test_time_follows_a_jump_forward_and_continues_after_the_jump_back(host: Host, file: sqlite3.Connection) -> None:
    clock = StoreClock()
    host.wall += HOUR
    assert store_time(clock, file) == START + HOUR
    host.wall -= HOUR
    assert clock.read(file) == START + HOUR
    host.advance(timedelta(seconds=5))
    assert clock.read(file) == START + HOUR + timedelta(seconds=5)
    host.wall += 2 * HOUR
    assert clock.read(file) == START + 2 * HOUR + timedelta(seconds=5)


def test_new_process_continues_at_the_time_of_the_others(host: Host, file: sqlite3.Connection) -> None:
    host.wall += HOUR
    first = StoreClock()
    store_time(first, file)
    host.wall -= HOUR
    host.advance(timedelta(minutes=10))
    assert StoreClock().read(file) == first.read(file) == START + HOUR + timedelta(minutes=10)


@pytest.mark.parametrize("boot_id", ["another boot", ""])
def test_offset_of_another_boot_does_not_count(
    host: Host, file: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, boot_id: str
) -> None:
    host.wall += HOUR
    store_time(StoreClock(), file)
    host.wall -= HOUR
    monkeypatch.setattr(clock_module, "_read_boot_id", lambda: boot_id)
    host.since_boot += timedelta(days=300)
    clock = StoreClock()
    assert clock.read(file) == START + HOUR
    host.advance(timedelta(seconds=5))
    assert clock.read(file) == START + HOUR + timedelta(seconds=5)


def test_pause_of_the_process_while_it_reads_the_clocks_does_not_move_the_time(
    host: Host, file: sqlite3.Connection
) -> None:
    clock = StoreClock()
    host.pause = timedelta(seconds=10)
    store_time(clock, file)
    host.pause = timedelta(0)
    assert store_time(clock, file) == host.wall


def test_test_clock_stands_still(host: Host, file: sqlite3.Connection) -> None:
    clock = StoreClock(lambda: START + HOUR)
    assert store_time(clock, file) == START + HOUR
    host.advance(2 * HOUR)
    assert (clock.read(file), clock.now()) == (START + HOUR, START + HOUR)


def test_store_of_a_test_clock_continues_with_the_clock_of_the_host(host: Host, file: sqlite3.Connection) -> None:
    store_time(StoreClock(lambda: START + HOUR), file)
    clock = StoreClock()
    assert clock.read(file) == START + HOUR
    host.advance(timedelta(seconds=5))
    assert clock.read(file) == START + HOUR + timedelta(seconds=5)
