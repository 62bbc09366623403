"""Tests for reading waits when a run waits for more executions than one read accepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import pytest

from flowfabric.core.validation import MAX_BATCH
from flowfabric.core.waits.snapshot import Override, WaitSnapshot
from flowfabric.runtime import suspension
from flowfabric.runtime.waits import Wait

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
OVERRIDE = Override("ada", "enough", UUID(int=1), NOON)


class FakeWait:
    """A wait for a signal or for a child."""

    def __init__(self, child: UUID | None = None) -> None:
        self.child, self.is_unseen = child, True

    def keys(self) -> dict[str, int]:
        return {} if self.child is not None else {"go": 0}

    def limits(self) -> dict[str, int]:
        return {} if self.child is not None else {"go": 1}


async def test_several_reads_merge_into_one_snapshot_as_of_the_first_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests: list[tuple[dict[str, int], int]] = []

    async def record_read(
        _: object, keys: Mapping[str, int], children: Sequence[UUID], limits: Mapping[str, int] | None = None
    ) -> WaitSnapshot:
        requests.append((dict(keys), len(children)))
        ended = cast(Any, {children[0]: "an outcome"})
        return WaitSnapshot(NOON + timedelta(seconds=len(requests)), (), ended, {"go": OVERRIDE} if keys else {})

    monkeypatch.setattr(suspension, "read_waits_for", record_read)
    waits = [FakeWait(), *(FakeWait(UUID(int=number)) for number in range(2 * MAX_BATCH + 1))]
    reader = await suspension.read_waits(cast(Any, None), cast(list[Wait], waits))
    assert requests == [({"go": 0}, MAX_BATCH), ({}, MAX_BATCH), ({}, 1)]
    assert reader is not None
    snapshot = reader.snapshot
    assert (snapshot.now, snapshot.overridden) == (NOON + timedelta(seconds=1), {"go": OVERRIDE})
    assert list(snapshot.children) == [UUID(int=0), UUID(int=MAX_BATCH), UUID(int=2 * MAX_BATCH)]
