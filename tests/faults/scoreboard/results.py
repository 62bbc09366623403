"""The results of the scoreboard, as docs/reliability.json stores them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.faults.rows.row import Backend, Row, Tally

ROOT = Path(__file__).parent.parent.parent.parent
# No violation in N cases means a rate below 3 / N with a confidence of 95 %.
RULE_OF_THREE = 3.0
DIRTY = "-dirty"


@dataclass(frozen=True)
class Heading:
    """The origin of a board. `commit` and `date` list all commits and dates of a resumed board."""

    commit: str
    machine: str
    date: str
    seeds: list[int]
    minutes: float


def current_machine() -> str:
    """Return the processor, the number of cores, the operating system and the version of Python."""
    return f"{_cpu_model()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def current_commit() -> str:
    """Return the commit that is checked out, marked as dirty if files differ from it."""
    command = ["git", "describe", "--always", f"--dirty={DIRTY}", "--exclude=*"]
    described = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return described.stdout.strip() or "unknown"


@dataclass(frozen=True)
class Line:
    """One line of the main table: a fault on one backend, and its counts."""

    name: str
    fault: str
    backend: Backend
    injected: int
    minimum: int
    executions: int
    signals: int
    events: int
    lost: int
    doubled: int
    wrong: int
    stuck: int
    recovery_p50_s: float | None
    recovery_p99_s: float | None
    lease_s: float | None

    @classmethod
    def of(cls, row: Row, backend: Backend, tally: Tally, minimum: int) -> Line:
        """Return the line for the counts of a suite."""
        return cls(
            row.name,
            row.fault,
            backend,
            tally.injected,
            minimum,
            tally.executions,
            tally.signals,
            tally.events,
            len(tally.lost),
            len(tally.doubled),
            len(tally.wrong),
            len(tally.stuck),
            quantile(tally.recoveries_s, 0.5),
            quantile(tally.recoveries_s, 0.99),
            row.lease_s,
        )

    @property
    def bound(self) -> float | None:
        """The rate of violations that is excluded with 95 % confidence, or None if there was a violation."""
        at_stake = self.executions + self.signals + self.events
        if self.lost or self.doubled or self.wrong or self.stuck or not at_stake:
            return None
        return RULE_OF_THREE / at_stake


@dataclass(frozen=True)
class PlantedResult:
    """A planted fault, the test that must find it, and how long that took."""

    name: str
    test: str
    is_found: bool
    took_s: float


@dataclass(frozen=True)
class MeasurementResult:
    """A measurement of something that is not promised."""

    name: str
    backend: str
    result: str


@dataclass(frozen=True)
class Board:
    """A whole run of the scoreboard."""

    heading: Heading
    lines: list[Line]
    unpromised: list[MeasurementResult] = field(default_factory=list)
    planted: list[PlantedResult] = field(default_factory=list)

    def to_json(self) -> str:
        """Return the run as JSON."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Board:
        """Return the run that `to_json` stored."""
        stored = json.loads(text)
        return cls(
            Heading(**stored["heading"]),
            [Line(**line) for line in stored["lines"]],
            [MeasurementResult(**measurement) for measurement in stored["unpromised"]],
            [PlantedResult(**fault) for fault in stored["planted"]],
        )


def quantile(values: list[float], share: float) -> float | None:
    """Return the value below which this share of the values lies, or None if there are no values."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 2) if ordered else None


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
