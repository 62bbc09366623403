"""What the fault tests share: the fork server, and a scoreboard that is shown at the end of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.faults.fork_server import ForkServer, fork_server

LINES = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """One fork server for the whole run."""
    with fork_server() as server:
        yield server


@pytest.fixture
def scoreboard(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Takes a line that is shown after the tests, whether they passed or not."""
    lines = request.config.stash.setdefault(LINES, [])
    return lambda line: lines.append(f"{request.node.name}: {line}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if lines := config.stash.get(LINES, []):
        terminalreporter.section("faults")
        for line in lines:
            terminalreporter.write_line(line)
