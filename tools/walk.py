#!/usr/bin/env python3
"""Record which functions of flowfabric are entered by four calls, and write them to docs/architecture/walks.md.

usage: python tools/walk.py [CALL ...] [--write]

    hello      submit a task with one step and wait for its result
    approval   submit a task that asks for an approval, approve it, wait for its result
    expiry     take over an execution whose lease has expired
    show       run `flowfabric show` for one execution

Each call is run several times before it is recorded. The store is PostgreSQL, either a temporary server or the server
that FLOWFABRIC_TEST_PG_DSN names. The worker runs in the same process. Its background thread, which renews leases, is
ignored. Each entry into a function is a stop; resuming a coroutine is not a stop. A change is a stop in a different
file than the previous stop.
"""

from __future__ import annotations

import argparse
import asyncio
import dis
import io
import sys
import threading
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby, pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import asyncpg

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import flowfabric  # noqa: E402
from flowfabric import App, approval, step  # noqa: E402
from flowfabric.cli.main import main as run_command  # noqa: E402
from tests.postgres_server import postgres_server  # noqa: E402

PAGE = ROOT / "docs" / "architecture" / "walks.md"
WARM_UP = 20
REPEATS = 30
EXPIRY_REPEATS = 3
TIMEOUT_S = 120.0
MAX_FUNCTIONS = 8
_SOURCE = f"{Path(flowfabric.__file__).parent}/"
_LEASE_TTL_S = 1.0
_SETTLE_S = 0.05


@dataclass(frozen=True, slots=True)
class Stop:
    """A function that was entered, and its file relative to the package."""

    file: str
    function: str


@dataclass(frozen=True, slots=True)
class Walk:
    """The stops of one call, in order."""

    stops: tuple[Stop, ...]

    @property
    def files(self) -> int:
        return len({stop.file for stop in self.stops})

    @property
    def changes(self) -> int:
        return sum(first.file != second.file for first, second in pairwise(self.stops))

    @property
    def size(self) -> tuple[int, int]:
        """The number of changes and the number of files, by which walks are compared."""
        return self.changes, self.files

    def lines(self) -> Iterator[str]:
        """Yield one line for each visit of a file, with the functions that were entered in that visit."""
        for file, stops in groupby(self.stops, key=lambda stop: stop.file):
            counts = Counter(stop.function for stop in stops)
            yield f"{file}: " + ", ".join(name if n == 1 else f"{name} x{n}" for name, n in counts.items())

    def by_file(self) -> dict[str, list[str]]:
        """Return the entered functions by file, without lambdas and comprehensions.

        Files and functions are in the order of their first stop.
        """
        files: dict[str, dict[str, None]] = {}
        for stop in self.stops:
            functions = files.setdefault(stop.file, {})
            if not stop.function.rpartition(".")[2].startswith("<"):
                functions[stop.function] = None
        return {file: list(functions) for file, functions in files.items()}


@dataclass(slots=True)
class Recorder:
    """Records each entry into a function of a file below the folder `source`, except in `ignored` threads."""

    source: str = _SOURCE
    stops: list[Stop] = field(default_factory=list)
    ignored: set[int] = field(default_factory=set)
    is_on: bool = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Observe the current thread, and threads that start inside the block."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def ignore_background(self) -> None:
        """Ignore all threads that are running now, except the current thread."""
        self.ignored = {thread.ident or 0 for thread in threading.enumerate()} - {threading.get_ident()}

    @contextmanager
    def recording(self) -> Iterator[list[Walk]]:
        """Record the code in the `with` block. When the block ends, the walk is added to the yielded list."""
        walks: list[Walk] = []
        self.stops = []
        self.is_on = True
        try:
            yield walks
        finally:
            self.is_on = False
            walks.append(Walk(tuple(self.stops)))

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        if not self.is_on or event != "call":
            return
        code = frame.f_code
        if not code.co_filename.startswith(self.source) or frame.f_lasti > _entry(code):
            return
        if code.co_name != "<module>" and threading.get_ident() not in self.ignored:
            self.stops.append(Stop(code.co_filename[len(self.source) :], code.co_qualname.replace(".<locals>", "")))


