"""How a contender talks to the harness. It is a process that knows nothing but the standard library about us.

    harness                                     contender
    {"scenario": "jobs", "store": …, …}   →
                                          ←     {"line": "begin"}         it is warm; CPU is read here
    go                                    →
                                          ←     {"line": "end", …}        what it measured; CPU is read here
    bye                                   →                               it may clean up

A failure is {"line": "error", "text": …}. Lines go to what was the standard output; whatever a library prints goes to
the standard error.
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
    """What is to be measured, on which store, for how long, and how much at once."""

    scenario: str
    store: str
    seconds: float = 3.0
    in_flight: int = 1
    number: int = 0
    options: dict[str, Any] = field(default_factory=dict)


class Turn:
    """The contender's end of the line: `begin` when it is warm, `end` with what it found."""

    def __init__(self, request: Request, out: TextIO, version: str) -> None:
        self.request = request
        self._out = out
        self._version = version
        self._began = time.perf_counter()

    def begin(self) -> None:
        """Returns when the harness has read the CPU; the time that is measured starts here."""
        self._send({"line": "begin"})
        sys.stdin.readline()
        self._began = time.perf_counter()

    @property
    def passed_s(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self._began

    @property
    def is_over(self) -> bool:
        """True when the seconds of the request have passed."""
        return self.passed_s >= self.request.seconds

    def end(
        self,
        jobs: int,
        *,
        wall_s: float | None = None,
        times_ms: list[float] | None = None,
        numbers: Mapping[str, Any] | None = None,
    ) -> None:
        """Tells how many jobs were done in the time, or how long each took; returns when the harness has read it."""
        taken = self.passed_s if wall_s is None else wall_s
        found = {"jobs": jobs, "wall_s": taken, "times_ms": times_ms or [], "numbers": dict(numbers or {})}
        self._send({"line": "end", "version": self._version, **found})
        sys.stdin.readline()

    def fail(self, text: str) -> None:
        """Tells why nothing was measured."""
        self._send({"line": "error", "text": text})

    def _send(self, line: Mapping[str, Any]) -> None:
        self._out.write(json.dumps(line) + "\n")
        self._out.flush()


Scenario = Callable[[Turn], None]


def serve(version: str, scenarios: Mapping[str, Scenario]) -> None:
    """Takes one request and serves it. The process ends with it, also when threads of a library would go on."""
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
