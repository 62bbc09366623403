"""A peer for tests that speaks the benchmark protocol and does no work, or breaks the protocol."""

from __future__ import annotations

import os
import sys
import time

from benchmarks.peers.protocol import Turn, serve

_HANG_S = 600


def jobs(turn: Turn) -> None:
    """Print a line of unrelated output, then use a tenth of a second of CPU time."""
    sys.stdout.write("output of a library\n")
    turn.begin()
    deadline = time.process_time() + 0.1
    while time.process_time() < deadline:
        sum(range(1_000))
    turn.end(420, wall_s=2.0, numbers={"store": turn.request.store})


def start(turn: Turn) -> None:
    turn.begin()
    turn.end(turn.request.number, times_ms=[1.0, 2.0, 3.0][: turn.request.number])


def raises(_: Turn) -> None:
    sys.stderr.write("details on stderr\n")
    raise ValueError("no such table")


def dies(_: Turn) -> None:
    os._exit(3)


def hangs(turn: Turn) -> None:
    turn.begin()
    time.sleep(_HANG_S)


def ends_first(turn: Turn) -> None:
    turn.end(1)


def idles(turn: Turn) -> None:
    turn.begin()
    turn.end(0)


if __name__ == "__main__":
    scenarios = (jobs, start, raises, dies, hangs, ends_first, idles)
    serve("Fake 1.0", {scenario.__name__: scenario for scenario in scenarios})
