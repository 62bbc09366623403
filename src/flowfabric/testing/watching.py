"""What a kit sees of the runs that it performs, and where it interferes: crashes and forced replays."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, TypeAlias
from uuid import UUID

from flowfabric.core.errors import Refused
from flowfabric.core.outcomes import Lease
from flowfabric.sdk.journal import Record
from flowfabric.sdk.run import Run

Replay: TypeAlias = Literal["suspensions", "every record"]
Moment: TypeAlias = Literal["before", "after"]


@dataclass(frozen=True, slots=True)
class Seen:
    """A step or a record, by the kind of its execution and its path there."""

    kind: str
    path: str


@dataclass(frozen=True, slots=True)
class Crash:
    """Where a run is killed: around the next record of this path, or around the record of this number."""

    moment: Moment
    path: str | None = None
    number: int | None = None

    def is_at(self, moment: Moment, path: str, number: int) -> bool:
        """True if it is to happen here."""
        return self.moment == moment and (self.path == path or self.number == number)

    def __str__(self) -> str:
        return f"crash_{self.moment}({self.path!r})" if self.path else f"a crash {self.moment} record {self.number}"


class Watch:
    """The probe of a kit. A crash is the loss of the lease at that very moment: nothing is written any more, and the
    store learns of it when the lease has run out."""

    is_strict = True

    def __init__(self, replay: Replay | None) -> None:
        self._replay = replay
        self._replayed: dict[UUID, int] = {}
        self._is_due: set[UUID] = set()
        self.told: dict[Moment, int] = {"before": 0, "after": 0}
        self._performing: Counter[tuple[UUID, str]] = Counter()
        self._begun: dict[UUID, set[str]] = {}
        self.crashes: list[Crash] = []
        self.dead: list[Lease] = []
        self.runs = 0
        self.performed: list[Seen] = []
        self.records: list[Seen] = []
        self.interrupted: Counter[Seen] = Counter()

    def begins(self, run: Run) -> None:
        """Counts how often bodies are run."""
        self.runs += 1

    def performing(self, run: Run, path: str) -> None:
        """Notes the step."""
        self.performed.append(Seen(run.task.name, path))
        self._performing[run.lease.execution_id, path] += 1

    def recording(self, run: Run, record: Record) -> None:
        """Crashes before the record is stored."""
        self.records.append(Seen(run.task.name, record.path))
        self._crash(run, record, "before")

    def recorded(self, run: Run, record: Record) -> None:
        """Crashes after the record is stored, or runs the body again."""
        if record.is_final:
            self._performing.pop((run.lease.execution_id, record.path), None)
        self._note_begun(run, record)
        self._crash(run, record, "after")
        if self._replay == "every record" and not run.is_over:
            self._is_due.add(run.lease.execution_id)
            self._restart(run)

    def resting(self, run: Run) -> None:
        """Runs the body again before it is suspended, once for what is recorded by now."""
        id_, number = run.lease.execution_id, len(run.calls.journal)
        if self._replay is not None and self._replayed.get(id_) != number:
            self._replayed[id_] = number
            self._is_due.add(id_)
            self._restart(run)

    def _note_begun(self, run: Run, record: Record) -> None:
        """A step that happens at most once is in flight from the record of its beginning on."""
        begun = self._begun.setdefault(run.lease.execution_id, set())
        begun.discard(record.path)
        if record.facts.get("begun") and not record.is_final:
            begun.add(record.path)

    def _restart(self, run: Run) -> None:
        """With a step in flight it waits for the next record: that step would be repeated, as in no real run."""
        in_flight = run.in_flight or self._begun.get(run.lease.execution_id)
        if run.lease.execution_id in self._is_due and not in_flight and not run.is_over:
            self._is_due.discard(run.lease.execution_id)
            run.restart()

    def _crash(self, run: Run, record: Record, moment: Moment) -> None:
        number = self.told[moment]
        self.told[moment] += 1
        crash = next((crash for crash in self.crashes if crash.is_at(moment, record.path, number)), None)
        if crash is None or run.loss is not None:
            return
        self.crashes.remove(crash)
        self.dead.append(run.lease)
        for id_, path in list(self._performing):
            if id_ == run.lease.execution_id:
                self.interrupted[Seen(run.task.name, path)] += 1
                del self._performing[id_, path]
        run.lease_lost(Refused("stale_lease", f"killed by the test: {crash}"))
