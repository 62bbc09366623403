"""The log of the scoreboard: the result of every run, written when the run ends.

A board takes up to an hour. `--resume` takes the results of an interrupted board from the log instead of measuring
them again. A run that crashed has no result. A run that found violations is a result at its commit: only a later
commit repeats it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.faults.scoreboard.results import DIRTY, ROOT, current_commit

LOG = ROOT / ".scoreboard" / "runs.jsonl"
Result = dict[str, Any]
Run = Callable[[], Awaitable[Result]]


@dataclass(frozen=True)
class RunKey:
    """The name of a suite or a measurement, with its size and seed, or the name of a planted fault."""

    name: str
    backend: str = ""
    faults: int = 0
    seed: int = 0


@dataclass(frozen=True)
class LoggedRun:
    """One line of the log."""

    key: RunKey
    commit: str
    date: str
    took_s: float
    passed: bool
    result: Result


@dataclass
class RunLog:
    """Append every result to a file, and return earlier results from it.

    Without `resumes`, no earlier result counts. Otherwise those of the current commit count, and with `any_commit` also
    those that passed at other commits. `board` lists the results of the present board.
    """

    path: Path = LOG
    resumes: bool = False
    any_commit: bool = False
    board: list[LoggedRun] = field(default_factory=list)
    resumed_s: float = 0.0

    async def result_of(self, key: RunKey, run: Run, has_passed: Callable[[Result], bool]) -> Result:
        """Return the newest earlier result that counts. Without one, run it now and append its result."""
        commit, began = current_commit(), time.monotonic()
        if logged := self._find(key, commit):
            self.resumed_s += logged.took_s
        else:
            result, date = await run(), datetime.now(UTC).date().isoformat()
            logged = LoggedRun(key, commit, date, round(time.monotonic() - began, 1), has_passed(result), result)
            self._append(logged)
        self.board.append(logged)
        return logged.result

    def _find(self, key: RunKey, commit: str) -> LoggedRun | None:
        earlier = [run for run in self._read() if run.key == key] if self.resumes else []
        # The files of a dirty checkout may have changed since.
        same = "" if commit.endswith(DIRTY) else commit
        counts = (run for run in reversed(earlier) if run.commit == same or (self.any_commit and run.passed))
        return next(counts, None)

    def _append(self, run: LoggedRun) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(run)) + "\n")

    def _read(self) -> Iterator[LoggedRun]:
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []:
            stored = json.loads(line)
            yield LoggedRun(**stored | {"key": RunKey(**stored["key"])})
