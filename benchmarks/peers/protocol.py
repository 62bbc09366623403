"""The protocol between the harness and a contender. This module imports only the standard library.

    harness                                     contender
    {"scenario": "jobs", "store": …, …}   →
                                          ←     {"line": "begin"}         warm; the harness reads the CPU
    go                                    →
                                          ←     {"line": "end", …}        the result; the harness reads the CPU
    bye                                   →                               the contender may clean up

A failure is {"line": "error", "text": …}. Protocol lines use the original standard output. Output of libraries is
redirected to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO


@dataclass(frozen=True, slots=True)
class Request:
    """The scenario to measure, its store, its duration and the number of jobs in flight."""

    scenario: str
    store: str
    seconds: float = 3.0
    in_flight: int = 1
    number: int = 0
    options: dict[str, Any] = field(default_factory=dict)


class Turn:
    """The contender's side of the protocol: it sends `begin` when it is warm and `end` with its result."""

    def __init__(self, request: Request, out: TextIO, version: str) -> None:
        self.request = request
        self._out = out
        self._version = version
        self._began = time.perf_counter()

    def begin(self) -> None:
        """Return when the harness has read the CPU. The measured time starts here."""
        self._send({"line": "begin"})
        sys.stdin.readline()
        self._began = time.perf_counter()

    @property
    def passed_s(self) -> float:
        """The seconds since `begin` returned."""
        return time.perf_counter() - self._began

    @property
    def is_over(self) -> bool:
        """True when the requested seconds have passed."""
        return self.passed_s >= self.request.seconds

    def end(
        self,
        jobs: int,
        *,
        wall_s: float | None = None,
        times_ms: list[float] | None = None,
        numbers: Mapping[str, Any] | None = None,
    ) -> None:
        """Send the number of jobs or the time of each job. Return when the harness has read this result."""
        taken = self.passed_s if wall_s is None else wall_s
        found = {"jobs": jobs, "wall_s": taken, "times_ms": times_ms or [], "numbers": dict(numbers or {})}
        self._send({"line": "end", "version": self._version, **found})
        sys.stdin.readline()

    def fail(self, text: str) -> None:
        """Send the reason why nothing was measured."""
        self._send({"line": "error", "text": text})

    def _send(self, line: Mapping[str, Any]) -> None:
        self._out.write(json.dumps(line) + "\n")
        self._out.flush()


Scenario = Callable[[Turn], None]


def serve(version: str, scenarios: Mapping[str, Scenario]) -> None:
    """Serve one request and exit the process, even if threads of a library are still running."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    request = Request(**json.loads(sys.stdin.readline()))
    turn = Turn(request, out, version)
    try:
        scenario = scenarios.get(request.scenario)
        if scenario is None:
            turn.fail(f"does not know the scenario {request.scenario}")
        else:
            scenario(turn)
    except BaseException as error:
        traceback.print_exc()
        turn.fail(f"{type(error).__name__}: {error}")
    sys.stderr.flush()
    os._exit(0)
