"""What every test can ask for: how long it may run (`--full`, `--all`), a PostgreSQL server, and a scoreboard."""

from __future__ import annotations

import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import settings

from flowfabric.engine import Engine
from flowfabric.testing import VirtualClock
from tests.postgres_server import PostgresServer, postgres_server
from tests.sizes import Size
from tests.stores import PostgresSchemas, SqliteTestStore, TestStore, opened

LINES = pytest.StashKey[list[str]]()

# A plain run judges a change by the same examples every time; `--all` looks for new ones.
settings.register_profile("default", max_examples=50, deadline=None, derandomize=True)
settings.register_profile("all", max_examples=1000, deadline=None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the tests marked `long` too, and the faults at full size")
    parser.addoption("--all", action="store_true", help="the same, and everything that can be repeated at its largest")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell that starts the tests in the background has interrupts ignored, and every process of theirs would too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.load_profile("all" if config.getoption("--all") else "default")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full") or config.getoption("--all"):
        return
    long = [item for item in items if item.get_closest_marker("long")]
    items[:] = [item for item in items if not item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=long)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if lines := config.stash.get(LINES, []):
        terminalreporter.section("scoreboard")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture
def scoreboard(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Takes a line that is shown after the tests, whether they passed or not."""
    lines = request.config.stash.setdefault(LINES, [])
    return lambda line: lines.append(f"{request.node.name}: {line}")


@pytest.fixture(scope="session")
def run_all(pytestconfig: pytest.Config) -> bool:
    """True with `--all`: tests that repeat or scale something then take their large count."""
    return bool(pytestconfig.getoption("--all"))


@pytest.fixture(scope="session")
def size(pytestconfig: pytest.Config) -> Size:
    """How much of whatever can be repeated."""
    if pytestconfig.getoption("--all"):
        return Size("long")
    return Size("full" if pytestconfig.getoption("--full") else "short")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL for the whole run, started when the first test asks for it."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def schemas(postgres: PostgresServer) -> Iterator[PostgresSchemas]:
    """The schemas of that server, one per test."""
    with closing(PostgresSchemas(postgres.dsn)) as schemas:
        yield schemas


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> SqliteTestStore:
    """Where an empty SQLite file with the present schema is made, to be copied: faster than one for each test."""
    return SqliteTestStore(tmp_path_factory.mktemp("template"))


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TestStore]:
    """An empty store of its own for the test, once per backend. A backend that cannot be had is an error."""
    if request.param == "sqlite":
        template: SqliteTestStore = request.getfixturevalue("sqlite_template")
        if not template.path.exists():
            await (await template.connecting()).close()
        shutil.copy(template.path, tmp_path / "test.db")
        yield SqliteTestStore(tmp_path)
        return
    schemas: PostgresSchemas = request.getfixturevalue("schemas")
    schema = await schemas.take()
    yield schema
    await schemas.give_back(schema)


@pytest.fixture
def clock() -> VirtualClock:
    """The time of the `engine` fixture's store; it moves only when a test advances it."""
    return VirtualClock()


@pytest.fixture
async def engine(store: TestStore, clock: VirtualClock) -> AsyncIterator[Engine]:
    """An engine on the test's store, under the test's clock."""
    async with opened(store, clock) as engine:
        yield engine
