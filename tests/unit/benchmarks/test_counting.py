"""Tests for the counters of the benchmarks, which limit the cost of a job, a step, a wait and a member of a chain."""

from __future__ import annotations

import os
from dataclasses import astuple

import pytest

from benchmarks.counting import Counts, NotCountable, longest_series, server_settings
from benchmarks.run import SERVER
from benchmarks.scenarios.counters import claim_pages, counts_of_work, statements_in_series
from tests.postgres_server import DSN_VARIABLE, postgres_server

# Lower a limit when the work gets cheaper. Each is a little above the measured value, because batches vary.
MOST = {
    "job": Counts(wal_bytes=3_400, wal_records=25, index_entries=14.5, pages=75),
    "step": Counts(wal_bytes=760, wal_records=6.6, index_entries=2.2, pages=20),
    "wait": Counts(wal_bytes=12_500, wal_records=105, index_entries=56, pages=550),
    "member": Counts(wal_bytes=7_100, wal_records=58, index_entries=29, pages=190),
}
MOST_IN_SERIES = {"job": 3, "wait": 13, "member": 11}
MOST_PAGES_PER_CLAIMED_ROW = 30


@pytest.mark.parametrize(
    ("spans", "number"),
    [
        ([], 0),
        ([(0, 1), (1, 2), (2, 3)], 3),
        ([(0, 10), (1, 2), (3, 4)], 2),
        ([(0, 2), (1, 3)], 1),
        ([(3, 4), (0, 1)], 2),
    ],
)
def test_longest_series_counts_spans_without_overlap(spans: list[tuple[float, float]], number: int) -> None:
    assert longest_series(spans) == number


def test_counts_are_subtracted_and_shared() -> None:
    assert Counts(12, 10, 8, 6).minus(Counts(2, 2, 2, 2)).per(2) == Counts(5, 4, 3, 2)


async def test_work_stays_below_its_limits() -> None:
    with postgres_server(**SERVER, **server_settings()) as server:
        try:
            found = await counts_of_work(server.dsn)
            first, last = await claim_pages(server.dsn, 10_000)
        except NotCountable:
            assert DSN_VARIABLE in os.environ, "a server of our own can count"
            return
        series = await statements_in_series(server.dsn)
    over = {
        name: (counts, MOST[name])
        for name, counts in found.items()
        if any(value > most for value, most in zip(astuple(counts), astuple(MOST[name]), strict=True))
    }
    assert not over
    assert found.keys() == MOST.keys() and all(min(astuple(counts)) > 0 for counts in found.values())
    assert {name: number for name, number in series.items() if number > MOST_IN_SERIES[name]} == {}
    assert max(first, last) <= MOST_PAGES_PER_CLAIMED_ROW
