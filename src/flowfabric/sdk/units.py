"""Where the code that runs just now belongs: to a branch of a task, to a step of it, or to neither.

A **unit** is one line of execution of a task: its function, or one branch of a group. It makes its durable calls one
after another, so their order never depends on timing. A unit is active while its code runs, and rests while it waits;
when no unit of a run is active, the run can be suspended.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from uuid import UUID

from flowfabric.core.errors import InvalidRequest
from flowfabric.sdk.journal import Made, Record, Scope

if TYPE_CHECKING:
    from flowfabric.sdk.branches import Branches
    from flowfabric.sdk.parking import Group
    from flowfabric.sdk.run import Run
    from flowfabric.sdk.stays import Stay


class Unit:
    """One line of execution of a run, with the scope of its calls."""

    __slots__ = (
        "_is_dropped", "children", "group", "is_bridging", "is_plain", "parent", "race", "run", "scope", "stay",
        "task", "thread", "together", "waitpoints",
    )  # fmt: skip

    def __init__(self, run: Run, scope: Scope, parent: Unit | None = None, *, is_plain: bool = False) -> None:
        self.run = run
        self.scope = scope
        self.parent = parent
        self.is_plain = is_plain
        self.is_bridging = False
        self.together: Group | None = None
        self.race: object | None = None
        self.group: Branches | None = None
        self.stay: Stay | None = None
        self._is_dropped = False
        self.task: asyncio.Task[Any] | None = None
        self.thread: int | None = None
        self.children: set[UUID] = set()
        self.waitpoints: set[str] = set()

    @property
    def is_dropped(self) -> bool:
        """True once the group that it is a branch of has no use for it any more."""
        return self._is_dropped or (self.parent is not None and self.parent.is_dropped)

    @property
    def is_replaying(self) -> bool:
        """True while its code only repeats what is recorded."""
        return self.run.calls.is_replaying or (self.stay is not None and self.stay.is_repeat)

    @property
    def depth(self) -> int:
        """How many groups it is within."""
        return 0 if self.parent is None else self.parent.depth + 1

    def awaits(self, child: UUID) -> None:
        """Notes a child that this branch waits for, and so do the branches that it is part of."""
        self.children.add(child)
        if self.parent is not None:
            self.parent.awaits(child)

    def has_awaited(self, child: UUID) -> None:
        """The child has ended."""
        self.children.discard(child)
        if self.parent is not None:
            self.parent.has_awaited(child)

    def opens(self, waitpoints: Collection[str]) -> None:
        """Notes waitpoints, by their keys, that are there for this branch alone."""
        self.waitpoints.update(waitpoints)
        if self.parent is not None:
            self.parent.opens(waitpoints)

    def closes(self, waitpoints: Collection[str]) -> None:
        """Nobody waits at these waitpoints any more."""
        self.waitpoints.difference_update(waitpoints)
        if self.parent is not None:
            self.parent.closes(waitpoints)

    def drop(self) -> None:
        """Lets nothing durable happen any more in this branch and in those within it."""
        self._is_dropped = True

    def make(
        self, name: str, kind: str, *, key: str | None = None, digest: str | None = None
    ) -> tuple[Made, Record | None]:
        """The identity of the next call, and what is recorded of it."""
        self.run.calls.check_alive(self)
        if self.scope.halts:
            self.scope.check_halts()
        return self.run.calls.make(self.scope, self.scope.next(name, kind, key=key, digest=digest))

    def check_here(self) -> None:
        """Refuses calls from anywhere but the unit's own line of execution."""
        if self.is_plain:
            self._check_thread()
        elif _running_task() is not self.task:
            message = (
                "durable calls in an asyncio task of your own would be numbered by chance: make them in the function "
                "and await them where you like, or give the coroutine to flowfabric.gather, settle or race"
            )
            raise InvalidRequest("durable_call_in_raw_task", message)

    def _check_thread(self) -> None:
        if threading.get_ident() != self.thread:
            raise _in_other_thread()
        if not self.is_bridging:
            message = "this task is a plain function: use flowfabric.sync, for example flowfabric.sync.step"
            raise InvalidRequest("async_call_in_plain_task", message)


def _running_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        # No loop runs here, as in a thread that the function has sent something to.
        raise _in_other_thread() from None


def _in_other_thread() -> InvalidRequest:
    message = "only the thread that runs the task makes durable calls; return to it first"
    return InvalidRequest("durable_call_in_raw_thread", message)


class StepContext:
    """The step that runs just now; verbs of the client inside it are given keys by it, so that a repeat is harmless.
    `is_left` tells a thread, which cannot be stopped, that nobody waits for its result any more."""

    __slots__ = ("_uses", "is_left", "path", "run")

    def __init__(self, run: Run, path: str) -> None:
        self.run = run
        self.path = path
        self.is_left = False
        self._uses = 0

    @property
    def key(self) -> str:
        """The same for every try of this step, and another one when it is replayed or the execution has continued: then
        it is to happen anew."""
        lease = self.run.lease
        turn = f"@{lease.generation}" if lease.generation else ""
        return f"{lease.execution_id}{turn}/{self.path}"

    def idempotency_key(self, verb: str) -> str:
        """The key of the next use of a client's verb in this step."""
        self._uses += 1
        return f"{self.key}/{verb}#{self._uses}"


UNIT: ContextVar[Unit | None] = ContextVar("flowfabric_unit", default=None)
STEP: ContextVar[StepContext | None] = ContextVar("flowfabric_step", default=None)


def unit() -> Unit | None:
    """The branch of a task that this code belongs to; None outside of tasks. Refuses where durable calls are not
    allowed."""
    found = UNIT.get()
    if found is None:
        return None
    if STEP.get() is not None:
        message = "a step cannot contain durable calls; call the function directly"
        raise InvalidRequest("durable_call_in_step", message)
    found.check_here()
    return found


def require_unit(what: str) -> Unit:
    """The same for calls that exist only inside tasks."""
    found = unit()
    if found is None:
        raise InvalidRequest("outside_of_task", f"{what} works inside of a task only")
    return found


def in_step() -> StepContext | None:
    """The step that runs just now, if it is one."""
    return STEP.get()
