"""Where a step is made on all sides at once, and everything that must hold after it is checked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

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
)  # fmt: skip
from tests.model.invariants import check_accepted, check_fair, check_never_early, check_rows, check_step
from tests.model.projection import differences, expected_rows, lane_events
from tests.model.records import Execution
from tests.model.reference import Reference
from tests.model.sides import Rows, Sides, answer_or_refusal, since_1970_us
from tests.model.wait_invariants import check_signal, check_wait_rows, check_wait_step

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
    "operator.resume": lambda item: item.state is State.SUSPENDED,
    "signals.approve": lambda item: item.state is State.SUSPENDED,
    "signals.send": lambda item: bool(item.declared),
    "signals.observe": lambda item: bool(item.waits),
    "waitpoints.list": lambda item: bool(item.slots),
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
        self.began = sides.clock.now()
        self.model = Reference(sides.clock)
        self._rows = self._sides.rows()["sqlite"]
        self._ids: list[UUID] = []
        self._looked_at: set[object] = set()
        self.fences: list[Fence] = []
        self.grants: list[tuple[UUID, UUID]] = []
        self.tokens: list[tuple[str, Secret]] = []
        self.waitpoints: list[tuple[str, UUID]] = []
        self.suspensions: list[UUID] = []
        self.latest: tuple[str, str, dict[str, Any]] = ("", "", {})

    def act(self, path: str, namespace: str, **arguments: Any) -> Any:
        """The answer of an operation, or its refusal as a value, which is the same on all sides."""
        before, self.latest = self._rows, (path, namespace, arguments)
        expected = self._expected(path, namespace, arguments)
        for name, answer in self._sides.call(path, namespace, arguments).items():
            assert answer == expected, f"{path} on {name} answered\n  {answer}\nand the model has\n  {expected}"
        after = self._look()
        if is_refusal(expected):
            assert after == before, f"I-06: {path} was refused ({expected[2]}) and changed something"
        for execution_id, fences in presented(arguments).items():
            check_accepted(before, after, execution_id, fences, self._now_us())
        if path.startswith("signals."):
            check_signal(before, after, arguments.get("token"), expected, self._now_us())
        if path == "leases.claim":
            check_fair(before, after, self._eligible(namespace, **arguments))
        for id_ in subjects(arguments):
            self._look_at(id_)
        self._remember(namespace, expected)
        return expected

    def look(self, path: str, namespace: str, **arguments: Any) -> dict[str, Any]:
        """What the sides answer to a question that the model is not asked."""
        return self._sides.call(path, namespace, arguments)

    @property
    def rows(self) -> Rows:
        """What is stored at present, on both sides."""
        return self._rows

    def act_on(self, path: str, whom: Target, **arguments: Any) -> Any:
        """The same for an execution that was ever submitted; it is mostly one that such a call can do something to."""
        id_ = self.target(path, whom)
        named = {"execution_id" if path.split(".", maxsplit=1)[0] in ("signals", "waitpoints") else "id": id_}
        return self.act(path, self.namespace_of(id_, whom.foreign), **named, **arguments)

    def target(self, path: str, whom: Target) -> UUID:
        """The execution that such a call is meant for."""
        likely = LIKELY.get(path, bool)
        fitting = [id_ for id_ in self._ids if (item := self.execution(id_)) and likely(item)]
        ids = fitting if fitting and not whom.anyone else self._ids or [NOBODY]
        return ids[-1 - whom.which % len(ids)]

    def tick(self) -> None:
        """Runs all duties, then again: the second time there is nothing left to do."""
        more, after = True, self._rows
        while more:
            before = self._rows
            self.model.duties.tick()
            answers = self._sides.tick()
            for name, ticks in answers.items():
                assert not any(tick.failed for tick in ticks), f"{name}: a duty failed: {ticks}"
            after = self._look()
            check_never_early(before, after, self._now_us())
            # Of several timers of one execution a tick fires the first, since that may end the wait.
            more = any(tick.duty == "timers" and tick.done for ticks in answers.values() for tick in ticks)
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

    def _remember(self, namespace: str, answer: Any) -> None:
        """Every id, fence, grant and token that was ever handed out is kept, to be presented again for ever."""
        answers = answer if isinstance(answer, list) else [answer]
        self.fences += [lease.fence for lease in answers if isinstance(lease, Lease) and lease.fence not in self.fences]
        self._ids += [created.id for created in answers if isinstance(created, Created)]
        if isinstance(answer, Grant):
            self.grants.append((answer.id, answer.execution_id))
        if isinstance(answer, Suspended | Satisfied) and answer.suspension_id not in self.suspensions:
            self.suspensions.append(answer.suspension_id)
        for shown in [*getattr(answer, "waitpoints", ()), answer]:
            if isinstance(shown, OpenWaitpoint) and (namespace, shown.id) not in self.waitpoints:
                self.waitpoints.append((namespace, shown.id))
            if isinstance(shown, OpenWaitpoint) and shown.token and (namespace, shown.token) not in self.tokens:
                self.tokens.append((namespace, shown.token))

    def _eligible(
        self, namespace: str, *, lanes: Collection[str], kinds: Collection[str] | None, capabilities: Collection[str],
        **_: Any,
    ) -> set[str]:  # fmt: skip
        """What a worker with these wishes may be given, as far as it waits."""
        world = self.model.world
        return {
            str(item.id)
            for item in world.executions.values()
            if item.namespace == namespace
            and item.lane in lanes
            and (kinds is None or item.kind in kinds)
            and item.requires <= set(capabilities)
            and world.lane(namespace, item.lane) is not LaneState.PAUSED
        }

    def _expected(self, path: str, namespace: str, arguments: Mapping[str, Any]) -> Any:
        group, name = path.split(".")
        return answer_or_refusal(getattr(getattr(self.model, group), name), namespace, **arguments)

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
        check_wait_step(self._rows, sqlite, self._now_us())
        check_wait_rows(sqlite, self._now_us())
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


def presented(arguments: Mapping[str, Any]) -> dict[str, set[tuple[int, str]]]:
    """The fences that a call presents, by execution."""
    fences = [*arguments.get("fences", ()), *(fence for fence, _ in arguments.get("results", ()))]
    found: dict[str, set[tuple[int, str]]] = defaultdict(set)
    for fence in fences or [arguments.get("fence")]:
        if fence is not None:
            found[str(fence.execution_id)].add((fence.epoch, str(fence.lease_id)))
    return found


def subjects(arguments: Mapping[str, Any]) -> set[UUID]:
    """The executions that a call is about."""
    fence = arguments.get("fence")
    named = {arguments.get("id"), arguments.get("execution_id"), fence.execution_id if fence else None}
    return {id_ for id_ in named if id_ is not None}
