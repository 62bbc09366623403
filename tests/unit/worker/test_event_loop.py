"""The loop of a process that is ours is the fast one if there is one."""

from __future__ import annotations

import asyncio
import sys

import pytest
import uvloop

from flowfabric.worker import new_event_loop


def test_uvloop_is_taken_if_it_is_there() -> None:
    loop = new_event_loop()
    assert isinstance(loop, uvloop.Loop)
    loop.close()


def test_asyncio_does_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = new_event_loop()
    assert isinstance(loop, asyncio.SelectorEventLoop)
    loop.close()
