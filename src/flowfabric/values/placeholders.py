"""References to future results in the arguments of a flow member.

The stored input of a member is a document with placeholders: `{"inputs": {…}, "holes": [{"at": […], "how": …, "of":
[…]}]}`. Each placeholder names the members whose result belongs at its path. When the member runs, the results replace
the placeholders.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flowfabric.core.errors import InvalidRequest

ENCODING = "json-with-holes"
ReferenceMode = Literal["result", "first", "quorum"]
ValuePath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class ResultReference:
    """The future result of one member, of the first member to complete, or of a quorum of members."""

    flow: object
    members: tuple[str, ...]
    mode: ReferenceMode = "result"
    needed: int = 1
    cancel_rest: bool = False

    def __bool__(self) -> bool:
        raise self._make_too_early()

    def __iter__(self) -> Iterator[Any]:
        raise self._make_too_early()

    def _make_too_early(self) -> InvalidRequest:
        names = ", ".join(self.members)
        message = f"the result of {names} is known only when the flow runs; pass it to a member as an argument"
        return InvalidRequest("result_not_yet_known", message, members=self.members)


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A path in the inputs, and the members whose result belongs at that path."""

    path: ValuePath
    members: tuple[str, ...]
    mode: ReferenceMode
    needed: int

    def to_json(self) -> dict[str, Any]:
        return {"at": list(self.path), "of": list(self.members), "how": self.mode, "needed": self.needed}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Placeholder:
        return Placeholder(tuple(document["at"]), tuple(document["of"]), document["how"], document["needed"])


def find_references(value: object, at: ValuePath = ()) -> Iterator[tuple[ValuePath, ResultReference]]:
    """Yield every reference in a value, with its path. Search lists, tuples and dicts."""
    if isinstance(value, ResultReference):
        yield at, value
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from find_references(item, (*at, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from find_references(item, (*at, key))


def encode_inputs(inputs: Mapping[str, Any], placeholders: Sequence[Placeholder]) -> bytes:
    """Return inputs and placeholders as the JSON that is stored."""
    return json.dumps({"inputs": inputs, "holes": [placeholder.to_json() for placeholder in placeholders]}).encode()


def decode_inputs(payload: bytes) -> tuple[dict[str, Any], list[Placeholder]]:
    """Return the inputs and placeholders parsed from stored JSON."""
    document = json.loads(payload)
    return document["inputs"], [Placeholder.from_json(entry) for entry in document["holes"]]


def fill(inputs: dict[str, Any], placeholder: Placeholder, value: object) -> None:
    """Set the value at the path of the placeholder."""
    *path, last = placeholder.path
    target: Any = inputs
    for part in path:
        target = target[part]
    target[last] = value
