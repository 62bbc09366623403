"""The base state machine.

It makes each call on SQLite, PostgreSQL and the model, and checks everything that must hold afterwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from hypothesis import Phase
from hypothesis.stateful import RuleBasedStateMachine

from flowfabric.engine import (
    AttemptState,
    Created,
    Fence,
    Grant,
    LaneState,
    Lease,
    OpenWaitpoint,
    Satisfied,
    Secret,
    State,
    Suspended,
)
from tests.model.invariants import check_accepted, check_fair, check_never_early, check_rows, check_step
from tests.model.projection import differences, expected_rows, lane_events
from tests.model.records import Execution
from tests.model.reference import Reference
from tests.model.stores import Rows, Sides, outcome_or_refusal, to_microseconds
from tests.model.wait_invariants import check_signal, check_wait_rows, check_wait_step

NAMESPACES = ("red", "blue")
UNKNOWN_ID = UUID(int=999)

# For each operation, the condition that an execution must meet for the call to have an effect.
LIKELY: dict[str, Callable[[Execution], bool]] = {
    "leases.claim_execution": lambda execution: execution.state is State.WAITING,
    "leases.claim_resumed": lambda execution: execution.attempt_state is AttemptState.INTERRUPTED,
    "operator.change_priority": lambda execution: execution.state is State.WAITING,
    "operator.hold": lambda execution: execution.state in (State.WAITING, State.DELAYED),
    "operator.unhold": lambda execution: execution.state is State.BLOCKED,
    "operator.grant_reclaim": lambda execution: execution.state is State.ACTIVE and execution.lease is None,
    "operator.revoke_lease": lambda execution: execution.lease is not None,
    "operator.replay": lambda execution: execution.state.is_terminal,
    "operator.resume": lambda execution: execution.state is State.SUSPENDED,
    "signals.approve": lambda execution: execution.state is State.SUSPENDED,
    "signals.send": lambda execution: bool(execution.declared),
    "signals.list": lambda execution: bool(execution.waits),
    "waitpoints.list": lambda execution: bool(execution.slots),
}


@dataclass(frozen=True)
class Target:
    """How to choose the execution of a call: its place counted from the newest, whether any state is allowed, and
    whether to use the wrong namespace.
    """

    which: int
    any_state: bool
    foreign: bool


class BaseMachine(RuleBasedStateMachine):
    """SQLite, PostgreSQL and the reference model under one clock. An example makes `steps` moves."""

    steps = 30
    skipped_phases: Collection[Phase] = (Phase.explain,)

    def __init__(self, sides: Sides) -> None:
        super().__init__()
        self._sides = sides
        self._sides.begin()
        self.clock = sides.clock
        self.began = sides.clock.now()
        self.model = Reference(sides.clock)
        self._rows = self._sides.rows()["sqlite"]
        self._ids: list[UUID] = []
        self._checked_views: set[object] = set()
        self.fences: list[Fence] = []
        self.grants: list[tuple[UUID, UUID]] = []
        self.tokens: list[tuple[str, Secret]] = []
        self.waitpoints: list[tuple[str, UUID]] = []
        self.suspensions: list[UUID] = []
        self.latest: tuple[str, str, dict[str, Any]] = ("", "", {})

    def act(self, path: str, namespace: str, **arguments: Any) -> Any:
        """Make a call on SQLite, PostgreSQL and the model, check that the outcomes are equal, and return the outcome or
        the refusal.
        """
        before, self.latest = self._rows, (path, namespace, arguments)
        expected = self._call_model(path, namespace, arguments)
        for name, outcome in self._sides.call(path, namespace, arguments).items():
            assert outcome == expected, f"{path} on {name} returned\n  {outcome}\nand the model has\n  {expected}"
        after = self._check_stored_rows()
        if is_refusal(expected):
            assert after == before, f"I-06: {path} was rejected ({expected[2]}) and changed something"
        for execution_id, fences in find_fences(arguments).items():
            check_accepted(before, after, execution_id, fences, self._now_us())
        if path.startswith("signals."):
            check_signal(before, after, arguments.get("token"), expected, self._now_us())
        if path == "leases.claim":
            check_fair(before, after, self._eligible(namespace, **arguments))
        for id_ in find_execution_ids(arguments):
            self._check_views(id_)
        self._remember(namespace, expected)
        return expected

    def query(self, path: str, namespace: str, **arguments: Any) -> dict[str, Any]:
        """Make a call that the model does not cover. Return the outcomes of SQLite and PostgreSQL by name."""
        return self._sides.call(path, namespace, arguments)

    @property
    def rows(self) -> Rows:
        """The rows after the last check, which were equal in SQLite and PostgreSQL."""
        return self._rows

    def act_on(self, path: str, target: Target, **arguments: Any) -> Any:
        """Call an operation on a submitted execution, preferably on one that the call can affect."""
        id_ = self.target(path, target)
        named = {"execution_id" if path.split(".", maxsplit=1)[0] in ("signals", "waitpoints") else "id": id_}
        return self.act(path, self.namespace_of(id_, target.foreign), **named, **arguments)

    def target(self, path: str, target: Target) -> UUID:
        """Return the execution that the call addresses."""
        likely = LIKELY.get(path, bool)
        fitting = [id_ for id_ in self._ids if (execution := self.execution(id_)) and likely(execution)]
        ids = fitting if fitting and not target.any_state else self._ids or [UNKNOWN_ID]
        return ids[-1 - target.which % len(ids)]

    def tick(self) -> None:
        """Run all duties. Then run them again to check that the second run does nothing."""
        more, after = True, self._rows
        while more:
            before = self._rows
            self.model.duties.tick()
            outcomes = self._sides.tick()
            for name, ticks in outcomes.items():
                assert not any(tick.failed for tick in ticks), f"{name}: a duty failed: {ticks}"
            after = self._check_stored_rows()
            check_never_early(before, after, self._now_us())
            # If several timers of an execution are due, a tick fires only the first, because that timer may end the
            # wait.
            more = any(tick.duty == "timers" and tick.done for ticks in outcomes.values() for tick in ticks)
        for name, ticks in self._sides.tick().items():
            assert not any(tick.done or tick.failed for tick in ticks), (
                f"I-50: {name} did something in the second tick: {ticks}"
            )
        assert self._check_stored_rows() == after, "I-50: a second tick changed something"

    def live_fence(self, which: int) -> Fence | None:
        """Return the fence of the unexpired live lease at place `which`, counted back from the newest execution, or
        None.
        """
        leased = [execution for execution in self.model.world.executions.values() if execution.lease]
        live = [
            execution.fence for execution in leased if execution.lease and execution.lease.expires_at > self.clock.now()
        ]
        return live[-1 - which % len(live)] if live else None

    def expiry_of(self, id_: UUID) -> datetime:
        """Return the time at which the live lease of an execution expires."""
        execution = self.execution(id_)
        assert execution is not None and execution.lease is not None, "the caller has a live fence"
        return execution.lease.expires_at

    def execution(self, id_: UUID) -> Execution | None:
        """Return the model's record of an execution, or None if the model has no such execution."""
        return self.model.world.executions.get(id_)

    def namespace_of(self, id_: UUID, foreign: bool = False) -> str:
        """Return the namespace of the execution or, if `foreign` is set, the other namespace."""
        execution = self.execution(id_)
        own = execution.namespace if execution else NAMESPACES[0]
        return other(own) if foreign else own

    def _remember(self, namespace: str, outcome: Any) -> None:
        """Keep every id, fence, grant and token that was ever returned, so that moves can present it again."""
        outcomes = outcome if isinstance(outcome, list) else [outcome]
        self.fences += [
            lease.fence for lease in outcomes if isinstance(lease, Lease) and lease.fence not in self.fences
        ]
        self._ids += [created.id for created in outcomes if isinstance(created, Created)]
        if isinstance(outcome, Grant):
            self.grants.append((outcome.id, outcome.execution_id))
        if isinstance(outcome, Suspended | Satisfied) and outcome.suspension_id not in self.suspensions:
            self.suspensions.append(outcome.suspension_id)
        for waitpoint in [*getattr(outcome, "waitpoints", ()), outcome]:
            if isinstance(waitpoint, OpenWaitpoint) and (namespace, waitpoint.id) not in self.waitpoints:
                self.waitpoints.append((namespace, waitpoint.id))
            if (
                isinstance(waitpoint, OpenWaitpoint)
                and waitpoint.token
                and (namespace, waitpoint.token) not in self.tokens
            ):
                self.tokens.append((namespace, waitpoint.token))

    def _eligible(
        self,
        namespace: str,
        *,
        lanes: Collection[str],
        kinds: Collection[str] | None,
        capabilities: Collection[str],
        **_: Any,
    ) -> set[str]:
        """Return the waiting executions that a worker with these claim arguments may get."""
        world = self.model.world
        return {
            str(execution.id)
            for execution in world.executions.values()
            if execution.namespace == namespace
            and execution.lane in lanes
            and (kinds is None or execution.kind in kinds)
            and execution.requires <= set(capabilities)
            and world.lane(namespace, execution.lane) is not LaneState.PAUSED
        }

    def _call_model(self, path: str, namespace: str, arguments: Mapping[str, Any]) -> Any:
        group, name = path.split(".")
        return outcome_or_refusal(getattr(getattr(self.model, group), name), namespace, **arguments)

    def _check_stored_rows(self) -> Rows:
        """Check that the rows of SQLite, PostgreSQL and the model are equal and valid, and return them."""
        sides = self._sides.rows()
        sqlite, postgres = (sort_rows(sides[name]) for name in ("sqlite", "postgres"))
        problems = differences(sqlite, postgres) + differences(postgres, sqlite)
        assert not problems, "I-52: PostgreSQL and SQLite differ:\n" + "\n".join(problems)
        problems = differences(expected_rows(self.model.world), sqlite)
        assert not problems, "the stores differ from the model:\n" + "\n".join(problems)
        assert lane_events(sqlite) == lane_events(postgres) == sorted(self.model.world.lane_events)
        check_step(self._rows, sqlite)
        check_rows(sqlite)
        check_wait_step(self._rows, sqlite, self._now_us())
        check_wait_rows(sqlite, self._now_us())
        self._rows = sqlite
        return sqlite

    def _check_views(self, id_: UUID) -> None:
        """I-15: check that `describe` and `result` agree with the model. Check each combination of states only once."""
        execution = self.execution(id_)
        if execution is None or (execution.vector, execution.policy.on_lease_loss) in self._checked_views:
            return
        self._checked_views.add((execution.vector, execution.policy.on_lease_loss))
        for name, view in self._sides.call("executions.describe", execution.namespace, {"id": id_}).items():
            assert view.vector == execution.vector, f"{name} shows {view.vector}, the model has {execution.vector}"
            assert (view.version, view.epoch, view.state) == (execution.version, execution.epoch, execution.state)
        result = (
            execution.attempts[-1].result
            if execution.attempts and execution.attempts[-1].index == execution.attempt_index
            else None
        )
        for outcome in self._sides.call("executions.result", execution.namespace, {"id": id_}).values():
            assert (outcome is not None) == execution.state.is_terminal
            assert outcome is None or (outcome.state, outcome.result) == (execution.state, result)

    def _now_us(self) -> int:
        return to_microseconds(self.clock.now())


