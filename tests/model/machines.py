"""The state machines, which draw all moves by their weights.

Each machine has one rule, which draws one of all moves. If Hypothesis chose among rules, it would disable half of them
in each example, and short examples would reach little.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.model.batch_moves import BatchMoves
from tests.model.checks import BaseMachine
from tests.model.ownership_moves import OwnershipMoves
from tests.model.rules import ClaimMoves, ClientMoves, OperatorMoves, TimeMoves, WorkerMoves
from tests.model.strategies import RED, WORKERS, Arguments, Call, bodies, call, workers
from tests.model.wait_moves import WaitMoves
from tests.model.wait_strategies import make_secret

# The order matters, because Hypothesis prefers the first elements.
WAITS = (
    "suspend",
    "begin",
    "create_waitpoint",
    "deliver",
    "deliver_again",
    "approve",
    "send",
    "resume",
    "close_waitpoint",
    "list_signals",
    "look_at_waits",
    "rotate",
    "wait_through",
    "answer_early",
    "time_out",
    "race_a_timer",
    "outlive_a_key",
    "end_while_waiting",
    "advance_to_next_due",
    "claim",
    "come_back",
    "repeat",
    "replay",
    "operate",
)


def list_moves(machine: type[BaseMachine], only: Collection[str] = ()) -> Iterator[st.SearchStrategy[Call]]:
    """Yield as many strategies for each move as its weight. Use all moves, or only the moves named in `only`."""
    for name in only or dir(machine):
        weight, arguments = getattr(getattr(machine, name), "drawn", (0, {}))
        yield from (call(name, **arguments) for _ in range(weight))


class AllMoves(ClientMoves, BatchMoves, ClaimMoves, WorkerMoves, WaitMoves, OperatorMoves, TimeMoves):
    """All moves."""


class StartedMachine(AllMoves):
    """A machine that starts with two running executions."""

    @initialize(first=bodies, second=bodies, worker=workers)
    def begin_two(self, first: Arguments, second: Arguments, worker: str) -> None:
        self.act("keys.seed", RED, kid="kid0", secret=make_secret("kid0"))
        for body in (first, second):
            self.begin(body, worker, None, RED)


class Machine(StartedMachine):
    """A machine that then makes any moves."""

    @rule(chosen=st.one_of(*list_moves(AllMoves)))
    def make(self, chosen: Call) -> None:
        name, arguments = chosen
        getattr(self, name)(**arguments)


class WaitingMachine(StartedMachine):
    """A machine that then makes mostly moves that affect waits.

    Most of these have an effect only after several other moves.
    """

    @rule(chosen=st.one_of(*list_moves(AllMoves, only=WAITS)))
    def make(self, chosen: Call) -> None:
        name, arguments = chosen
        getattr(self, name)(**arguments)


class OwnershipMachine(OwnershipMoves):
    """A machine whose worker processes lose replies, and whose clocks end leases before the stores do."""

    # Most of its moves consist of several calls, so its histories are short, and shrinking them takes long.
    steps = 15
    skipped_phases = (Phase.explain, Phase.shrink)

    @initialize()
    def submit_two(self) -> None:
        self.act("keys.seed", RED, kid="kid0", secret=make_secret("kid0"))
        for worker in WORKERS:
            self.submit_job()
            self.claim_leases(worker, limit=1, reply_lost=False)

    @rule(chosen=st.one_of(*list_moves(OwnershipMoves)))
    def make(self, chosen: Call) -> None:
        name, arguments = chosen
        getattr(self, name)(**arguments)
