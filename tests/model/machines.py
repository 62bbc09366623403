"""The state machines: all moves, drawn by their weights.

One rule draws among all of them: left to choose among rules, Hypothesis switches half of them off in each example, and
short examples would get nowhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.model.drawing import RED, Arguments, Call, bodies, call, workers
from tests.model.rules import ClaimMoves, ClientMoves, OperatorMoves, TimeMoves, WorkerMoves
from tests.model.stage import Stage
from tests.model.together import TogetherMoves
from tests.model.wait_drawing import secret_of
from tests.model.wait_moves import WaitMoves

# Hypothesis prefers what comes first.
WAITS = (
    "suspend", "begin", "create_waitpoint", "deliver", "deliver_again", "approve", "send", "resume", "close_waitpoint",
    "observe", "look_at_waits", "rotate", "wait_through", "answer_early", "time_out", "race_a_timer", "outlive_a_key",
    "end_while_waiting", "advance_to_next_due", "claim", "come_back", "repeat", "replay", "operate",
)  # fmt: skip


def moves_of(stage: type[Stage], only: Collection[str] = ()) -> Iterator[st.SearchStrategy[Call]]:
    """A strategy per move and unit of weight; only these, if they are named."""
    for name in only or dir(stage):
        weight, arguments = getattr(getattr(stage, name), "drawn", (0, {}))
        yield from (call(name, **arguments) for _ in range(weight))


class AllMoves(ClientMoves, TogetherMoves, ClaimMoves, WorkerMoves, WaitMoves, OperatorMoves, TimeMoves):
    """Everything together."""


class Beginning(AllMoves):
    """Two executions at work."""

    @initialize(first=bodies, second=bodies, worker=workers)
    def begin_two(self, first: Arguments, second: Arguments, worker: str) -> None:
        self.act("keys.seed", RED, kid="kid0", secret=secret_of("kid0"))
        for body in (first, second):
            self.begin(body, worker, None, RED)


class Machine(Beginning):
    """And then whatever is drawn."""

    @rule(chosen=st.one_of(*moves_of(AllMoves)))
    def make(self, chosen: Call) -> None:
        name, arguments = chosen
        getattr(self, name)(**arguments)


class WaitingMachine(Beginning):
    """And then mostly waits, which are deep: most of what can happen to one needs several moves before it."""

    @rule(chosen=st.one_of(*moves_of(AllMoves, only=WAITS)))
    def make(self, chosen: Call) -> None:
        name, arguments = chosen
        getattr(self, name)(**arguments)
