"""Tests for the duty that vacuums after many claims: when it starts, and what it logs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from flowfabric.core.errors import Unavailable
from flowfabric.reconcilers.vacuum import VACUUM_CLAIMS, Vacuum, draw_claims
from flowfabric.store.ports import Store

LOGGER = "flowfabric.reconcilers"


class FakeStore:
    """A store that counts vacuums and returns or raises the given results."""

    def __init__(self, *results: bool | Exception) -> None:
        self.vacuums = 0
        self._results = list(results)

    async def vacuum(self) -> bool:
        self.vacuums += 1
        result = self._results.pop(0) if self._results else True
        if isinstance(result, Exception):
            raise result
        return result


@asynccontextmanager
async def running(store: FakeStore, **options: Any) -> AsyncIterator[Vacuum]:
    vacuum = Vacuum(cast(Store, store), draw=lambda: 100, **({"enabled": True} | options))
    task = asyncio.create_task(vacuum.run())
    yield vacuum
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def note_claims(vacuum: Vacuum, number: int) -> None:
    """Count leases as a claim does."""
    vacuum.claims_left -= number
    if vacuum.claims_left <= 0:
        vacuum.request()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_vacuum_runs_once_after_enough_claims() -> None:
    store = FakeStore()
    async with running(store) as vacuum:
        note_claims(vacuum, 99)
        await settle()
        assert store.vacuums == 0
        note_claims(vacuum, 1)
        note_claims(vacuum, 99)
        await settle()
        assert store.vacuums == 1
        note_claims(vacuum, 500)
        await settle()
        assert store.vacuums == 2


async def test_vacuum_that_is_switched_off_never_runs() -> None:
    store = FakeStore()
    async with running(store, enabled=False) as vacuum:
        note_claims(vacuum, 10_000)
        await settle()
    assert store.vacuums == 0


async def test_missing_permission_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    store = FakeStore(False, False)
    with caplog.at_level(logging.WARNING, logger=LOGGER):
        async with running(store) as vacuum:
            for _ in range(2):
                note_claims(vacuum, 100)
                await settle()
    assert store.vacuums == 2
    [message] = caplog.messages
    assert "may not vacuum" in message and "vacuum=False" in message


@pytest.mark.parametrize("error", [Unavailable("server_unreachable", "no server"), RuntimeError("unexpected")])
async def test_vacuum_continues_after_a_failure(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    store = FakeStore(error)
    with caplog.at_level(logging.WARNING, logger=LOGGER):
        async with running(store) as vacuum:
            for _ in range(2):
                note_claims(vacuum, 100)
                await settle()
    assert store.vacuums == 2 and "retrying after more claims" in caplog.text


def test_processes_draw_different_numbers_of_claims() -> None:
    drawn = {draw_claims() for _ in range(50)}
    assert len(drawn) > 10
    assert min(drawn) >= VACUUM_CLAIMS / 2 and max(drawn) <= VACUUM_CLAIMS * 3 / 2
