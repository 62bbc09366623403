"""References to results that are not there yet: what stands in the arguments of a flow's member until it runs.

A member's stored input is a document with holes: `{"inputs": {…}, "holes": [{"at": […], "how": …, "of": […]}]}`. Each
hole names the members whose result belongs there. They are filled in when the member runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flowfabric.core.errors import InvalidRequest

ENCODING = "json-with-holes"
How = Literal["result", "first", "quorum"]
Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """What members will have answered: the result of one, of the first, or of as many as a quorum needs."""

    flow: object
    of: tuple[str, ...]
    how: How = "result"
    needed: int = 1
    cancel_rest: bool = False

    def __bool__(self) -> bool:
        raise self._too_early()

    def __iter__(self) -> Iterator[Any]:
        raise self._too_early()

    def _too_early(self) -> InvalidRequest:
        message = f"the result of {', '.join(self.of)} is known only when the flow runs; pass it on as an argument"
        return InvalidRequest("result_not_yet_known", message, members=self.of)


@dataclass(frozen=True, slots=True)
class Hole:
    """A place in the inputs, and what belongs there."""

    at: Place
    of: tuple[str, ...]
    how: How
    needed: int

    def to_json(self) -> dict[str, Any]:
        return {"at": list(self.at), "of": list(self.of), "how": self.how, "needed": self.needed}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Hole:
        return Hole(tuple(document["at"]), tuple(document["of"]), document["how"], document["needed"])


def references_in(value: object, at: Place = ()) -> Iterator[tuple[Place, Reference]]:
    """All references in a value with their places; looked for in lists, tuples and dicts."""
    if isinstance(value, Reference):
        yield at, value
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from references_in(item, (*at, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from references_in(item, (*at, key))


def write_inputs(inputs: Mapping[str, Any], holes: Sequence[Hole]) -> bytes:
    """The stored form of inputs with holes."""
    return json.dumps({"inputs": inputs, "holes": [hole.to_json() for hole in holes]}).encode()


def read_inputs(payload: bytes) -> tuple[dict[str, Any], list[Hole]]:
    """Inputs and holes from their stored form."""
    document = json.loads(payload)
    return document["inputs"], [Hole.from_json(item) for item in document["holes"]]


def fill(inputs: dict[str, Any], hole: Hole, value: object) -> None:
    """Puts a value where it belongs."""
    *path, last = hole.at
    target: Any = inputs
    for part in path:
        target = target[part]
    target[last] = value
