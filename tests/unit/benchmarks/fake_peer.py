"""A peer that speaks the protocol of the benchmarks and does nothing, or does it wrong."""

from __future__ import annotations

import os
import sys
import time

from benchmarks.peers.protocol import Turn, serve

_PATIENT_S = 600


def jobs(turn: Turn) -> None:
    """Burns a tenth of a second of CPU while a library of its chats."""
    sys.stdout.write("a library that prints\n")
    turn.begin()
    ends = time.process_time() + 0.1
    while time.process_time() < ends:
        sum(range(1_000))
    turn.end(420, wall_s=2.0, numbers={"store": turn.request.store})


def start(turn: Turn) -> None:
    turn.begin()
    turn.end(turn.request.number, times_ms=[1.0, 2.0, 3.0][: turn.request.number])


def raises(_: Turn) -> None:
    sys.stderr.write("a word of explanation\n")
    raise ValueError("no such table")


def dies(_: Turn) -> None:
    os._exit(3)


def hangs(turn: Turn) -> None:
    turn.begin()
    time.sleep(_PATIENT_S)


def ends_first(turn: Turn) -> None:
    turn.end(1)


def idles(turn: Turn) -> None:
    turn.begin()
    turn.end(0)


if __name__ == "__main__":
    known = (jobs, start, raises, dies, hangs, ends_first, idles)
    serve("Fake 1.0", {scenario.__name__: scenario for scenario in known})
