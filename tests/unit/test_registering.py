"""The register of workers: who may have an instance, and what nobody offers."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from flowfabric.core.errors import Conflict
from flowfabric.core.records import WorkerId
from flowfabric.core.workers import Registration, decide_registration, nobody_offers

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ASKED = Registration(
    id=WorkerId("w", "i"), lanes=("a",), capabilities=("gpu",), version="1", host="h", slots=2,
    ttl=timedelta(seconds=10),
)  # fmt: skip


def test_a_new_one_is_registered_from_now_for_its_time() -> None:
    worker = decide_registration(None, ASKED, "default", NOW)
    assert (worker.registered_at, worker.expires_at, worker.busy) == (NOW, NOW + timedelta(seconds=10), 0)
    assert worker.is_live(NOW)
    assert not worker.is_live(worker.expires_at)


def test_one_that_is_known_keeps_when_it_came_and_how_busy_it_is() -> None:
    known = replace(decide_registration(None, ASKED, "default", NOW), busy=2)
    later = NOW + timedelta(seconds=9)
    again = decide_registration(known, replace(ASKED, lanes=("b",)), "default", later)
    assert (again.registered_at, again.seen_at, again.busy, again.lanes) == (NOW, later, 2, ("b",))


def test_one_that_was_gone_comes_as_a_new_one() -> None:
    known = decide_registration(None, ASKED, "default", NOW)
    later = known.expires_at
    other = replace(ASKED, id=WorkerId("another", "i"))
    assert decide_registration(known, other, "default", later).registered_at == later
    with pytest.raises(Conflict) as caught:
        decide_registration(known, other, "default", NOW)
    assert caught.value.code == "instance_reassigned"


def test_what_nobody_offers() -> None:
    worker = decide_registration(None, ASKED, "default", NOW)
    assert nobody_offers(("eu", "gpu"), [worker]) == ("eu",)
    assert nobody_offers((), [worker]) == ()
