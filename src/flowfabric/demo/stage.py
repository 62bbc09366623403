"""The environment of the demo: a temporary folder, worker processes, a web server, and the narrator."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import signal
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
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from flowfabric.demo.shop import app
from flowfabric.web import ASGIApp

WORKER = "flowfabric.demo.shop"
_WIDTH = 96
_POLL_S = 0.05
_STOPS_WITHIN_S = 3.0
TIMEOUT_S = 60.0


class Narrator:
    """The output of the demo: plain sentences and indented facts, with colours if the terminal supports them.

    With `as_json` each of them is a JSON document on one line, and the demo does not ask for decisions.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json = as_json
        self.has_terminal = sys.stdin.isatty() and sys.stdout.isatty() and not as_json
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self._is_coloured = sys.stdout.isatty() and not plain

    def heading(self, text: str) -> None:
        self._print("heading", text, f"\n{self._in('1', f'== {text} ==')}\n")

    def say(self, text: str) -> None:
        self._print("sentence", text, "\n".join(textwrap.wrap(text, _WIDTH)))

    def end(self, text: str) -> None:
        self._print("sentence", text, f"\n{text}")

    def fact(self, text: str) -> None:
        lines = textwrap.wrap(text, _WIDTH - 4) if len(text) > _WIDTH and " " in text else [text]
        self._print("fact", text, "\n".join(f"    {self._in('36', line)}" for line in lines))

    def code(self, function: Callable[..., object]) -> None:
        """Print the source of a function without its docstring."""
        source = inspect.getsource(function).replace(f'    """{function.__doc__}"""\n', "")
        self._print("code", source, "\n".join(f"    {self._in('33', line)}" for line in source.splitlines()))

    def _print(self, kind: str, text: str, shown: str) -> None:
        print(json.dumps({kind: text}) if self._as_json else shown, flush=True)

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
        # They do not search the working directory for modules, and neither does the command `flowfabric`.
        command = [sys.executable, "-P", "-m", WORKER]
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
                    process.wait(_STOPS_WITHIN_S)
                except subprocess.TimeoutExpired:
                    process.kill()


@dataclass(frozen=True)
class Stage:
    """The narrator and the workers."""

    tell: Narrator
    workers: Workers


@contextmanager
def everything(narrator: Narrator) -> Iterator[Stage]:
    """Create a folder for the store and the log, and remove it however the demo ends.

    The shop finds the store and the log through environment variables.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    workers = Workers()
    with tempfile.TemporaryDirectory(prefix="flowfabric-demo-") as folder:
        os.environ |= {"DEMO_FOLDER": folder, "FLOWFABRIC_STORE": str(Path(folder, "shop.db"))}
        try:
            yield Stage(narrator, workers)
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            workers.stop()


def _interrupt(*_: object) -> None:
    """Handle the signal like Ctrl-C, for which asyncio cancels the tour."""
    signal.raise_signal(signal.SIGINT)


@asynccontextmanager
async def website() -> AsyncIterator[None]:
    """Serve the approval pages on the loopback interface, with the web server of the standard library."""
    handler = partial(_Gateway, app.asgi(), asyncio.get_running_loop())
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        os.environ["DEMO_URL"] = f"http://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, args=(_POLL_S,), daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


class _Gateway(BaseHTTPRequestHandler):
    """Pass each request to an ASGI application, which runs in the event loop of the demo."""

    def __init__(self, site: ASGIApp, loop: asyncio.AbstractEventLoop, *connection: Any) -> None:
        self._site, self._loop = site, loop
        super().__init__(*connection)

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        messages = asyncio.run_coroutine_threadsafe(self._respond(body), self._loop).result(TIMEOUT_S)
        self.send_response_only(messages[0]["status"])
        for name, value in messages[0]["headers"]:
            self.send_header(name.decode(), value.decode())
        self.end_headers()
        self.wfile.write(b"".join(message.get("body", b"") for message in messages[1:]))

    do_HEAD = do_POST = do_GET  # noqa: N815 - the base class looks for these names

    async def _respond(self, body: bytes) -> list[dict[str, Any]]:
        """Return the messages of the application."""
        path, _, query = self.path.partition("?")
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": self.command, "scheme": "http",
            "path": urllib.parse.unquote(path), "raw_path": path.encode(), "query_string": query.encode(),
            "root_path": "", "headers": headers,
        }  # fmt: skip
        messages: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            messages.append(message)

        await self._site(scope, receive, send)
        return messages

    def log_message(self, format: str, *words: object) -> None:
        """Log nothing, because the paths contain tokens."""


async def visit(link: str, **fields: str) -> str:
    """Open a link, or submit its form if there are fields. Return the status and the first lines of the page."""
    body = urllib.parse.urlencode(fields).encode() if fields else None
    status, page = await asyncio.to_thread(_request, link, body)
    lines = re.findall(r"<(?:h1|p)>(.*?)</(?:h1|p)>", page, re.DOTALL)[:2]
    return f"{status}: {' - '.join(re.sub('<.*?>', '', text) for text in lines)}"


def _request(link: str, body: bytes | None) -> tuple[int, str]:
    try:
        # The page is on this machine, so no proxy is asked.
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(link, body) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()


async def until(condition: Callable[[], object]) -> None:
    """Wait until other processes have written the expected log entries."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.02)
