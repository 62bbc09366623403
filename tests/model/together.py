"""Moves of many items at once, moves inside a caller's transaction, and looks at everything there is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from flowfabric.engine import State, Submission
from tests.model.drawing import LANES, Arguments, S, bodies, mostly_red, move, recent
from tests.model.stage import Stage, is_refusal

ids = st.sampled_from([None, None, None, *(UUID(int=number) for number in range(1, 4))])
keys = st.sampled_from([None, None, "k1", "k2"])
arrivals = st.fixed_dictionaries({
    "body": bodies, "id": ids, "key": keys, "delay": st.sampled_from([None, None, 6 * S]),
    "deadline": st.sampled_from([None, None, None, 20 * S, 0 * S]), "priority": st.sampled_from([0, 0, 5]),
})  # fmt: skip


class TogetherMoves(Stage):
    """Batches, transactions of the caller's, lists."""

    @move(2, namespace=mostly_red, items=st.lists(arrivals, min_size=1, max_size=4), twice=st.booleans())
    def submit_many(self, namespace: str, items: list[Arguments], twice: bool) -> None:
        """Several submissions at once, now and then the same ones again in the same batch."""
        submissions = [self._submission(**item) for item in items if item["id"] not in self.model.world.gone]
        if submissions:
            self.act("executions.submit_many", namespace, submissions=submissions * (1 + twice))

    @move(2, namespace=mostly_red, item=arrivals, commit=st.booleans())
    def submit_within(self, namespace: str, item: Arguments, commit: bool) -> None:
        """I-23: what was submitted in a transaction that is rolled back was never there."""
        if item["id"] in self.model.world.gone:
            return
        before, submission = self.rows, self._submission(**item)
        answer = self.act("executions.submit_within", namespace, submission=submission, commit=commit)
        if commit or is_refusal(answer):
            return
        assert self.rows == before, "I-23: something of a transaction that was rolled back is there"
        if self.execution(answer.id) is None:
            for name, history in self.look("executions.history", namespace, id=answer.id).items():
                assert is_refusal(history), f"I-23: {name} has a history of what never was"

    @move(2, chosen=st.lists(recent, min_size=1, max_size=4), stale=st.booleans(), renewed=st.booleans())
    def hold_many(self, chosen: list[int], stale: bool, renewed: bool) -> None:
        """Several leases at once are renewed or completed, among them some twice, and some that were lost long ago."""
        fences = [fence for which in chosen if (fence := self.live_fence(which))]
        if stale:
            fences += self.fences[:2]
        namespaces = {self.namespace_of(fence.execution_id) for fence in fences}
        for namespace in sorted(namespaces):
            if renewed:
                self.act("leases.renew_many", namespace, fences=fences)
            else:
                results = [(fence, b"%d" % (place % 2)) for place, fence in enumerate(fences)]
                self.act("leases.complete_many", namespace, results=results)

    @move(
        3, namespace=mostly_red, limit=st.sampled_from([1, 1, 2, 3, 1000]),
        state=st.sampled_from([None] * 20 + list(State)), lane=st.sampled_from([None, None, None, *LANES]),
        kind=st.sampled_from([None, None, "job"]), tags=st.sampled_from([None, {}, {"a.b": "c"}]),
    )  # fmt: skip
    def look_through(self, namespace: str, **filters: Any) -> None:
        """A list, page by page."""
        self.act("executions.pages", namespace, **filters)

    def _submission(self, body: Arguments, deadline: timedelta | None, **rest: Any) -> Submission:
        at = None if deadline is None else self.clock.now() + deadline
        return Submission(**body, **rest, deadline=at)
