"""Strategies for conditions and signals over few keys, names, ids and sources, so that they often match."""

from __future__ import annotations

from uuid import UUID

from hypothesis import strategies as st

from flowfabric.core.waits.conditions import AllOf, AnyOf, Condition, Count, Distinct, OperatorOnly, Single, TimeoutOnly
from flowfabric.core.waits.evaluate import SignalFacts

KEYS = ("a", "b", "c")
NAMES = ("approve", "reject")

_keys = st.sampled_from(KEYS)
_matchers = st.sampled_from((*NAMES, None))
_singles = st.builds(Single, _keys, _matchers)
_open_kinds = st.sampled_from([Distinct.SIGNALS, Distinct.SOURCES])
_counts = st.builds(Count, st.integers(1, 4), _open_kinds, st.lists(_keys, min_size=1), _matchers)
_waitpoint_counts = st.lists(_keys, min_size=1).flatmap(
    lambda keys: st.builds(
        Count, st.integers(1, len(set(keys))), st.just(Distinct.WAITPOINTS), st.just(keys), _matchers
    )
)
_leaves = _singles | _counts | _waitpoint_counts | st.just(OperatorOnly()) | st.just(TimeoutOnly())


def _composites(level: int) -> st.SearchStrategy[Condition]:
    members = st.lists(_leaves if level == 0 else _leaves | _composites(level - 1), min_size=1, max_size=3)
    return st.builds(AllOf, members) | st.builds(AnyOf, members)


# A Count counts as a level of nesting. So conditions have at most three levels of AllOf and AnyOf, plus a Count.
conditions: st.SearchStrategy[Condition] = _leaves | _composites(2)


def _number_signals(drawn: list[tuple[int, str, str, str]]) -> list[SignalFacts]:
    return [SignalFacts(UUID(int=id_), key, name, by, order) for order, (id_, key, name, by) in enumerate(drawn)]


signals: st.SearchStrategy[list[SignalFacts]] = st.lists(
    st.tuples(
        st.integers(1, 6),
        st.sampled_from((*KEYS, "elsewhere")),
        st.sampled_from((*NAMES, "other")),
        st.sampled_from(("ada", "bob", "eve", "joe")),
    ),
    max_size=16,
).map(_number_signals)
