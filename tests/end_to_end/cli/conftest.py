"""Fixtures that run commands in an isolated environment."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.end_to_end.cli.shell import Shell
from tests.stores import TestStore


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FLOWFABRIC_STORE", "FLOWFABRIC_TRACEBACK", "FLOWFABRIC_KEY_FILE", "FLOWFABRIC_KEYS"):
        # Set the variable before deleting it, so that monkeypatch restores it even if a command changes it.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _restore_log_handlers() -> Iterator[None]:
    """Restore the log handlers after a worker in this process has redirected the log to the test's stderr."""
    logger = logging.getLogger("flowfabric")
    handlers, level = logger.handlers, logger.level
    yield
    logger.handlers = handlers
    logger.setLevel(level)


@pytest.fixture
def shell(store: TestStore, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Return a shell on the test's store, once per backend."""
    return Shell(store, capsys)


@pytest.fixture
def bare_shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    """Return a shell without a store."""
    return Shell(None, capsys)
