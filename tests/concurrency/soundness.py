"""Invariants of every history, independent of the order of racing calls."""

from __future__ import annotations

from collections import Counter
from itertools import groupby, pairwise
from typing import Any

from tests.stores import TestStore

_EVENTS = """
    SELECT execution_id, version, family, name, epoch, generation, lease_id
    FROM ff.event
    WHERE execution_id IS NOT NULL
    ORDER BY execution_id, version
"""


async def assert_sound(store: TestStore) -> None:
    """Assert that the events have the versions 1 to n, each generation ends at most once, and each lease has a higher
    epoch.
    """
    events = await store.query(_EVENTS)
    histories = {str(id_): list(rows) for id_, rows in groupby(events, key=lambda row: row["execution_id"])}
    for row in await store.query("SELECT id, version, epoch, ownership, lease_id FROM ff.execution"):
        history = histories.get(str(row["id"]), [])
        assert [event["version"] for event in history] == list(range(1, row["version"] + 1))
        assert (row["lease_id"] is not None) == (row["ownership"] == "leased")
        _assert_one_end_per_generation(history)
        _assert_epochs_grow(history, row["epoch"])


def _assert_one_end_per_generation(history: list[dict[str, Any]]) -> None:
    ends = Counter(event["generation"] for event in history if event["family"] == "completion")
    assert all(number == 1 for number in ends.values()), history


def _assert_epochs_grow(history: list[dict[str, Any]], last: int) -> None:
    begun = [event for event in history if event["name"] in ("acquired", "reclaimed")]
    assert all(before["epoch"] < after["epoch"] for before, after in pairwise(begun)), history
    assert all(event["epoch"] <= last for event in history), history
    assert len({event["lease_id"] for event in begun}) == len(begun), history