def other(namespace: str) -> str:
    """Return the namespace that is not the given one."""
    return NAMESPACES[namespace == NAMESPACES[0]]


def sort_rows(rows: Rows) -> Rows:
    """Return the rows in an order that does not depend on the query."""
    return {table: sorted(table_rows, key=lambda row: repr(sorted(row.items()))) for table, table_rows in rows.items()}


def is_refusal(outcome: Any) -> bool:
    return isinstance(outcome, tuple) and outcome[:1] == ("refused",)


def find_fences(arguments: Mapping[str, Any]) -> dict[str, set[tuple[int, str]]]:
    """Return the fences that a call presents, by execution."""
    fences = [*arguments.get("fences", ()), *(fence for fence, _ in arguments.get("results", ()))]
    fences_by_execution: dict[str, set[tuple[int, str]]] = defaultdict(set)
    for fence in fences or [arguments.get("fence")]:
        if fence is not None:
            fences_by_execution[str(fence.execution_id)].add((fence.epoch, str(fence.lease_id)))
    return fences_by_execution


def find_execution_ids(arguments: Mapping[str, Any]) -> set[UUID]:
    """Return the executions that a call addresses."""
    fence = arguments.get("fence")
    named = {arguments.get("id"), arguments.get("execution_id"), fence.execution_id if fence else None}
    return {id_ for id_ in named if id_ is not None}
