"""Tests for the choice of the event loop."""

from __future__ import annotations

import asyncio
import sys

import pytest
import uvloop

from flowfabric.worker import new_event_loop


def test_uvloop_is_used_if_installed() -> None:
    loop = new_event_loop()
    assert isinstance(loop, uvloop.Loop)
    loop.close()


def test_asyncio_loop_is_used_without_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = new_event_loop()
    assert isinstance(loop, asyncio.SelectorEventLoop)
    loop.close()
