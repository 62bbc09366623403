"""Contenders: the programs that take turns in a scenario.

Some contenders run in separate processes and use the protocol in `peers/protocol.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cpu import Meter, session_cpu_s
from benchmarks.peers.protocol import Request
from benchmarks.spread import percentile

ROOT = Path(__file__).parent.parent
# Extra time that a contender may use to start, warm up and report.
PATIENCE_S = 180.0
_TOLD_OF_ERRORS = 2_000


class ContenderFailed(Exception):
    """A contender could not be measured; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one turn."""

    jobs: int
    wall_s: float
    times_ms: Sequence[float] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)
    client_s: float | None = None
    server_s: float | None = None
    version: str = ""

    @property
    def rate(self) -> float:
        return self.jobs / self.wall_s


def p50(answer: Answer) -> float:
    """Return the median time of a turn."""
    return statistics.median(answer.times_ms)


def p99(answer: Answer) -> float:
    """Return the 99th percentile of a turn."""
    return percentile(answer.times_ms, 0.99)


@dataclass(frozen=True, slots=True)
class Contender:
    """A name, a backend, and the function that measures one turn."""

    who: str
    backend: str
    turn: Callable[[float], Awaitable[Answer]]
    # Our own contenders must not fail. A peer that fails is reported as absent.
    is_peer: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """A module that speaks the protocol, and the Python interpreter that runs it."""

    python: Path
    module: str
    # The checkout that the module belongs to. The interpreter imports it from there.
    checkout: Path = ROOT

    async def measure(self, request: Request, server: Meter, patience_s: float = PATIENCE_S) -> Answer:
        """Measure one turn in a new process."""
        async with self._started() as process:
            try:
                async with asyncio.timeout(request.seconds + patience_s):
                    return await _talk(process, request, server)
            except TimeoutError:
                raise ContenderFailed(f"{self.module} did not respond in time") from None

    @asynccontextmanager
    async def _started(self) -> AsyncIterator[asyncio.subprocess.Process]:
        process = await asyncio.create_subprocess_exec(
            str(self.python),
            "-m",
            self.module,
            cwd=self.checkout,
            env=os.environ | {"PYTHONPATH": f"{self.checkout / 'src'}{os.pathsep}{self.checkout}"},
            start_new_session=True,
            limit=2**24,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        errors = asyncio.create_task(_last(process.stderr))
        try:
            yield process
        except ContenderFailed as error:
            _end(process.pid)
            raise ContenderFailed(f"{error}\n{await errors}".strip()) from None
        finally:
            _end(process.pid)
            await process.wait()
            errors.cancel()


async def _talk(process: asyncio.subprocess.Process, request: Request, server: Meter) -> Answer:
    assert process.stdin is not None, "the process was started with a pipe"
    await _write(process, json.dumps(asdict(request)))
    await _expect(process, "begin")
    before = session_cpu_s(process.pid), server()
    await _write(process, "go")
    found = await _expect(process, "end")
    if not found["jobs"]:
        raise ContenderFailed(f"finished nothing in a turn of {request.seconds:g} s")
    after = session_cpu_s(process.pid), server()
    await _write(process, "bye")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10):
            await process.wait()
    client_s, server_s = (_between(early, late) for early, late in zip(before, after, strict=True))
    kept = {name: found[name] for name in ("jobs", "wall_s", "times_ms", "numbers", "version")}
    return Answer(**kept, client_s=client_s, server_s=server_s)


async def _expect(process: asyncio.subprocess.Process, line: str) -> dict[str, Any]:
    assert process.stdout is not None, "the process was started with a pipe"
    text = await process.stdout.readline()
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError:
        raise ContenderFailed(f"exited without a response, or printed {text[:200]!r}") from None
    if found.get("line") == "error":
        raise ContenderFailed(str(found.get("text")))
    if found.get("line") != line:
        raise ContenderFailed(f"sent {found.get('line')!r} instead of {line!r}")
    return found


async def _write(process: asyncio.subprocess.Process, text: str) -> None:
    assert process.stdin is not None, "the process was started with a pipe"
    # If the process has already exited, reading its output will show that.
    with contextlib.suppress(ConnectionError):
        process.stdin.write(f"{text}\n".encode())
        await process.stdin.drain()


async def _last(stream: asyncio.StreamReader | None) -> str:
    """Read the output to its end, so that the process never blocks on a full pipe, and return the last part."""
    assert stream is not None, "the process was started with a pipe"
    kept = b""
    while part := await stream.read(65_536):
        kept = (kept + part)[-_TOLD_OF_ERRORS:]
    return kept.decode(errors="replace")


def _end(session: int) -> None:
    """End all remaining processes of the contender's session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)


def _between(early: float | None, late: float | None) -> float | None:
    return None if early is None or late is None else late - early
