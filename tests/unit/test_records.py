"""Only a leased execution has a fence, and a fence is execution, epoch and lease."""

from __future__ import annotations

import pytest

from flowfabric.core.records import AttemptOrigin, AttemptOutcome
from flowfabric.engine import Fence
from tests.unit.builders import EPOCH, ID, LEASE_ID, SITUATIONS


@pytest.mark.parametrize("situation", SITUATIONS)
def test_an_execution_has_a_fence_exactly_while_it_is_leased(situation: str) -> None:
    expected = Fence(ID, EPOCH, LEASE_ID) if situation == "leased" else None
    assert SITUATIONS[situation]().fence == expected


def test_attempts_begin_and_end_with_the_words_of_the_contract() -> None:
    assert set(AttemptOrigin) == {"fresh", "retry", "reclaimed", "replayed"}
    assert set(AttemptOutcome) == {"ended_success", "ended_failure", "ended_cancelled", "interrupted_reclaimed"}
