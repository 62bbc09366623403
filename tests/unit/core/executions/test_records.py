"""Tests for the fence of an execution, and for the stored origins and outcomes of attempts."""

from __future__ import annotations

import pytest

from flowfabric.core.executions.records import AttemptOrigin, AttemptOutcome
from flowfabric.engine import Fence
from tests.unit.builders import EPOCH, ID, LEASE_ID, SITUATIONS


@pytest.mark.parametrize("situation", SITUATIONS)
def test_execution_has_a_fence_only_while_it_is_leased(situation: str) -> None:
    expected = Fence(ID, EPOCH, LEASE_ID) if situation == "leased" else None
    assert SITUATIONS[situation]().fence == expected


def test_attempt_origins_and_outcomes_are_those_of_the_contract() -> None:
    assert set(AttemptOrigin) == {"fresh", "retry", "reclaimed", "replayed"}
    assert set(AttemptOutcome) == {"ended_success", "ended_failure", "ended_cancelled", "interrupted_reclaimed"}
