"""A process that has imported everything once and forks workers on request, which takes milliseconds.

    test ──one JSON line per request──▶ fork server ──fork──▶ worker, worker, worker …

A forked worker opens its own engine. The fork server reaps a child only on request. Until the child is reaped, the
system cannot reuse the child's process id. When the test process ends for any reason, its pipe closes. The fork server
then kills its workers and exits.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parent.parent.parent
PR_SET_PDEATHSIG = 1


class ForkServer:
    """The test's end of the pipe to the fork server."""

    def __init__(self, requests: IO[str], replies: IO[str]) -> None:
        self._requests = requests
        self._replies = replies

    def spawn(self, **order: Any) -> int:
        """Start a worker with these instructions and return its process id.

        The order may name another module than `tests.faults.worker`, as `program`, whose `main` then runs.
        """
        return self._ask({"do": "spawn", "order": order})

    def kill(self, pid: int) -> None:
        """Kill a worker and wait until it is gone."""
        os.kill(pid, signal.SIGKILL)
        self.wait(pid)

    def wait(self, pid: int) -> int:
        """Wait for a worker and return its wait status."""
        return self._ask({"do": "wait", "pid": pid})

    def _ask(self, request: dict[str, Any]) -> int:
        self._requests.write(json.dumps(request, default=str) + "\n")
        self._requests.flush()
        line = self._replies.readline()
        if not line:
            raise RuntimeError("the fork server died")
        return int(line)


@contextmanager
def fork_server() -> Iterator[ForkServer]:
    """Yield a running fork server. Its workers are killed when the block ends."""
    command = [sys.executable, "-m", "tests.faults.fork_server"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None, "the process was started with pipes"
        yield ForkServer(process.stdin, process.stdout)


def main() -> None:
    """Serve requests until the pipe closes."""
    # An engine imports its backend when it opens, so import both backends before the first fork.
    import tests.faults.worker  # noqa: F401

    children: set[int] = set()
    try:
        for line in sys.stdin:
            reply = _obey(json.loads(line), children)
            os.write(sys.stdout.fileno(), f"{reply}\n".encode())
    finally:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _obey(request: dict[str, Any], children: set[int]) -> int:
    match request:
        case {"do": "spawn", "order": order}:
            # The fork server imports a module once, so that its children need not.
            program = importlib.import_module(order.pop("program", "tests.faults.worker"))
            pid = os.fork()
            if pid == 0:
                _become_worker(program.main, order)
            children.add(pid)
            return pid
        case {"do": "wait", "pid": pid}:
            children.discard(pid)
            return os.waitpid(pid, 0)[1]
    raise ValueError(request)


def _become_worker(work: Any, order: dict[str, Any]) -> None:
    """Run the worker in the child, and exit without returning to the fork server's code."""
    code = 1
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        # Only the fork server uses the pipe to the test.
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        work(order)
        code = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