@cache
def _entry(code: CodeType) -> int:
    """Return the bytecode offset at which a function begins. A coroutine resumes at a larger offset."""
    return next(item.offset for item in dis.get_instructions(code) if item.opname == "RESUME")


def shortest(walks: Sequence[Walk]) -> Walk:
    """Return the walk with the fewest changes. Unrelated events, such as a due duty, only make a walk longer."""
    return min(walks, key=lambda walk: walk.size)


# --- The calls --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """The store that one recorded call uses: a schema on a PostgreSQL server."""

    dsn: str
    schema: str

    def app(self) -> App:
        return App(self.dsn, options={"schema": self.schema, "durable": False})

    async def suspended(self, connection: asyncpg.Connection, id: uuid.UUID) -> None:
        """Wait until an execution is suspended.

        Query PostgreSQL directly, because calls of flowfabric would add stops.
        """
        query = f'SELECT state FROM "{self.schema}".execution WHERE id = $1'
        while await connection.fetchval(query, id) != "suspended":  # noqa: ASYNC110 - the store sends no event
            await asyncio.sleep(0.005)


async def walk_hello(place: Place, recorder: Recorder) -> Walk:
    """Record `hello.run`, which submits a task with one step and waits for its result."""
    app = place.app()

    @app.task
    async def hello(name: str) -> str:
        return await step("Hello, {}!".format, name)

    walks: list[Walk] = []
    async with _working(app, recorder):
        for number in range(WARM_UP + REPEATS):
            await asyncio.sleep(_SETTLE_S if number >= WARM_UP else 0)
            with recorder.recording() as found:
                await hello.run("world")
            walks += found
    return shortest(walks[WARM_UP:])


