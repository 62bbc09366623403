"""The environment of the demo: a temporary folder, worker processes, a web server, and the narrator."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from tour.shop import app

WORKER = Path(__file__).with_name("shop.py")
WIDTH = 96
STOPS_WITHIN_S = 3.0
TIMEOUT_S = 60.0


class Narrator:
    """The output of the demo: plain sentences and indented facts, with colours if the terminal supports them."""

    def __init__(self) -> None:
        self.has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self._is_coloured = sys.stdout.isatty() and not plain

    def heading(self, text: str) -> None:
        print(f"\n{self._in('1', f'== {text} ==')}\n", flush=True)

    def say(self, text: str) -> None:
        print("\n".join(textwrap.wrap(text, WIDTH)), flush=True)

    def fact(self, text: str) -> None:
        lines = textwrap.wrap(text, WIDTH - 4) if len(text) > WIDTH and " " in text else [text]
        print("\n".join(f"    {self._in('36', line)}" for line in lines), flush=True)

    def code(self, function: Callable[..., object]) -> None:
        """Print the source of a function without its docstring."""
        written = inspect.getsource(function).replace(f'    """{function.__doc__}"""\n', "")
        print("\n".join(f"    {self._in('33', line)}" for line in written.splitlines()), flush=True)

    async def turn_the_page(self) -> None:
        """Wait for Enter if there is a terminal."""
        if self.has_terminal:
            print(self._in("2", "\n[Enter]"), end="", flush=True)
            await self.line()

    async def line(self) -> str:
        """Return the next typed line. The line is read without a thread, so an interrupt takes effect immediately."""
        loop = asyncio.get_running_loop()
        typed = asyncio.Event()
        loop.add_reader(sys.stdin, typed.set)
        try:
            await typed.wait()
        finally:
            loop.remove_reader(sys.stdin)
        return sys.stdin.readline().strip()

    def _in(self, colour: str, text: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._is_coloured else text


class Workers:
    """Worker processes, numbered in the order in which the story mentions them."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._named: list[int] = []

    def start(self) -> None:
        # Workers run in a separate session. Ctrl-C reaches only the demo, which then stops the workers.
        command = [sys.executable, str(WORKER)]
        self._processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True))

    def kill(self, process: int) -> None:
        """Kill a process as a power failure would."""
        os.kill(process, signal.SIGKILL)

    def name(self, process: int) -> str:
        if process not in self._named:
            self._named.append(process)
        return f"worker {self._named.index(process) + 1}"

    def stop(self) -> None:
        """Ask all workers to stop, and kill any that are still running after a few seconds."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            with process:
                try:
                    process.wait(STOPS_WITHIN_S)
                except subprocess.TimeoutExpired:
                    process.kill()


@dataclass(frozen=True)
class Stage:
    """The narrator and the workers."""

    tell: Narrator
    workers: Workers


@contextmanager
def everything() -> Iterator[Stage]:
    """Create a folder for the store and the log, and remove it however the demo ends.

    The shop finds the store and the log through environment variables.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    workers = Workers()
    with tempfile.TemporaryDirectory(prefix="flowfabric-demo-") as folder:
        os.environ |= {"DEMO_FOLDER": folder, "FLOWFABRIC_STORE": str(Path(folder, "shop.db"))}
        try:
            yield Stage(Narrator(), workers)
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            workers.stop()


def _interrupt(*_: object) -> None:
    """Handle the signal like Ctrl-C, for which asyncio cancels the tour."""
    signal.raise_signal(signal.SIGINT)


@asynccontextmanager
async def website() -> AsyncIterator[None]:
    """Serve the approval pages on the loopback interface."""
    listening = socket.create_server(("127.0.0.1", 0))
    os.environ["DEMO_URL"] = f"http://127.0.0.1:{listening.getsockname()[1]}"
    server = _Server(uvicorn.Config(app.asgi(), log_level="warning", lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving
        listening.close()


class _Server(uvicorn.Server):
    """A server that does not handle signals, so that Ctrl-C reaches the demo."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def visit(link: str, **fields: str) -> str:
    """Open a link, or submit its form if there are fields. Return the status and the first lines of the page."""
    body = urllib.parse.urlencode(fields).encode() if fields else None
    status, page = await asyncio.to_thread(_request, link, body)
    lines = re.findall(r"<(?:h1|p)>(.*?)</(?:h1|p)>", page, re.DOTALL)[:2]
    return f"{status}: {' - '.join(re.sub('<.*?>', '', text) for text in lines)}"


def _request(link: str, body: bytes | None) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(link, body) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()


async def until(condition: Callable[[], object]) -> None:
    """Wait until other processes have written the expected log entries."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.02)
