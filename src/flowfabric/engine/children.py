"""Checking what a worker asks for its children."""

from __future__ import annotations

from collections.abc import Sequence

from flowfabric.core import limits, requests
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.graph import ChildSubmission, EdgeKind, Join, check_quorum
from flowfabric.core.ids import parse_id
from flowfabric.ops.wait_children import WaitChildren


def children(value: object) -> tuple[ChildSubmission, ...]:
    """Children with distinct keys, at most a batch of them."""
    items = tuple(limits.batch(value, "submissions"))
    for item in items:
        if not isinstance(item, ChildSubmission):
            message = f"submissions must hold ChildSubmission records, not {type(item).__name__}"
            raise InvalidRequest("invalid_type", message, field="submissions")
    if len({item.key for item in items}) != len(items):
        raise InvalidRequest("invalid_request", "two children of one call have the same key", field="submissions")
    return items


def wait_request(
    fence: object, value: object, join: object, key: object, steps: object, edge: object = EdgeKind.ON_COMPLETION
) -> WaitChildren:
    """A wait for distinct children."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        message = f"children must be a list of ids, not {type(value).__name__}"
        raise InvalidRequest("invalid_type", message, field="children")
    limits.whole(len(value), "number of children", 0, limits.GRAPH_MEMBERS)
    ids = tuple(dict.fromkeys(parse_id(item, "child") for item in value))
    if not isinstance(join, Join):
        message = f"join must be made by all_of, any_of or quorum, not {type(join).__name__}"
        raise InvalidRequest("invalid_type", message, field="join")
    if ids:
        check_quorum(join, len(ids), "that waits")
    return WaitChildren(
        fence=requests.fence(fence), children=ids, join=join, steps=requests.steps(steps),
        edge=requests.choice(EdgeKind, edge, "edge"),
        key=None if key is None else limits.name(key, "key"),
    )  # fmt: skip
