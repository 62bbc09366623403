"""The payload of a recorded durable call, and the public view of a recorded step.

The payload is a JSON list of two items. The first holds the data of the call, and the second its value. These data are
of interest to people:

- `kind`: the kind of call, such as `step`, `sleep` or `approval`
- `ran`: when the last try of a step ran, as its start in milliseconds since 1970 and its duration in milliseconds
- `facts`: `tries` is the number of failed tries, `error` the last failure, `due` the time of the next try, and
  `retries` the number of retries that the step has

A program that uses the engine without the library may store any other payload in its steps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from flowfabric.core.executions.records import RecordedStep
from flowfabric.core.executions.requests import StepStatus

STEP_KINDS = frozenset({"step", "transaction", "poll"})
_DECODER = json.JSONDecoder()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class StepError:
    """The last failure of a step: the exception's class, message and traceback, and the category for retries."""

    type: str
    message: str
    category: str
    traceback: str

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """Public view of a recorded step or of another recorded call.

    `value` is its result. Of a call that is no step, `tries`, `started_at` and `took` are None. `started_at` and `took`
    are those of the last try that has ended; records of earlier releases do not have them. `next_try_at` and
    `max_tries` are set while the step waits for its next try. `error` is the failure of the last try that failed, even
    if a later try succeeded.
    """

    seq: int
    name: str
    kind: str | None
    status: StepStatus
    value: bytes
    encoding: str
    tries: int | None = None
    started_at: datetime | None = None
    took: timedelta | None = None
    next_try_at: datetime | None = None
    max_tries: int | None = None
    error: StepError | None = None
    attempt_index: int
    generation: int
    recorded_at: datetime


def decode_call(payload: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the data of a recorded call, and the JSON of its value."""
    text = payload.decode()
    head, end = _DECODER.raw_decode(text, 1)
    return head, text[end + 1 : -1].encode()


def view_step(step: RecordedStep) -> StepView:
    """Return the public view of a recorded step. A payload in another format is all value."""
    head, value = _read_call(step)
    try:
        return _make_view(step, head, value)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return _make_view(step, {}, step.payload)


def failed_tries(step: RecordedStep) -> int:
    """Return how many tries of a step have failed, or 0 if its payload is in another format."""
    facts = _read_call(step)[0].get("facts")
    tries = facts.get("tries") if isinstance(facts, dict) else None
    return tries if isinstance(tries, int) else 0


def _make_view(step: RecordedStep, head: Mapping[str, Any], value: bytes) -> StepView:
    """Return the view of a call with these data. Raise one of several errors if another program stored the data."""
    facts, ran, kind = head.get("facts") or {}, head.get("ran"), head.get("kind")
    is_retrying = step.status == StepStatus.OPEN and kind in STEP_KINDS and "error" in facts and "due" in facts
    return StepView(
        seq=step.seq,
        name=step.name,
        kind=kind,
        status=StepStatus(step.status),
        value=value,
        encoding=step.encoding,
        tries=_count_tries(step, facts) if kind in STEP_KINDS else None,
        started_at=None if ran is None else _EPOCH + timedelta(milliseconds=ran[0]),
        took=None if ran is None else timedelta(milliseconds=ran[1]),
        next_try_at=_read_time(facts["due"]) if is_retrying else None,
        max_tries=facts["retries"] + 1 if is_retrying and "retries" in facts else None,
        error=_read_error(facts.get("error")),
        attempt_index=step.attempt_index,
        generation=step.generation,
        recorded_at=step.recorded_at,
    )


def _read_time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError("a time without a time zone cannot be compared")
    return time


def _read_call(step: RecordedStep) -> tuple[Mapping[str, Any], bytes]:
    """Return the data and the value of a call. A payload in another format is all value."""
    if step.encoding == "json" and step.payload.startswith(b'[{"kind":'):
        try:
            return decode_call(step.payload)
        except (RecursionError, ValueError):
            pass
    return {}, step.payload


def _count_tries(step: RecordedStep, facts: Mapping[str, Any]) -> int:
    """Return how many tries have begun. A poll counts its calls."""
    if "asked" in facts:
        return int(facts["asked"])
    is_running = step.status == StepStatus.OK or (step.status == StepStatus.OPEN and "due" not in facts)
    return max(1, int(facts.get("tries", 0)) + is_running)


def _read_error(document: Any) -> StepError | None:
    if not isinstance(document, dict):
        return None
    texts = {name: str(document.get(name, "")) for name in ("type", "message", "category", "traceback")}
    return StepError(**texts)
