"""Tests for the worker registry: registration and missing capabilities."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from flowfabric.core.errors import Conflict
from flowfabric.core.executions.records import WorkerId
from flowfabric.core.workers import Registration, decide_registration, unoffered_capabilities

NOW = datetime(2030, 1, 1, tzinfo=UTC)
REGISTRATION = Registration(
    id=WorkerId("w", "i"), lanes=("a",), capabilities=("gpu",), version="1", host="h", slots=2,
    ttl=timedelta(seconds=10),
)  # fmt: skip


def test_new_worker_is_registered_for_its_ttl() -> None:
    worker = decide_registration(None, REGISTRATION, "default", NOW)
    assert (worker.registered_at, worker.expires_at, worker.busy) == (NOW, NOW + timedelta(seconds=10), 0)
    assert worker.is_live(NOW)
    assert not worker.is_live(worker.expires_at)


def test_known_worker_keeps_its_registration_time_and_busy_slots() -> None:
    existing = replace(decide_registration(None, REGISTRATION, "default", NOW), busy=2)
    later = NOW + timedelta(seconds=9)
    renewed = decide_registration(existing, replace(REGISTRATION, lanes=("b",)), "default", later)
    assert (renewed.registered_at, renewed.seen_at, renewed.busy, renewed.lanes) == (NOW, later, 2, ("b",))


def test_expired_instance_may_be_registered_by_another_worker() -> None:
    existing = decide_registration(None, REGISTRATION, "default", NOW)
    later = existing.expires_at
    other = replace(REGISTRATION, id=WorkerId("another", "i"))
    assert decide_registration(existing, other, "default", later).registered_at == later
    with pytest.raises(Conflict) as caught:
        decide_registration(existing, other, "default", NOW)
    assert caught.value.code == "instance_reassigned"


def test_unoffered_capabilities_are_those_that_no_worker_has() -> None:
    worker = decide_registration(None, REGISTRATION, "default", NOW)
    assert unoffered_capabilities(("eu", "gpu"), [worker]) == ("eu",)
    assert unoffered_capabilities((), [worker]) == ()
