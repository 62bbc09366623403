"""The journal: the records of an execution, and the check that the code still makes the same calls.

A durable call has a path, which consists of its scope and its label. The label is the name of the call, `name#2` for
the second call of that name in its scope, or `name[key]`. A call without a key also has an index, its position in the
scope. The record under the path of a call must have the same kind, index and argument digest. If there is no such
record, no other call may be recorded at the index of the call. Both checks are needed. With the index alone, a recorded
call would run again after the code drops an unfinished call before it.

A call with a key is found by its path alone. If it has no record, the next recorded call may not have the same name and
no key, because the code has probably added the key to a recorded call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flowfabric.core import fast_dataclass, validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.executions.records import RecordedStep
from flowfabric.core.executions.requests import Step, StepStatus
from flowfabric.core.executions.steps import STEP_KINDS, decode_call

KEYED = -1
_NO_FACTS: Mapping[str, Any] = {}
_KEYED_KINDS = frozenset({"step", "poll", "transaction", "submit", "run"})
_MAX_ROWS = 100


@fast_dataclass.record(frozen=True, slots=True, kw_only=True)
class Record:
    """One recorded call. `value` is the JSON of its result, and `facts` holds data that depends on `kind`.

    The record of a step also says when its last try ran: the start in milliseconds since 1970, and the duration in
    milliseconds. Records of earlier releases do not have these two numbers.
    """

    path: str
    scope: str
    index: int
    kind: str
    status: StepStatus = StepStatus.OPEN
    digest: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    value: bytes = b"null"
    ran: tuple[int, int] | None = None

    @property
    def is_final(self) -> bool:
        return self.status is not StepStatus.OPEN

    def to_step(self) -> Step:
        """Return the record as the engine stores it: a JSON list of the call's data and its value."""
        head = f'"kind":"{self.kind}","index":{self.index}'
        if self.ran is not None:
            started_ms, took_ms = self.ran
            head += f',"ran":[{started_ms},{took_ms}]'
        if self.scope:
            head += f',"scope":{json.dumps(self.scope)}'
        if self.digest is not None:
            head += f',"digest":"{self.digest}"'
        if self.facts:
            head += f',"facts":{json.dumps(self.facts)}'
        return Step(self.path, b"[{%b},%b]" % (head.encode(), self.value), status=self.status)

    @classmethod
    def from_step(cls, step: RecordedStep) -> Record:
        """Return the record that is stored as this step of the engine."""
        head, value = decode_call(step.payload)
        return cls(
            path=step.name,
            scope=head.get("scope", ""),
            index=head["index"],
            kind=head["kind"],
            status=StepStatus(step.status),
            digest=head.get("digest"),
            facts=head.get("facts", _NO_FACTS),
            value=value,
            ran=head.get("ran"),
        )


@fast_dataclass.record(frozen=True, slots=True)
class CallId:
    """The identity of a durable call, by which a later run finds its record."""

    path: str
    scope: str
    index: int
    kind: str
    digest: str | None = None

    def record(
        self, status: StepStatus, *, value: bytes = b"null", ran: tuple[int, int] | None = None, **facts: Any
    ) -> Record:
        """Return a record of the call."""
        return Record(
            path=self.path,
            scope=self.scope,
            index=self.index,
            kind=self.kind,
            status=status,
            digest=self.digest,
            facts=facts,
            value=value,
            ran=ran,
        )


class Mismatch(Exception):
    """The code no longer matches the journal. The message shows the recorded and the current calls side by side."""


@dataclass(frozen=True, slots=True)
class RecordedFailure:
    """A failure that was recorded after `calls` calls of a scope. Later runs raise it again after that many calls."""

    calls: int
    make_error: Callable[[], Exception]


@dataclass(slots=True)
class Scope:
    """The calls that a function, or one branch of a group, has made."""

    prefix: str = ""
    names: dict[str, int] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    keyed: set[str] = field(default_factory=set)
    failures: list[RecordedFailure] = field(default_factory=list)

    @property
    def number(self) -> int:
        """The number of calls that this scope has made."""
        return len(self.paths) + len(self.keyed)

    def raise_recorded(self) -> None:
        """Raise the recorded failure if the scope has made as many calls as before that failure."""
        for halt in self.failures:
            if self.number >= halt.calls:
                raise halt.make_error()

    def label(self, name: str) -> str:
        """Return the label of the next call of this name without a key, such as `now` or `now#2`."""
        number = self.names[name] = self.names.get(name, 0) + 1
        return self._validate(name if number == 1 else f"{name}#{number}")

    def next(self, name: str, kind: str, *, key: str | None = None, digest: str | None = None) -> CallId:
        """Return the identity of the next call of this name in the scope."""
        if key is None:
            label, index = self.label(name), len(self.paths)
            self.paths.append(self.prefix + label)
            return CallId(self.prefix + label, self.prefix, index, kind, digest)
        label = self._validate(f"{name}[{key}]")
        if label in self.keyed:
            message = f"{label} was called before in this function; use another key"
            raise InvalidRequest("step_key_repeated", message, path=self.prefix + label)
        self.keyed.add(label)
        return CallId(self.prefix + label, self.prefix, KEYED, kind, digest)

    def unordered(self, label: str, kind: str) -> CallId:
        """Return the identity of a call with this label and no index, whose position in the scope is not checked."""
        return CallId(self.prefix + self._validate(label), self.prefix, KEYED, kind)

    def _validate(self, label: str) -> str:
        validation.name(self.prefix + label, "the path of a durable call")
        return label


