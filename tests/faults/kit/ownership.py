"""A program whose runs write down what they do, to find runs that share an epoch and steps that run again.

The ledger asks the store itself at the start of every step body whether the result of that step is already recorded.
It uses an engine that no fault affects.

    plain, once        two short steps, the second one declared `at_most_once`
    slow, slow_once    in the first run of an execution, wait until the lease is lost; later, return immediately
    stubborn           like `slow`, but a plain function, which continues in its thread after the lease is lost
    short              only the two short steps
    quick              many short steps, so that a fault always meets a write in flight
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import NoReturn
from uuid import UUID

from flowfabric import App, StepFailed, current, step
from flowfabric.engine import Engine, Lease, StepStatus, Unavailable
from flowfabric.runtime.branch import BranchResult
from flowfabric.runtime.run import TaskRun, TaskRunner
from flowfabric.runtime.runner import IsHeld, always_held
from flowfabric.runtime.threads import ThreadPools

MODES = ("slow", "slow_once", "quick")
FILLER = "filler"
QUICK_STEPS = 40
_FILLER_PAUSE_S = 0.04


class OwnershipLedger:
    """What the runs of the program did, by execution."""

    def __init__(self, reader: Engine) -> None:
        self._reader = reader
        self._epochs: dict[UUID, list[int]] = defaultdict(list)
        self._once: Counter[tuple[UUID, str]] = Counter()
        self._held_up: set[UUID] = set()
        self.waiting: set[UUID] = set()
        self.lost_at: dict[UUID, float] = {}
        self.resumed_at: dict[UUID, float] = {}
        self.may_stop = threading.Event()
        self.doubled: list[str] = []
        self.wrong: list[str] = []

    @property
    def violations(self) -> list[str]:
        """Every violation so far."""
        return self.doubled + self.wrong

    def note_loss(self) -> None:
        """Note that the current run has lost its lease."""
        self.lost_at.setdefault(current().execution_id, time.monotonic())

    def note_run(self) -> None:
        """Note that a run begins."""
        id_, epoch = current().execution_id, current().epoch
        if epoch in self._epochs[id_]:
            self.wrong.append(f"two runs of {id_} share epoch {epoch}")
        self._epochs[id_].append(epoch)
        if id_ in self.lost_at:
            self.resumed_at.setdefault(id_, time.monotonic())

    async def note_step(self, name: str, *, at_most_once: bool = False) -> None:
        """Note that the body of a step starts."""
        id_ = current().execution_id
        self._once[id_, name] += at_most_once
        if self._once[id_, name] > 1:
            self.doubled.append(f"{name} of {id_} is declared at_most_once and started {self._once[id_, name]} times")
        recorded = {row.name for row in await self._reader.executions.steps(id_) if row.status != StepStatus.OPEN}
        if name in recorded:
            self.doubled.append(f"{name} of {id_} started after its result was recorded")

    def wait_to_stop(self) -> None:
        """Wait in a thread until the test lets the code stop, in the first run. Return immediately in later runs."""
        id_ = current().execution_id
        if id_ not in self._held_up:
            self._held_up.add(id_)
            self.waiting.add(id_)
            self.may_stop.wait(60)

    async def hold_up(self) -> None:
        """Wait until the lease is lost, in the first run of an execution. Return immediately in later runs."""
        id_ = current().execution_id
        if id_ in self._held_up:
            return
        self._held_up.add(id_)
        self.waiting.add(id_)
        try:
            await asyncio.Event().wait()
        finally:
            self.waiting.discard(id_)
            self.lost_at[id_] = time.monotonic()


class _Steps:
    """The steps of the program."""

    def __init__(self, ledger: OwnershipLedger) -> None:
        self._ledger = ledger

    @step.policy(name="plain")
    async def plain(self) -> str:
        await self._ledger.note_step("plain")
        return "plain"

    @step.policy(name="once", at_most_once=True)
    async def once(self) -> str:
        await self._ledger.note_step("once", at_most_once=True)
        return "once"

    @step.policy(name="slow")
    async def slow(self) -> str:
        await self._ledger.note_step("slow")
        await self._ledger.hold_up()
        return "slow"

    @step.policy(name="stubborn")
    def stubborn(self) -> str:
        self._ledger.wait_to_stop()
        return "stubborn"

    @step.policy(name="slow_once", at_most_once=True)
    async def slow_once(self) -> str:
        await self._ledger.note_step("slow_once", at_most_once=True)
        await self._ledger.hold_up()
        return "slow_once"

    @step.policy(name="quick")
    async def quick(self, number: int) -> int:
        await self._ledger.note_step(f"quick[{number}]")
        await asyncio.sleep(0.02)
        return number


def make_program(ledger: OwnershipLedger) -> App:
    """Return an app with the task `job`, which takes a mode, and the task `filler`, which does nothing."""
    app, steps = App(":memory:"), _Steps(ledger)

    @app.task(name="job")
    async def job(mode: str) -> str:
        ledger.note_run()
        assert await step(steps.plain) == "plain"
        assert await step(steps.once) == "once"
        if mode == "slow":
            await step(steps.slow)
        elif mode == "stubborn":
            try:
                await step(steps.stubborn)
            except BaseException:
                ledger.note_loss()
                raise
        elif mode == "slow_once":
            try:
                await step(steps.slow_once)
            except StepFailed as error:
                return error.error.category
        for number in range(QUICK_STEPS if mode == "quick" else 0):
            await step.options(key=str(number))(steps.quick, number)
        return mode

    @app.task(name=FILLER)
    async def filler() -> None:
        ledger.note_run()

    return app


class FragileRunner(TaskRunner):
    """A runner whose first run of each job fails inside our own code, after its body has returned.

    It calls `before_failure` at that moment.
    """

    def __init__(self, app: App, threads: ThreadPools, before_failure: Callable[[], Awaitable[None]]) -> None:
        super().__init__(app, threads)
        self._before_failure = before_failure
        self._failed: set[UUID] = set()

    def begin(self, engine: Engine, lease: Lease, is_held: IsHeld = always_held) -> TaskRun:
        run = super().begin(engine, lease, is_held)
        if lease.kind == "job" and lease.execution_id not in self._failed:
            self._failed.add(lease.execution_id)
            vars(run)["_run_once"] = partial(self._run_and_fail, run._run_once)
        return run

    async def _run_and_fail(self, run_once: Callable[[], Awaitable[BranchResult]]) -> NoReturn:
        await run_once()
        await self._before_failure()
        raise LookupError("a mistake in our own code")


def expected_results(mode: str) -> set[str]:
    """Return the results that a job may have. An interrupted `at_most_once` step fails instead of running again."""
    return {"interrupted"} if mode == "slow_once" else {mode}


@asynccontextmanager
async def busy_claims(engine: Engine, lane: str = "default") -> AsyncIterator[None]:
    """Submit short work to a lane inside the block, so that its worker always has a claim in flight."""

    async def submit() -> None:
        while True:
            with suppress(Unavailable):
                await engine.executions.submit(FILLER, b"{}", lane=lane)
            await asyncio.sleep(_FILLER_PAUSE_S)

    task = asyncio.create_task(submit())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
