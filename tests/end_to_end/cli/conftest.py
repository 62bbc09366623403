"""A shell for each test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.end_to_end.cli.shell import Shell
from tests.stores import TestStore


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FLOWFABRIC_STORE", "FLOWFABRIC_TRACEBACK", "FLOWFABRIC_KEY_FILE", "FLOWFABRIC_KEYS"):
        # What is set first is put back in the end, also where a command has changed it.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """A worker that runs in this process has the log go to the test's stderr, which nobody may write to later."""
    logger = logging.getLogger("flowfabric")
    handlers, level = logger.handlers, logger.level
    yield
    logger.handlers = handlers
    logger.setLevel(level)


@pytest.fixture
def shell(store: TestStore, capsys: pytest.CaptureFixture[str]) -> Shell:
    """A shell on the test's store, once per backend."""
    return Shell(store, capsys)


@pytest.fixture
def bare(capsys: pytest.CaptureFixture[str]) -> Shell:
    """A shell that knows no store."""
    return Shell(None, capsys)
