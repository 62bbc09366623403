"""What a run has recorded, and whether the code still makes the same calls.

A durable call has a **path**: its scope and its label. The label is its name, `name#2` for the second call of that name
in its scope, or `name[key]`. Calls without a key also have an **index**, their place among those of the scope. A call
must find its record under the same path with the same kind, index and argument digest; and where it finds none, no
other call may have been recorded at its index. Both are needed: by the index alone, code that lost an unfinished call
would perform a recorded one again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.frozen import record as quick
from flowfabric.core.records import RecordedStep
from flowfabric.core.requests import Step, StepStatus

KEYED = -1
_DECODER = json.JSONDecoder()
_NO_FACTS: Mapping[str, Any] = {}


@quick(frozen=True, slots=True, kw_only=True)
class Record:
    """One recorded call: `value` is the JSON of its result, `facts` whatever else its kind has to remember."""

    path: str
    scope: str
    index: int
    kind: str
    status: StepStatus = StepStatus.OPEN
    digest: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    value: bytes = b"null"
    seq: int = 0

    @property
    def is_final(self) -> bool:
        return self.status is not StepStatus.OPEN

    def to_step(self) -> Step:
        """The record as the engine stores it: a JSON list of what is known about the call and its value."""
        head = f'"kind": "{self.kind}", "index": {self.index}'
        if self.scope:
            head += f', "scope": {json.dumps(self.scope)}'
        if self.digest is not None:
            head += f', "digest": "{self.digest}"'
        if self.facts:
            head += f', "facts": {json.dumps(self.facts)}'
        return Step(self.path, b"[{%b},%b]" % (head.encode(), self.value), status=self.status)

    @classmethod
    def from_step(cls, step: RecordedStep) -> Record:
        """The record behind a stored step."""
        text = step.payload.decode()
        head, end = _DECODER.raw_decode(text, 1)
        return cls(
            path=step.name, scope=head.get("scope", ""), index=head["index"], kind=head["kind"],
            status=StepStatus(step.status), digest=head.get("digest"), facts=head.get("facts", _NO_FACTS),
            value=text[end + 1 : -1].encode(), seq=step.seq,
        )  # fmt: skip


@quick(frozen=True, slots=True)
class Made:
    """The identity of a call that was made."""

    path: str
    scope: str
    index: int
    kind: str
    digest: str | None = None

    def record(self, status: StepStatus, *, value: bytes = b"null", **facts: Any) -> Record:
        """What is recorded about the call."""
        return Record(
            path=self.path, scope=self.scope, index=self.index, kind=self.kind, status=status, digest=self.digest,
            facts=facts, value=value,
        )  # fmt: skip


class Mismatch(Exception):
    """The code no longer matches what was recorded; `report` shows both side by side."""

    def __init__(self, report: str) -> None:
        super().__init__(report)
        self.report = report


@dataclass(frozen=True, slots=True)
class Halt:
    """A failure that was recorded after so many calls of a scope, and is raised there again."""

    calls: int
    failure: Callable[[], Exception]


@dataclass(slots=True)
class Scope:
    """The calls that a function, or one branch of a group, has made so far."""

    prefix: str = ""
    names: dict[str, int] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    keyed: set[str] = field(default_factory=set)
    halts: list[Halt] = field(default_factory=list)

    @property
    def number(self) -> int:
        """How many calls were made in it."""
        return len(self.made) + len(self.keyed)

    def check_halts(self) -> None:
        """Raises what was recorded in the place of the next call."""
        for halt in self.halts:
            if self.number >= halt.calls:
                raise halt.failure()

    def label(self, name: str) -> str:
        """The label of the next call of this name, outside of the order: `now`, `now#2`, …"""
        number = self.names[name] = self.names.get(name, 0) + 1
        return self._fitting(name if number == 1 else f"{name}#{number}")

    def next(self, name: str, kind: str, *, key: str | None = None, digest: str | None = None) -> Made:
        """The identity of the next call of this name."""
        if key is None:
            label, index = self.label(name), len(self.made)
            self.made.append(self.prefix + label)
            return Made(self.prefix + label, self.prefix, index, kind, digest)
        label = self._fitting(f"{name}[{key}]")
        if label in self.keyed:
            message = f"{label} was called before in this function; a key tells calls apart, so take another one"
            raise InvalidRequest("step_key_repeated", message, path=self.prefix + label)
        self.keyed.add(label)
        return Made(self.prefix + label, self.prefix, KEYED, kind, digest)

    def outside(self, label: str, kind: str) -> Made:
        """The identity of a call outside of the order."""
        return Made(self.prefix + self._fitting(label), self.prefix, KEYED, kind)

    def _fitting(self, label: str) -> str:
        limits.name(self.prefix + label, "the path of a durable call")
        return label


class Journal:
    """The records of an execution by path and by place."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._by_path: dict[str, Record] = {}
        self._by_place: dict[tuple[str, int], str] = {}
        for record in records:
            self.add(record)

    def __len__(self) -> int:
        return len(self._by_path)

    def get(self, path: str) -> Record | None:
        """The record under this path."""
        return self._by_path.get(path)

    def add(self, record: Record) -> None:
        """Remembers a record, in the place of an open one of the same path."""
        self._by_path[record.path] = record
        if record.index != KEYED:
            self._by_place[record.scope, record.index] = record.path

    def all(self) -> list[Record]:
        """All records in the order in which they were first added."""
        return list(self._by_path.values())

    def expect(self, scope: Scope, made: Made, *, check_digest: bool = True) -> Record | None:
        """The record of a call that was just made; raises `Mismatch` if another call was recorded in its place."""
        record = self._by_path.get(made.path)
        if record is None:
            if (made.scope, made.index) in self._by_place:
                raise Mismatch(self.report(scope, made))
            return None
        if (record.kind, record.index) != (made.kind, made.index):
            raise Mismatch(self.report(scope, made))
        if check_digest and None not in (record.digest, made.digest) and record.digest != made.digest:
            raise Mismatch(self.report(scope, made, "its arguments are not those that were recorded"))
        return record

    def passed(self, scope: Scope) -> bool:
        """True if a call after the present point of the scope has been recorded."""
        prefix, place = scope.prefix, len(scope.made)
        return any(where == prefix and index >= place for where, index in list(self._by_place))

    def unreached(self, scope: Scope) -> str | None:
        """A report if the scope ended before calls that were recorded in it."""
        if any(where == scope.prefix and index >= len(scope.made) for where, index in self._by_place):
            return self.report(scope, None, "it ended before calls that were recorded")
        return None

    def report(self, scope: Scope, made: Made | None, why: str | None = None) -> str:
        """The recorded and the present calls of a scope side by side."""
        recorded = {index: path for (where, index), path in list(self._by_place.items()) if where == scope.prefix}
        rows, size = [], max([len(scope.made), *(index + 1 for index in recorded)])
        for index in range(size):
            before, now = recorded.get(index, ""), scope.made[index] if index < len(scope.made) else ""
            differs = made.index == index if made is not None else not now
            rows.append(f"{'>' if differs else ' '} {index} {before:<27} {now}".rstrip())
        if made is not None and made.index == KEYED:
            rows.append(f"> - {made.path:<27} {made.path}")
        head = "the code no longer matches what was recorded" + (f": {why}" if why else "")
        return "\n".join([head, "    recorded                    now", *rows, _REPAIR])


_REPAIR = (
    'repair: keep the old name with @step.policy(name="…"), guard new code with changed("…"), or register version=2; '
    "then `flowfabric unhold`"
)
