"""One row of the scoreboard: a fault, how often to inject it, and what was counted.

A suite is an async function that gets a `Trial` and returns a `Tally`. It injects at least `trial.faults` faults and
compares ledgers, which the engine does not write, with the results. It never asserts: every violation is one
sentence in the tally, so that the table can count it and a test can show it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.stores import PostgresTestStore, SqliteTestStore

Backend = Literal["sqlite", "postgres"]
BOTH: tuple[Backend, ...] = ("sqlite", "postgres")


@dataclass
class Tally:
    """What one run of a suite counted. `lost`, `doubled`, `wrong` and `stuck` hold one sentence per violation.

    lost      acknowledged, and gone
    doubled   a step body that started after its result was recorded, or a second effect of one call
    wrong     a wrong result, order or handler
    stuck     work that did not end in time
    """

    injected: int = 0
    executions: int = 0
    signals: int = 0
    events: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    recoveries_s: list[float] = field(default_factory=list)

    @property
    def violations(self) -> list[str]:
        """Every violation, each with its kind."""
        kinds = {"lost": self.lost, "doubled": self.doubled, "wrong": self.wrong, "stuck": self.stuck}
        return [f"{kind}: {sentence}" for kind, sentences in kinds.items() for sentence in sentences]

    def add_violations(self, violations: Iterable[tuple[str, str]]) -> None:
        """Add violations that are pairs of a kind and a sentence."""
        for kind, sentence in violations:
            getattr(self, kind).append(sentence)

    def add(self, other: Tally) -> None:
        """Add the counts of another run of the same suite."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True)
class Trial:
    """One run of a suite: how many faults to inject, where, and the source of everything random.

    `dsn` is a running PostgreSQL server, also for suites on SQLite. A suite that stops or crashes a server starts its
    own with `tests.postgres_server.postgres_server`.
    """

    backend: Backend
    faults: int
    seed: int
    folder: Path
    dsn: str

    def new_store(self) -> SqliteTestStore | PostgresTestStore:
        """Return a new empty store on the backend of the trial."""
        if self.backend == "postgres":
            return PostgresTestStore(self.dsn)
        folder = self.folder / f"store-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        return SqliteTestStore(folder)

    def random(self, part: str = "") -> random.Random:
        """Return a random generator that depends on the seed and on the named part of the suite only."""
        return random.Random(f"{self.seed} {part}")


@dataclass(frozen=True)
class Row:
    """A fault of the scoreboard.

    `minimum` is the number of faults in a full run, `short_minimum` in `dev.py test` and in the short scoreboard. Both
    are for each backend. `lease_s` is the lease of the suite's workers, if recovery times are counted in leases.
    `recovery_limit_s` is the time within which 99 % of the recoveries of a full run must end.
    """

    name: str
    fault: str
    run: Callable[[Trial], Coroutine[Any, Any, Tally]]
    minimum: int
    short_minimum: int
    backends: tuple[Backend, ...] = BOTH
    lease_s: float | None = None
    recovery_limit_s: float | None = None
