"""The moves of worker processes that lose replies: ownership as a worker sees it, checked against the stores.

Each process uses the lease table of the real worker, under the clock of the machine. It decides as the worker does:
which leases it starts, when its own clock ends them, and which leases it gives back. The moves lose replies, let code
run on after its lease was lost, and deliver writes late.

A run is one execution of a task's function under one lease. It reads the journal when it starts, unless the claim
reports that there is none. Then it runs steps that it does not find in its journal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from hypothesis import strategies as st

from flowfabric.engine import (
    Fence,
    Lease,
    Policy,
    Satisfied,
    Single,
    StandingWaitpoint,
    Step,
    Suspended,
)
from flowfabric.worker.leases import LeaseTable
from tests.model.checks import BaseMachine, is_refusal
from tests.model.stores import Sides
from tests.model.strategies import LANES, RED, WORKERS, Arguments, S, move, recent, workers
from tests.model.wait_moves import DEFAULT_OPTIONS

STEPS = ("one", "two", "three")
LEASE_TTL = 10 * S
# Nothing but its lease ends an attempt of this execution, so a worker always knows what the store knows.
BODY = Arguments(
    kind="job", payload=b"a", lane=LANES[0], requires=(), policy=Policy(lease_ttl=LEASE_TTL), tags={}, signals=("s",),
    id=None, key=None, delay=None, deadline=None, priority=0,
)  # fmt: skip
CLAIM = Arguments(lanes=LANES, capabilities=("gpu",), lease_ttl=None, kinds=None)
SUSPEND = DEFAULT_OPTIONS | {"waitpoints": [StandingWaitpoint("s")], "condition": Single("s")}
lost = st.sampled_from([False, False, True])


@dataclass(eq=False)
class ModelRun:
    """A run of one lease. `is_over` is set when the run has learned that it has lost or given up its lease."""

    lease: Lease
    journal: set[str]
    is_over: bool = False
    has_stopped: bool = False

    @property
    def fence(self) -> Fence:
        return self.lease.fence


@dataclass
class Process:
    """A worker process: its lease table, its runs, and whether it must ask for leases of a lost claim."""

    name: str
    lease_table: LeaseTable
    runs: list[ModelRun] = field(default_factory=list)
    lost_a_claim: bool = False

    def end(self, fence: Fence) -> None:
        """Notify the run of this lease that it must write nothing more."""
        for run in self.runs:
            run.is_over = run.is_over or run.fence == fence


class OwnershipMoves(BaseMachine):
    """What worker processes do."""

    def __init__(self, sides: Sides) -> None:
        super().__init__(sides)
        self._processes = {name: Process(name, LeaseTable(self._seconds)) for name in WORKERS}
        self._epochs: set[tuple[UUID, int]] = set()
        self._released: set[UUID] = set()
        self._suspensions = 0

    @move(2)
    def submit_job(self) -> None:
        self.act("executions.submit", RED, **BODY)

    @move(5, worker=workers, limit=st.integers(1, 3), reply_lost=lost)
    def claim_leases(self, worker: str, limit: int, reply_lost: bool) -> None:
        """Claim, and start a run for each lease. If the reply is lost, the process does not know the leases."""
        process = self._processes[worker]
        leases = self.act("leases.claim", RED, worker=worker, limit=limit, **CLAIM)
        if reply_lost:
            process.lost_a_claim = True
        else:
            self._accept(process, leases, self._seconds())

    @move(5, worker=workers, early=st.sampled_from([0, 0, 1]))
    def hold_after_lost_claim(self, worker: str, early: int) -> None:
        """Ask for the leases of a lost claim. Start those that are new, and give back the others."""
        process = self._processes[worker]
        if not process.lost_a_claim and not early:
            return
        process.lost_a_claim = False
        known = process.lease_table.lease_ids()
        held = self.act("leases.held", RED, instance=worker)
        new, started = process.lease_table.split([lease for lease in held if lease.fence.lease_id not in known])
        self._give_back(process, {lease.fence for lease in started}, reply_lost=False)
        requested_at = self._seconds()
        renewed = [lease for lease in new if not is_refusal(self.act("leases.renew", RED, fence=lease.fence))]
        self._accept(process, renewed, requested_at)

    @move(5, worker=workers, reply_lost=lost)
    def renew_leases(self, worker: str, reply_lost: bool) -> None:
        """Renew every lease of a process."""
        process = self._processes[worker]
        for run in [run for run in process.runs if run.fence.lease_id in process.lease_table.lease_ids()]:
            requested_at = self._seconds()
            outcome = self.act("leases.renew", RED, fence=run.fence)
            if reply_lost:
                continue
            if is_refusal(outcome):
                process.lease_table.remove(run.fence.lease_id)
                process.end(run.fence)
            else:
                process.lease_table.extend(run.fence.lease_id, requested_at)

    @move(5, worker=workers, stops=st.sampled_from([True, True, False]), reply_lost=lost, early=st.booleans())
    def end_by_local_clock(self, worker: str, stops: bool, reply_lost: bool, early: bool) -> None:
        """Let time pass until the process's own clock ends its first lease, and give that lease back."""
        process = self._processes[worker]
        step_s = process.lease_table.next_loss_in(LEASE_TTL.total_seconds())
        self._wait(timedelta(seconds=step_s) / (2 if early else 1))
        if stops:
            for run in process.runs:
                run.has_stopped = run.has_stopped or run.is_over
            self._give_back(process, {run.fence for run in process.runs}, reply_lost)

    @move(6, worker=workers, stops=st.sampled_from([False, False, True]), limit=st.integers(1, 2))
    def partition(self, worker: str, stops: bool, limit: int) -> None:
        """In one move, claim, lose all replies until the process's clock has ended its leases, then ask for them."""
        self.submit_job()
        self.claim_leases(worker, limit, reply_lost=False)
        self._wait(LEASE_TTL / 2)
        self.renew_leases(worker, reply_lost=True)
        self.claim_leases(worker, limit, reply_lost=True)
        self.end_by_local_clock(worker, stops=stops, reply_lost=True, early=False)
        self.hold_after_lost_claim(worker, early=0)

    @move(4, worker=workers, which=recent, name=st.sampled_from(STEPS), reply_lost=lost)
    def run_step(self, worker: str, which: int, name: str, reply_lost: bool) -> None:
        """Run a step that the run does not find in its journal, and record it."""
        process, run = self._processes[worker], self._active_run(worker, which)
        if run is None or name in run.journal:
            return
        execution = self.execution(run.fence.execution_id)
        recorded = {step.name for step in execution.steps} if execution else set()
        assert name not in recorded, f"a run under epoch {run.fence.epoch} starts step {name!r}, which is recorded"
        outcome = self.act("leases.checkpoint", RED, fence=run.fence, steps=[Step(name, b"1")])
        while reply_lost and not is_refusal(outcome):
            # The run repeats the write until it gets a reply.
            outcome, reply_lost = self.act("leases.checkpoint", RED, fence=run.fence, steps=[Step(name, b"1")]), False
        if is_refusal(outcome):
            process.lease_table.remove(run.fence.lease_id)
            process.end(run.fence)
        else:
            run.journal.add(name)

    @move(4, worker=workers, which=recent, name=st.sampled_from(STEPS))
    def write_late(self, worker: str, which: int, name: str) -> None:
        """Deliver a write that a run sent before it lost its lease."""
        over = [run for run in self._processes[worker].runs if run.is_over]
        if not over:
            return
        run = over[-1 - which % len(over)]
        execution = self.execution(run.fence.execution_id)
        if execution is None or any(step.name == name for step in execution.steps):
            return
        outcome = self.act("leases.checkpoint", RED, fence=run.fence, steps=[Step(name, b"1")])
        is_late = run.fence.lease_id in self._released
        assert is_refusal(outcome) or not is_late, "a write was accepted after its lease was released"

    @move(4, worker=workers, which=recent, sends=st.booleans(), reply_lost=st.booleans())
    def suspend_and_repeat(self, worker: str, which: int, sends: bool, reply_lost: bool) -> None:
        """Suspend until a signal, which may be there already. If the reply is lost, repeat the call."""
        process, run = self._processes[worker], self._active_run(worker, which)
        if run is None:
            return
        if sends:
            sent = {"name": "s", "payload": b"x", "source_identity": "ann", "signal_id": None, "key": None}
            self.act("signals.send", RED, execution_id=run.fence.execution_id, **sent)
        self._suspensions += 1
        request = SUSPEND | {"id": UUID(int=400 + self._suspensions)}
        outcome = self.act("leases.suspend", RED, fence=run.fence, **request)
        if reply_lost:
            repeated = self.act("leases.suspend", RED, fence=run.fence, **request)
            assert repeated == outcome, "a repeated suspend returned another result than the first call"
        if not isinstance(outcome, Satisfied):
            run.is_over = run.has_stopped = True
        if isinstance(outcome, Suspended):
            process.lease_table.confirm_end(run.fence.lease_id)
            self._signal(run.fence.execution_id)

    @move(2, ticks=st.booleans(), step=st.sampled_from([S, 4 * S, 11 * S]))
    def wait(self, ticks: bool, step: timedelta) -> None:
        """Let time pass, and sometimes run the duties."""
        self._wait(step)
        if ticks:
            self.tick()

    def _signal(self, id_: UUID) -> None:
        sent = {"name": "s", "payload": b"y", "source_identity": "ben", "signal_id": None, "key": None}
        self.act("signals.send", RED, execution_id=id_, **sent)

    def _accept(self, process: Process, leases: list[Lease], requested_at: float) -> None:
        """Start a run for each lease that the lease table accepts."""
        for lease in process.lease_table.add(leases, requested_at):
            for former in [run for run in process.runs if run.fence.execution_id == lease.execution_id]:
                # The new run starts when the code of the former run has stopped.
                former.is_over = former.has_stopped = True
                if former.fence != lease.fence:
                    process.lease_table.remove(former.fence.lease_id)
            if process.lease_table.start(lease.fence.lease_id):
                process.runs.append(self._begin_run(lease))

    def _begin_run(self, lease: Lease) -> ModelRun:
        fence, execution = lease.fence, self.execution(lease.execution_id)
        assert (fence.execution_id, fence.epoch) not in self._epochs, "two runs share an epoch"
        self._epochs.add((fence.execution_id, fence.epoch))
        recorded = {step.name for step in execution.steps} if execution else set()
        return ModelRun(lease, recorded if lease.has_journal else set())

    def _give_back(self, process: Process, fences: set[Fence], reply_lost: bool) -> None:
        """Release leases under which code has run and stopped. Without a reply, the process does not know the end."""
        stopped = [run for run in process.runs if run.has_stopped and run.fence in fences]
        for run in stopped:
            if run.fence.lease_id in self._released:
                continue
            outcome = self.act("leases.release", RED, fence=run.fence)
            if not is_refusal(outcome):
                self._released.add(run.fence.lease_id)
            if not reply_lost:
                process.lease_table.confirm_end(run.fence.lease_id)

    def _active_run(self, worker: str, which: int) -> ModelRun | None:
        """Return a run of the process whose lease the process holds."""
        process = self._processes[worker]
        active = [run for run in process.runs if not run.is_over and process.lease_table.is_held(run.fence.lease_id)]
        return active[-1 - which % len(active)] if active else None

    def _wait(self, step: timedelta) -> None:
        """Let time pass, and end the leases whose time has passed by the clocks of their processes."""
        self.clock.advance(step)
        for process in self._processes.values():
            for fence in process.lease_table.take_lost():
                process.end(fence)

    def _seconds(self) -> float:
        return (self.clock.now() - self.began).total_seconds()
