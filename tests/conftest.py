"""Fixtures and options for all tests: the size of the run, a PostgreSQL server, stores and a scoreboard."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from flowfabric.engine import Engine
from flowfabric.testing import VirtualClock
from tests.faults.scoreboard.results import Line
from tests.faults.scoreboard.table import main_table
from tests.open_stores import OpenStores, engine_on
from tests.postgres_server import PostgresServer, postgres_server
from tests.sizes import Size
from tests.stores import PostgresSchemas, SqliteTestStore, TestStore

pytest_plugins = ["tests.timeouts"]
# How long to wait for tasks that a test leaves behind, such as the return of a connection to its pool.
TASK_END_TIMEOUT_S = 5.0

# Hypothesis uses the same examples in every plain run. With `--all` it searches for new examples.
settings.register_profile("default", max_examples=50, deadline=None, derandomize=True)
settings.register_profile("all", max_examples=1000, deadline=None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the tests marked `long` too, and the faults at full size")
    parser.addoption("--sample", action="store_true", help="run the tests marked `long` too, some of them in part")
    parser.addoption("--all", action="store_true", help="the same, and everything that can be repeated at its largest")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts background jobs with SIGINT ignored, and child processes would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.load_profile("all" if config.getoption("--all") else "default")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full") or config.getoption("--all"):
        return
    cases = Counter[tuple[Path, str]]()
    chosen: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        marker = item.get_closest_marker("long")
        if marker is None:
            chosen.append(item)
            continue
        test = (item.path, getattr(item, "originalname", item.name))
        is_sampled = config.getoption("--sample") and cases[test] % marker.kwargs.get("sample", 1) == 0
        cases[test] += 1
        (chosen if is_sampled else left_out).append(item)
    items[:] = chosen
    config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish() -> None:
    # Modules and tests stay until the end, so the garbage collector need not visit them again and again.
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.getreports(outcome)]
    properties = [
        (report, name, text) for report in reports if report.when == "call" for name, text in report.user_properties
    ]
    notes = [f"{report.head_line}: {text}" for report, name, text in properties if name == "scoreboard"]
    lines = [Line(**json.loads(text)) for _, name, text in properties if name == "scoreboard line"]
    if notes or lines:
        terminalreporter.section("scoreboard")
        for note in notes:
            terminalreporter.write_line(note)
    if lines:
        terminalreporter.write_line(main_table(sorted(lines, key=lambda line: (line.name, line.backend))))


@pytest.fixture
def scoreboard(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Return a function that adds a line to the scoreboard, which is printed after the tests."""
    return partial(record_property, "scoreboard")


@pytest.fixture(scope="session")
async def session_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that all tests of this process share."""
    return asyncio.get_running_loop()


@pytest.fixture(autouse=True)
def clean_loop(session_loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Fail a test that leaves tasks running, or that does not restore the debug mode and the handlers of the loop."""
    tasks, mode = asyncio.all_tasks(session_loop), _mode(session_loop)
    yield
    assert _mode(session_loop) == mode
    if left := asyncio.all_tasks(session_loop) - tasks:
        session_loop.run_until_complete(_end(left))


def _mode(loop: asyncio.AbstractEventLoop) -> tuple[object, ...]:
    return loop.get_debug(), loop.get_task_factory(), loop.get_exception_handler()


async def _end(tasks: set[asyncio.Task[Any]]) -> None:
    _, pending = await asyncio.wait(tasks, timeout=TASK_END_TIMEOUT_S)
    for task in pending:
        task.cancel()
    assert not pending, "the test leaves tasks running"


@pytest.fixture(scope="session")
def run_all(pytestconfig: pytest.Config) -> bool:
    """Return whether `--all` is set. If it is, tests that repeat work use their largest count."""
    return bool(pytestconfig.getoption("--all"))


@pytest.fixture(scope="session")
def size(pytestconfig: pytest.Config) -> Size:
    """Return the size of the run, which decides how often tests repeat their work."""
    if pytestconfig.getoption("--all"):
        return Size("long")
    return Size("full" if pytestconfig.getoption("--full") else "short")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Yield one PostgreSQL server for the whole run, started on first use."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def schemas(postgres: PostgresServer) -> Iterator[PostgresSchemas]:
    """Yield the pool of schemas of the PostgreSQL server. Each test takes one schema."""
    with closing(PostgresSchemas(postgres.dsn)) as schemas:
        yield schemas


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> SqliteTestStore:
    """Return an empty SQLite file with the current schema. Copying it is faster than creating a file for each test."""
    return SqliteTestStore(tmp_path_factory.mktemp("template"))


@pytest.fixture(scope="session")
async def open_stores(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenStores]:
    """Yield the stores that stay open between tests. A test that requests this fixture gets one of them as `store`."""
    async with aclosing(OpenStores(tmp_path_factory)) as stores:
        yield stores


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TestStore]:
    """Yield an empty store for one test, once per backend. A test fails if its backend is unavailable."""
    if "open_stores" in request.fixturenames:
        stores: OpenStores = request.getfixturevalue("open_stores")
        open_store = stores.take(None if request.param == "sqlite" else request.getfixturevalue("schemas"))
        yield open_store
        await stores.give_back(open_store)
        return
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
    """Return the clock of the `engine` fixture's store. Its time changes only when a test advances it."""
    return VirtualClock()


@pytest.fixture
async def engine(store: TestStore, clock: VirtualClock, open_stores: OpenStores) -> AsyncIterator[Engine]:
    """Yield a new engine on the test's store and clock."""
    async with engine_on(store, clock) as engine:
        yield engine
