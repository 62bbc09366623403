"""The hooks of a kit. They record what its runs do, and cause planned crashes and forced replays."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, TypeAlias
from uuid import UUID

from flowfabric.core.errors import Refused
from flowfabric.core.executions.outcomes import Lease
from flowfabric.runtime.journal import Record
from flowfabric.runtime.run import RunHooks, TaskRun

Replay: TypeAlias = Literal["suspensions", "every record"]
Moment: TypeAlias = Literal["before", "after"]


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """One call of a step, identified by the kind of the execution and the path of the step."""

    kind: str
    path: str


@dataclass(frozen=True, slots=True)
class Crash:
    """A planned crash, before or after a record is stored: the next record with `path`, or the record with `number`."""

    moment: Moment
    path: str | None = None
    number: int | None = None

    def matches(self, moment: Moment, path: str, number: int) -> bool:
        """Return whether this crash is planned for this moment of this record."""
        return self.moment == moment and (self.path == path or self.number == number)

    def __str__(self) -> str:
        return f"crash_{self.moment}({self.path!r})" if self.path else f"a crash {self.moment} record {self.number}"


class KitHooks(RunHooks):
    """The hooks that a kit passes to its runs.

    A crash takes the lease from the run, which then writes nothing more. The store notices the crash when the lease
    expires.
    """

    is_strict = True

    def __init__(self, replay: Replay | None) -> None:
        self._replay = replay
        self._replayed_lengths: dict[UUID, int] = {}
        self._restart_due: set[UUID] = set()
        self.record_counts: dict[Moment, int] = {"before": 0, "after": 0}
        self._running_steps: Counter[tuple[UUID, str]] = Counter()
        self._begun_steps: dict[UUID, set[str]] = {}
        self.crashes: list[Crash] = []
        self.killed_leases: list[Lease] = []
        self.runs = 0
        self.steps: list[ObservedRun] = []
        self.interrupted: Counter[ObservedRun] = Counter()

    def body_starting(self, run: TaskRun) -> None:
        """Count that a body runs from its top."""
        self.runs += 1

    def step_starting(self, run: TaskRun, path: str) -> None:
        """Record the call of a step."""
        self.steps.append(ObservedRun(run.task.name, path))
        self._running_steps[run.lease.execution_id, path] += 1

    def record_starting(self, run: TaskRun, record: Record) -> None:
        """Kill the run before the record is stored, if a crash is planned for this moment."""
        self._crash(run, record, "before")

    def record_stored(self, run: TaskRun, record: Record) -> None:
        """Kill the run after the record is stored, if a crash is planned for this moment.

        With `replay="every record"`, restart the body.
        """
        if record.is_final:
            self._running_steps.pop((run.lease.execution_id, record.path), None)
        self._note_begun(run, record)
        self._crash(run, record, "after")
        if self._replay == "every record" and not run.is_over:
            self._restart_due.add(run.lease.execution_id)
            self._restart(run)

    def suspending(self, run: TaskRun) -> None:
        """With `replay`, restart the body before the run suspends, if it has new records since the last restart."""
        id_, number = run.lease.execution_id, len(run.calls.journal)
        if self._replay is not None and self._replayed_lengths.get(id_) != number:
            self._replayed_lengths[id_] = number
            self._restart_due.add(id_)
            self._restart(run)

    def _note_begun(self, run: TaskRun, record: Record) -> None:
        """Track the running steps with `at_most_once`. They count as running as soon as their start is recorded."""
        begun = self._begun_steps.setdefault(run.lease.execution_id, set())
        begun.discard(record.path)
        if record.facts.get("begun") and not record.is_final:
            begun.add(record.path)

    def _restart(self, run: TaskRun) -> None:
        """Restart the body if a restart is due and no step is running.

        A restart would repeat a running step, which no real replay does. So while a step runs, the restart stays due
        until the next record.
        """
        in_flight = run.in_flight or self._begun_steps.get(run.lease.execution_id)
        if run.lease.execution_id in self._restart_due and not in_flight and not run.is_over:
            self._restart_due.discard(run.lease.execution_id)
            run.restart()

    def _crash(self, run: TaskRun, record: Record, moment: Moment) -> None:
        number = self.record_counts[moment]
        self.record_counts[moment] += 1
        crash = next((crash for crash in self.crashes if crash.matches(moment, record.path, number)), None)
        if crash is None or run.loss is not None:
            return
        self.crashes.remove(crash)
        self.killed_leases.append(run.lease)
        for id_, path in list(self._running_steps):
            if id_ == run.lease.execution_id:
                self.interrupted[ObservedRun(run.task.name, path)] += 1
                del self._running_steps[id_, path]
        run.lease_lost(Refused("stale_lease", f"killed by the test: {crash}"))