async def walk_approval(place: Place, recorder: Recorder) -> Walk:
    """Record a task from its submit to its result, including the decision of one approver."""
    app = place.app()
    tokens: asyncio.Queue[str] = asyncio.Queue()

    async def notify(request: Any) -> None:
        tokens.put_nowait(request.token)

    @app.task
    async def refund(order: str) -> str:
        return type(await approval("refund", by=["ops"], notify=notify)).__name__ + order

    walks: list[Walk] = []
    async with _working(app, recorder), _connected(place.dsn) as connection:
        for number in range(WARM_UP // 2 + REPEATS):
            await asyncio.sleep(_SETTLE_S if number >= WARM_UP // 2 else 0)
            with recorder.recording() as found:
                handle = await refund.submit("order")
                token = await tokens.get()
                await place.suspended(connection, handle.id)
                await app.approve(token)
                await handle
            walks += found
    return shortest(walks[WARM_UP // 2 :])


async def walk_expiry(place: Place, recorder: Recorder) -> Walk:
    """Record how a worker takes over the execution of a crashed worker, from the end of its lease to the result."""
    app = place.app()

    @app.task
    async def hello(name: str) -> str:
        return f"Hello, {name}!"

    walks: list[Walk] = []
    for _ in range(EXPIRY_REPEATS + 1):
        async with app:
            handle = await hello.submit("world")
            engine = await app.engine()
            await engine.leases.claim(["default"], "crashed", lease_ttl=_LEASE_TTL_S)
            async with _working(app, recorder):
                await hello.run("world")
                await asyncio.sleep(_LEASE_TTL_S / 2)
                with recorder.recording() as found:
                    await handle
                walks += found
    return shortest(walks[1:])


def walk_show(place: Place, recorder: Recorder) -> Walk:
    """Record `flowfabric show ID`."""

    async def submitted() -> uuid.UUID:
        async with place.app() as app:
            created = await (await app.engine()).executions.submit("hello")
            return created.id

    words = ["show", str(asyncio.run(submitted())), "--store", place.dsn, "--schema", place.schema]
    walks: list[Walk] = []
    for _ in range(REPEATS):
        with recorder.installed(), recorder.recording() as found, redirect_stdout(io.StringIO()):
            code = run_command(words)
        if code != 0:
            raise RuntimeError(f"flowfabric show ended with {code}")
        walks += found
    return shortest(walks[1:])


@asynccontextmanager
async def _working(app: App, recorder: Recorder) -> AsyncIterator[None]:
    """Run a worker and ignore its background thread."""
    async with app:
        await app.engine()
        with recorder.installed():
            async with app.worker():
                recorder.ignore_background()
                yield


@asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


def _in_loop(call: Callable[[Place, Recorder], Any]) -> Callable[[Place, Recorder], Walk]:
    def walk(place: Place, recorder: Recorder) -> Walk:
        found: Walk = asyncio.run(asyncio.wait_for(call(place, recorder), TIMEOUT_S))
        return found

    return walk


CALLS: dict[str, Callable[[Place, Recorder], Walk]] = {
    "hello": _in_loop(walk_hello),
    "approval": _in_loop(walk_approval),
    "expiry": _in_loop(walk_expiry),
    "show": walk_show,
}


def take_walks(names: Sequence[str] = tuple(CALLS)) -> dict[str, Walk]:
    """Record the named calls, each in a new schema."""
    with postgres_server() as server:
        return {name: take_walk(name, server.dsn) for name in names}


def take_walk(name: str, dsn: str) -> Walk:
    """Record one call on a PostgreSQL server."""
    place = Place(dsn, f"walk_{uuid.uuid4().hex[:12]}")
    try:
        return CALLS[name](place, Recorder())
    finally:
        asyncio.run(_drop(place))


async def _drop(place: Place) -> None:
    async with _connected(place.dsn) as connection:
        await connection.execute(f'DROP SCHEMA IF EXISTS "{place.schema}" CASCADE')


# --- The page ---------------------------------------------------------------------------------------------------------

_TITLES = {
    "hello": (
        "Submit to result",
        '`await hello.run("world")` for a task with one step. The caller and the worker share a process.',
    ),
    "approval": (
        "An approval",
        "A task calls `approval` and suspends. `app.approve(token)` delivers the decision, and the task resumes.",
    ),
    "expiry": (
        "A lease expiry",
        "A worker has crashed. Its lease expires, a duty returns the execution to the queue. Another worker runs it.",
    ),
    "show": ("A CLI command", "`flowfabric show ID`, from the arguments to the printed text."),
}
_HEAD = """# Walks through the code

<!-- Written by tools/walk.py --write. Do not edit. -->

Each list shows the files that one call enters, in the order of the first entry, with the functions entered in each
file. Paths are relative to `src/flowfabric`. The store is PostgreSQL. Each call has run several times before it is
recorded. `python tools/walk.py hello` prints every stop in order.

A warm hello with one step enters **{files} files** and switches to another file **{changes} times**.
"""


def page(walks: dict[str, Walk]) -> str:
    """Return the text of docs/architecture/walks.md."""
    hello = walks["hello"]
    parts = [_HEAD.format(files=hello.files, changes=hello.changes)]
    for name, walk in walks.items():
        title, text = _TITLES[name]
        parts.append(f"## {title}\n\n{text}\n{walk.files} files, {walk.changes} switches between files.\n")
        parts.append("\n".join(_items(walk)) + "\n")
    return "\n".join(parts)


def _items(walk: Walk) -> Iterator[str]:
    for number, (file, functions) in enumerate(walk.by_file().items(), start=1):
        shown = [f"`{name}`" for name in functions[:MAX_FUNCTIONS]]
        if len(functions) > MAX_FUNCTIONS:
            shown.append(f"{len(functions) - MAX_FUNCTIONS} more")
        yield f"{number}. `{file}`" + (f": {', '.join(shown)}" if shown else "")


def main(arguments: Sequence[str]) -> int:
    """Print the stops of the named calls, or write the page with `--write`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("calls", nargs="*", metavar="CALL", help=f"{', '.join(CALLS)} (hello)")
    parser.add_argument("--write", action="store_true", help="record all calls and write docs/architecture/walks.md")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.calls if name not in CALLS]
    if unknown:
        parser.error(f"unknown call {unknown[0]!r}; choose from {', '.join(CALLS)}")
    if options.write:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page(take_walks()), encoding="utf-8")
        print(f"Wrote {PAGE.relative_to(ROOT)}")
        return 0
    for name, walk in take_walks(options.calls or ["hello"]).items():
        print(*walk.lines(), sep="\n")
        print(f"{name}: {walk.files} files, {walk.changes} switches between files, {len(walk.stops)} stops\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
