"""A stored digest recognizes a repeated suspend, so it must not depend on names in the source."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.executions.records import Fence
from flowfabric.core.executions.requests import Step
from flowfabric.core.waits.bindings import (
    Bound,
    Child,
    NewWaitpoint,
    PendingWaitpoint,
    StandingWaitpoint,
    Timer,
    binding_parts,
)
from flowfabric.core.waits.conditions import AllOf, Count, Single
from flowfabric.core.waits.records import OnTimeout, SuspensionReason, UnusedWaitpoints
from flowfabric.core.waits.suspend import Suspend

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
BINDINGS: tuple[Bound, ...] = (
    NewWaitpoint("ask", "ops", NOON),
    PendingWaitpoint("early"),
    StandingWaitpoint("mail", 3),
    Child("child", UUID(int=5)),
    Timer("alarm", NOON),
)
EXAMPLE = Suspend(
    fence=Fence(UUID(int=1), 1, UUID(int=2)),
    bindings=BINDINGS,
    condition=AllOf([Single("ask", "é"), Count(2, "signals", ["early", "mail"]), Single("child"), Single("alarm")]),
    reason=SuspensionReason.WAITING_FOR_SIGNAL,
    timeout_at=NOON,
    timeout=timedelta(hours=1),
    on_timeout=OnTimeout.FAIL,
    resume_delay=timedelta(seconds=5),
    rest=UnusedWaitpoints.CLOSE,
    key="once",
    suspension_id=UUID(int=3),
    seeds=(),
    steps=(Step("a", b"1"),),
)


def test_digest_of_the_example_never_changes() -> None:
    assert EXAMPLE.digest() == "faea470a5606c1214321dbdee1a495e412ce1b27dfe020c0c9cf228fcaa80865"


def test_parts_of_a_binding_are_fixed_words_and_values() -> None:
    assert [binding_parts(binding) for binding in BINDINGS] == [
        ("new", "ask", "ops", "2026-01-02T12:00:00+00:00"),
        ("pending", "early"),
        ("standing", "mail", "3"),
        ("child", "child", "00000000-0000-0000-0000-000000000005"),
        ("timer", "alarm", "2026-01-02T12:00:00+00:00"),
    ]
    assert binding_parts(NewWaitpoint("ask")) == ("new", "ask", None, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"bindings": BINDINGS[1:]},
        {"bindings": (NewWaitpoint("ask", "ops"), *BINDINGS[1:])},
        {"bindings": (PendingWaitpoint("ask"), *BINDINGS[1:])},
        {"condition": Single("ask")},
        {"reason": SuspensionReason.MANUAL_PAUSE},
        {"timeout_at": None},
        {"timeout": None},
        {"on_timeout": OnTimeout.CANCEL},
        {"resume_delay": timedelta()},
        {"rest": UnusedWaitpoints.KEEP},
        {"key": None},
        {"steps": ()},
    ],
)
def test_every_part_of_the_request_changes_the_digest(changes: dict[str, Any]) -> None:
    assert replace(EXAMPLE, **changes).digest() != EXAMPLE.digest()


def test_ids_that_differ_in_a_repeat_do_not_change_the_digest() -> None:
    assert replace(EXAMPLE, suspension_id=UUID(int=9)).digest() == EXAMPLE.digest()
