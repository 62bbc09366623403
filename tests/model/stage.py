"""Where a step is made on all sides at once, and everything that must hold after it is checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from hypothesis.stateful import RuleBasedStateMachine

from flowfabric import AttemptState, Created, Fence, FlowFabricError, Grant, Lease, State
from tests.model.invariants import check_accepted, check_never_early, check_rows, check_step
from tests.model.projection import differences, expected_rows, lane_events
from tests.model.records import Execution
from tests.model.reference import Reference
from tests.model.sides import Rows, Sides, refusal_shown, since_1970_us

NAMESPACES = ("red", "blue")
NOBODY = UUID(int=999)

# Which executions a call is likely to do something to.
LIKELY: dict[str, Callable[[Execution], bool]] = {
    "leases.claim_execution": lambda item: item.state is State.WAITING,
    "leases.claim_resumed": lambda item: item.attempt_state is AttemptState.INTERRUPTED,
    "operator.change_priority": lambda item: item.state is State.WAITING,
    "operator.hold": lambda item: item.state in (State.WAITING, State.DELAYED),
    "operator.unhold": lambda item: item.state is State.BLOCKED,
    "operator.grant_reclaim": lambda item: item.state is State.ACTIVE and item.lease is None,
    "operator.revoke_lease": lambda item: item.lease is not None,
    "operator.replay": lambda item: item.state.is_terminal,
}


@dataclass(frozen=True)
class Target:
    """Whom an operation is meant for: how many back, whether it suits its state or not, and from which namespace."""

    which: int
    anyone: bool
    foreign: bool


class Stage(RuleBasedStateMachine):
    """SQLite, PostgreSQL and the reference model under one clock."""

    def __init__(self, sides: Sides) -> None:
        super().__init__()
        self._sides = sides
        self._sides.begin()
        self.clock = sides.clock
        self.model = Reference(sides.clock)
        self._rows = self._sides.rows()["sqlite"]
        self._ids: list[UUID] = []
        self._looked_at: set[object] = set()
        self.fences: list[Fence] = []
        self.grants: list[tuple[UUID, UUID]] = []

    def act(self, path: str, namespace: str, **arguments: Any) -> Any:
        """The answer of an operation, or its refusal as a value, which is the same on all sides."""
        before = self._rows
        expected = self._expected(path, namespace, arguments)
        for name, answer in self._sides.call(path, namespace, arguments).items():
            assert answer == expected, f"{path} on {name} answered\n  {answer}\nand the model has\n  {expected}"
        after = self._look()
        if is_refusal(expected):
            assert after == before, f"I-06: {path} was refused ({expected[2]}) and changed something"
        fence = arguments.get("fence")
        if fence is not None:
            check_accepted(before, after, (str(fence.execution_id), fence.epoch, str(fence.lease_id)), self._now_us())
        for id_ in subjects(arguments):
            self._look_at(id_)
        self._remember(expected)
        return expected

    def act_on(self, path: str, whom: Target, **arguments: Any) -> Any:
        """The same for an execution that was ever submitted; it is mostly one that such a call can do something to."""
        likely = LIKELY.get(path, bool)
        fitting = [id_ for id_ in self._ids if (item := self.execution(id_)) and likely(item)]
        ids = fitting if fitting and not whom.anyone else self._ids or [NOBODY]
        id_ = ids[-1 - whom.which % len(ids)]
        return self.act(path, self.namespace_of(id_, whom.foreign), id=id_, **arguments)

    def tick(self) -> None:
        """Runs all duties, then again: the second time there is nothing left to do."""
        before = self._rows
        self.model.duties.tick()
        for name, ticks in self._sides.tick().items():
            assert not any(tick.failed for tick in ticks), f"{name}: a duty failed: {ticks}"
        after = self._look()
        check_never_early(before, after, self._now_us())
        for name, ticks in self._sides.tick().items():
            assert not any(tick.done or tick.failed for tick in ticks), f"I-50: {name} did something again: {ticks}"
        assert self._look() == after, "I-50: a second tick changed something"

    def live_fence(self, which: int) -> Fence | None:
        """The fence of a live lease with time left, 0 for the latest one."""
        leased = [item for item in self.model.world.executions.values() if item.lease]
        live = [item.fence for item in leased if item.lease and item.lease.expires_at > self.clock.now()]
        return live[-1 - which % len(live)] if live else None

    def expiry_of(self, id_: UUID) -> datetime:
        """When the live lease of an execution ends."""
        found = self.execution(id_)
        assert found is not None and found.lease is not None, "asked only about a live fence"
        return found.lease.expires_at

    def execution(self, id_: UUID) -> Execution | None:
        """What the model knows of an execution; None if it is gone."""
        return self.model.world.executions.get(id_)

    def namespace_of(self, id_: UUID, foreign: bool = False) -> str:
        """The namespace to act in: that of the execution, or the other one."""
        found = self.execution(id_)
        own = found.namespace if found else NAMESPACES[0]
        return other(own) if foreign else own

    def _remember(self, answer: Any) -> None:
        """Every id, fence and grant that was ever handed out is kept, to be presented again for ever."""
        leases = answer if isinstance(answer, list) else [answer]
        self.fences += [lease.fence for lease in leases if isinstance(lease, Lease) and lease.fence not in self.fences]
        if isinstance(answer, Created):
            self._ids.append(answer.id)
        if isinstance(answer, Grant):
            self.grants.append((answer.id, answer.execution_id))

    def _expected(self, path: str, namespace: str, arguments: Mapping[str, Any]) -> Any:
        group, name = path.split(".")
        try:
            return getattr(getattr(self.model, group), name)(namespace, **arguments)
        except FlowFabricError as error:
            return refusal_shown(error)

    def _look(self) -> Rows:
        """The rows, which must be the same on both sides, those that the model expects, and sound."""
        sides = self._sides.rows()
        sqlite, postgres = (in_order(sides[name]) for name in ("sqlite", "postgres"))
        wrong = differences(sqlite, postgres) + differences(postgres, sqlite)
        assert not wrong, "I-52: PostgreSQL and SQLite differ:\n" + "\n".join(wrong)
        wrong = differences(expected_rows(self.model.world), sqlite)
        assert not wrong, "the stores differ from the model:\n" + "\n".join(wrong)
        assert lane_events(sqlite) == lane_events(postgres) == sorted(self.model.world.lane_events)
        check_step(self._rows, sqlite)
        check_rows(sqlite)
        self._rows = sqlite
        return sqlite

    def _look_at(self, id_: UUID) -> None:
        """I-15: what describe and result show follows from what is stored, so each combination is looked at once."""
        found = self.execution(id_)
        if found is None or (found.vector, found.policy.on_lease_loss) in self._looked_at:
            return
        self._looked_at.add((found.vector, found.policy.on_lease_loss))
        for name, shown in self._sides.call("executions.describe", found.namespace, {"id": id_}).items():
            assert shown.vector == found.vector, f"{name} shows {shown.vector}, the model has {found.vector}"
            assert (shown.version, shown.epoch, shown.state) == (found.version, found.epoch, found.state)
        result = (
            found.attempts[-1].result if found.attempts and found.attempts[-1].index == found.attempt_index else None
        )
        for outcome in self._sides.call("executions.result", found.namespace, {"id": id_}).values():
            assert (outcome is not None) == found.state.is_terminal
            assert outcome is None or (outcome.state, outcome.result) == (found.state, result)

    def _now_us(self) -> int:
        return since_1970_us(self.clock.now())


def other(namespace: str) -> str:
    """The other one of the two namespaces."""
    return NAMESPACES[namespace == NAMESPACES[0]]


def in_order(rows: Rows) -> Rows:
    """The same rows in an order that does not depend on how they were found."""
    return {table: sorted(found, key=lambda row: repr(sorted(row.items()))) for table, found in rows.items()}


def is_refusal(answer: Any) -> bool:
    return isinstance(answer, tuple) and answer[:1] == ("refused",)


def subjects(arguments: Mapping[str, Any]) -> set[UUID]:
    """The executions that a call is about."""
    named = {arguments.get("id")} | {fence.execution_id for fence in [arguments.get("fence")] if fence}
    return {id_ for id_ in named if id_ is not None}
