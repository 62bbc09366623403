"""Moves with several requests in one call, moves inside a caller's transaction, and lists."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from flowfabric.engine import State, Submission
from tests.model.checks import BaseMachine, is_refusal
from tests.model.strategies import LANES, Arguments, S, bodies, mostly_red, move, recent

ids = st.sampled_from([None, None, None, *(UUID(int=number) for number in range(1, 4))])
keys = st.sampled_from([None, None, "k1", "k2"])
submit_arguments = st.fixed_dictionaries(
    {
        "body": bodies,
        "id": ids,
        "key": keys,
        "delay": st.sampled_from([None, None, 6 * S]),
        "deadline": st.sampled_from([None, None, None, 20 * S, 0 * S]),
        "priority": st.sampled_from([0, 0, 5]),
    }
)


class BatchMoves(BaseMachine):
    """Batches, transactions of the caller, and lists."""

    @move(
        2,
        namespace=mostly_red,
        submissions_fields=st.lists(submit_arguments, min_size=1, max_size=4),
        is_doubled=st.booleans(),
    )
    def submit_many(self, namespace: str, submissions_fields: list[Arguments], is_doubled: bool) -> None:
        """Submit several executions in one call, sometimes each of them twice."""
        submissions = [
            self._submission(**submission_fields)
            for submission_fields in submissions_fields
            if submission_fields["id"] not in self.model.world.gone
        ]
        if submissions:
            self.act("executions.submit_many", namespace, submissions=submissions * (1 + is_doubled))

    @move(2, namespace=mostly_red, submission_fields=submit_arguments, commit=st.booleans())
    def submit_in_transaction(self, namespace: str, submission_fields: Arguments, commit: bool) -> None:
        """I-23: a submit in a transaction that is rolled back leaves nothing behind."""
        if submission_fields["id"] in self.model.world.gone:
            return
        before, submission = self.rows, self._submission(**submission_fields)
        outcome = self.act("executions.submit_in_transaction", namespace, submission=submission, commit=commit)
        if commit or is_refusal(outcome):
            return
        assert self.rows == before, "I-23: a transaction that was rolled back left rows behind"
        if self.execution(outcome.id) is None:
            for name, history in self.query("executions.history", namespace, id=outcome.id).items():
                assert is_refusal(history), f"I-23: {name} has the history of an execution that was rolled back"

    @move(2, chosen=st.lists(recent, min_size=1, max_size=4), stale=st.booleans(), renewed=st.booleans())
    def hold_many(self, chosen: list[int], stale: bool, renewed: bool) -> None:
        """Renew or complete several leases in one call, some of them twice, and some that were lost long ago."""
        fences = [fence for which in chosen if (fence := self.live_fence(which))]
        if stale:
            fences += self.fences[:2]
        namespaces = {self.namespace_of(fence.execution_id) for fence in fences}
        for namespace in sorted(namespaces):
            if renewed:
                self.act("leases.renew_many", namespace, fences=fences)
            else:
                results = [(fence, b"%d" % (index % 2)) for index, fence in enumerate(fences)]
                self.act("leases.complete_many", namespace, results=results)

    @move(
        3,
        namespace=mostly_red,
        limit=st.sampled_from([1, 1, 2, 3, 1000]),
        state=st.sampled_from([None] * 20 + list(State)),
        lane=st.sampled_from([None, None, None, *LANES]),
        kind=st.sampled_from([None, None, "job"]),
        tags=st.sampled_from([None, {}, {"a.b": "c"}]),
    )
    def list_pages(self, namespace: str, **filters: Any) -> None:
        """List executions page by page."""
        self.act("executions.pages", namespace, **filters)

    def _submission(self, body: Arguments, deadline: timedelta | None, **fields: Any) -> Submission:
        at = None if deadline is None else self.clock.now() + deadline
        return Submission(**body, **fields, deadline=at)
