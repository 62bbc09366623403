"""What a run sees when it waits for more executions than one look takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import pytest

from flowfabric.core.limits import BATCH
from flowfabric.core.looking import Look, Override
from flowfabric.sdk import giving_up
from flowfabric.sdk.parking import Wait

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
OVERRIDE = Override("ada", "enough", UUID(int=1), NOON)


class Waiting:
    """A wait for a signal, or for a child."""

    def __init__(self, child: UUID | None = None) -> None:
        self.child, self.is_unseen = child, True

    def keys(self) -> dict[str, int]:
        return {} if self.child is not None else {"go": 0}


async def test_several_looks_are_one_as_of_the_first_with_what_only_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[dict[str, int], int]] = []

    async def look(_: object, keys: Mapping[str, int], children: Sequence[UUID]) -> Look:
        asked.append((dict(keys), len(children)))
        ended = cast(Any, {children[0]: "an outcome"})
        return Look(NOON + timedelta(seconds=len(asked)), (), ended, {"go": OVERRIDE} if keys else {})

    monkeypatch.setattr(giving_up, "look", look)
    waits = [Waiting(), *(Waiting(UUID(int=number)) for number in range(2 * BATCH + 1))]
    seen = await giving_up.look_around(cast(Any, None), cast(list[Wait], waits))
    assert asked == [({"go": 0}, BATCH), ({}, BATCH), ({}, 1)]
    assert seen is not None
    assert (seen.now, seen.overridden) == (NOON + timedelta(seconds=1), {"go": OVERRIDE})
    assert list(seen.children) == [UUID(int=0), UUID(int=BATCH), UUID(int=2 * BATCH)]