class Journal:
    """The records of an execution by path and by index."""

    def __init__(self) -> None:
        self._by_path: dict[str, Record] = {}
        self._by_place: dict[tuple[str, int], str] = {}

    def __len__(self) -> int:
        return len(self._by_path)

    def get(self, path: str) -> Record | None:
        """Return the record under this path, if any."""
        return self._by_path.get(path)

    def add(self, record: Record) -> None:
        """Add a record. A new record replaces an open record of the same path."""
        self._by_path[record.path] = record
        if record.index != KEYED:
            self._by_place[record.scope, record.index] = record.path

    def waiting_steps(self) -> list[Record]:
        """Return the records of steps that wait for their next try."""
        return [
            record
            for record in self._by_path.values()
            if record.kind in STEP_KINDS and not record.is_final and record.facts.keys() >= {"due", "tries", "error"}
        ]

    def expect(self, scope: Scope, call_id: CallId, *, check_digest: bool = True) -> Record | None:
        """Return the record of a call, or None. Raise `Mismatch` if a different call was recorded in its place."""
        record = self._by_path.get(call_id.path)
        if record is None:
            if (call_id.scope, call_id.index) in self._by_place:
                raise Mismatch(self.report(scope, call_id))
            if call_id.index == KEYED and self._is_next_without_key(scope, call_id):
                raise Mismatch(self.report(scope, call_id, "the next call was recorded without a key"))
            return None
        if (record.kind, record.index) != (call_id.kind, call_id.index):
            raise Mismatch(self.report(scope, call_id))
        if check_digest and None not in (record.digest, call_id.digest) and record.digest != call_id.digest:
            raise Mismatch(self.report(scope, call_id, "its arguments differ from the recorded ones"))
        return record

    def has_later_call(self, scope: Scope) -> bool:
        """Return True if the journal has a record of a call that this scope has not made yet."""
        prefix, place = scope.prefix, len(scope.paths)
        return any(where == prefix and index >= place for where, index in list(self._by_place))

    def report_unreached(self, scope: Scope) -> str | None:
        """Return a report if the scope ended without making all calls that were recorded in it, else None."""
        if any(where == scope.prefix and index >= len(scope.paths) for where, index in self._by_place):
            return self.report(scope, None, "it ended before calls that were recorded")
        return None

    def unmade_keyed_calls(self, scope: Scope) -> list[str]:
        """Return the paths of the recorded calls with a key that this scope has not made.

        Calls inside another call do not count, such as those that notify approvers. Their name contains a slash.
        """
        return [
            path
            for path, record in self._by_path.items()
            if record.index == KEYED
            and record.scope == scope.prefix
            and record.kind in _KEYED_KINDS
            and (label := path.removeprefix(scope.prefix)) not in scope.keyed
            and "/" not in label.partition("[")[0]
        ]

    def _is_next_without_key(self, scope: Scope, call_id: CallId) -> bool:
        """Return True if the next recorded call of the scope has the name of this keyed call, but no key."""
        path = self._by_place.get((scope.prefix, len(scope.paths)))
        if path is None:
            return False
        name, keyed_name = (each.removeprefix(scope.prefix) for each in (path, call_id.path))
        return name.partition("#")[0] == keyed_name.partition("[")[0]

    def report(self, scope: Scope, call_id: CallId | None, why: str | None = None) -> str:
        """Return the recorded and the current calls of a scope side by side, as far as they are near the difference."""
        recorded = {index: path for (where, index), path in list(self._by_place.items()) if where == scope.prefix}
        rows, size = [], max([len(scope.paths), *(index + 1 for index in recorded)])
        is_keyed = call_id is not None and call_id.index == KEYED
        place = call_id.index if call_id is not None and not is_keyed else len(scope.paths)
        for index in range(max(0, place - _MAX_ROWS), min(size, place + _MAX_ROWS)):
            before, now = recorded.get(index, ""), scope.paths[index] if index < len(scope.paths) else ""
            differs = call_id.index == index if call_id is not None else not now
            rows.append(f"{'>' if differs else ' '} {index} {before:<{_COLUMN}} {now}".rstrip())
        if is_keyed and call_id is not None:
            before = call_id.path if call_id.path in self._by_path else recorded.get(place, "")
            rows.append(f"> - {before:<{_COLUMN}} {call_id.path}")
        head = "the code no longer matches the journal" + (f": {why}" if why else "")
        return "\n".join([head, "    recorded                    now", *rows, _REPAIR, _UNCHANGED])


def first_difference(report: str) -> str:
    """Return the first line of a report with the first call that differs, without a period."""
    head, *rows = report.strip().splitlines() or [""]
    marked = next((row for row in rows if row.startswith("> ")), None)
    if marked is None:
        return head
    index, _, calls = marked[2:].partition(" ")
    is_aligned = calls[_COLUMN : _COLUMN + 1] in ("", " ")
    before, now = (calls[:_COLUMN], calls[_COLUMN:]) if is_aligned else calls.partition(" ")[::2]
    before, now = before.strip(), now.strip()
    if before == now:
        return f'{head} (call {index}, "{now}")'
    if not before:
        return f'{head}; call {index}, "{now}", is new'
    return f'{head}; call {index} was "{before}" and is ' + (f'now "{now}"' if now else "no longer made")


_COLUMN = 27
_REPAIR = (
    'repair: keep the old name with @step.policy(name="…"), guard new code with changed("…"), or register version=2; '
    "then `flowfabric unhold`"
)
_UNCHANGED = (
    "if you changed nothing: a clock or random value in the task; run `flowfabric check`, and use now(), rng(), uuid4()"
)
