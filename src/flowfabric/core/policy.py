"""The policy stored with an execution. The engine applies it; a worker's word never changes it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, Self

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.frozen import put


class BackoffKind(StrEnum):
    """How the delay between retries grows."""

    FIXED = "fixed"
    EXPONENTIAL = "exponential"


class OnLeaseLoss(StrEnum):
    """What happens to an execution whose lease expired or was revoked."""

    REQUEUE = "requeue"
    HAND_OFF = "hand_off"


class OnAttemptTimeout(StrEnum):
    """What an attempt that ran out of its time means."""

    RETRY = "retry"
    EXPIRE = "expire"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The delay before a retry: `initial`, times `multiplier` per retry taken, never more than `most`, jittered."""

    kind: BackoffKind = BackoffKind.EXPONENTIAL
    initial: limits.Duration = timedelta(seconds=1)
    multiplier: float = 2.0
    most: limits.Duration = timedelta(seconds=60)
    jitter: bool = True

    def __post_init__(self) -> None:
        put(self, kind=_choice(BackoffKind, self.kind, "backoff.kind"))
        put(
            self,
            initial=limits.duration(self.initial, "backoff.initial"),
            most=limits.duration(self.most, "backoff.most"),
        )
        put(self, multiplier=_multiplier(self.multiplier), jitter=limits.truth(self.jitter, "backoff.jitter"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Retries, timeouts, lease handling, caps and retention of one execution; the defaults suit most work."""

    max_retries: int = 3
    backoff: Backoff = field(default_factory=Backoff)
    retryable_categories: Collection[str] = ()
    attempt_timeout: limits.Duration | None = None
    on_attempt_timeout: OnAttemptTimeout = OnAttemptTimeout.RETRY
    deadline: limits.Duration | None = None
    lease_ttl: limits.Duration = timedelta(seconds=30)
    on_lease_loss: OnLeaseLoss = OnLeaseLoss.REQUEUE
    max_reclaims: int = 100
    max_replays: int = 10
    max_signals: int = 10_000
    dedup_window: limits.Duration = timedelta(days=1)
    retention: limits.Duration = timedelta(days=30)

    def __post_init__(self) -> None:
        if not isinstance(self.backoff, Backoff):
            raise InvalidRequest("invalid_policy", "backoff must be a Backoff", field="backoff")
        put(
            self,
            max_retries=limits.whole(self.max_retries, "max_retries", 0, limits.COUNT_MOST),
            max_reclaims=limits.whole(self.max_reclaims, "max_reclaims", 0, limits.COUNT_MOST),
            max_replays=limits.whole(self.max_replays, "max_replays", 0, limits.COUNT_MOST),
            max_signals=limits.whole(self.max_signals, "max_signals", 0, limits.COUNT_MOST),
            retryable_categories=_categories(self.retryable_categories),
            on_attempt_timeout=_choice(OnAttemptTimeout, self.on_attempt_timeout, "on_attempt_timeout"),
            on_lease_loss=_choice(OnLeaseLoss, self.on_lease_loss, "on_lease_loss"),
            attempt_timeout=_optional_duration(self.attempt_timeout, "attempt_timeout"),
            deadline=_optional_duration(self.deadline, "deadline"),
            lease_ttl=limits.duration(self.lease_ttl, "lease_ttl", limits.LEASE_TTL_LEAST, limits.LEASE_TTL_MOST),
            dedup_window=limits.duration(self.dedup_window, "dedup_window"),
            retention=limits.duration(self.retention, "retention"),
        )

    def to_text(self) -> str:
        """The stored form as text; equal policies share it."""
        return _policy_text(self)

    def to_json(self) -> dict[str, Any]:
        """The readable form that is stored: what differs from the defaults, durations in seconds."""
        return _to_json(self, DEFAULT_POLICY)

    @classmethod
    def from_json(cls, document: object) -> Self:
        """The policy behind its stored form; unknown fields are refused with the nearest known name."""
        values = _known_fields(cls, document, "policy")
        if "backoff" in values:
            values["backoff"] = Backoff(**_known_fields(Backoff, values["backoff"], "backoff"))
        return cls(**values)


def span(value: limits.Duration) -> timedelta:
    """The `timedelta` behind a checked duration field; after validation it is always one."""
    assert isinstance(value, timedelta), "policies normalise their durations when they are made"
    return value


def optional_span(value: limits.Duration | None) -> timedelta | None:
    """The same for a duration that may be absent."""
    return None if value is None else span(value)


@lru_cache(maxsize=1024)
def _policy_text(policy: Policy) -> str:
    return json.dumps(policy.to_json(), sort_keys=True)


def _to_json(record: Any, default: Any) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for item in fields(record):
        value = getattr(record, item.name)
        if value == getattr(default, item.name):
            continue
        if isinstance(value, Backoff):
            value = _to_json(value, DEFAULT_BACKOFF)
        elif isinstance(value, timedelta):
            value = value.total_seconds()
        elif isinstance(value, tuple):
            value = list(value)
        document[item.name] = value
    return document


def _known_fields(record: type[Any], document: object, what: str) -> dict[str, Any]:
    if not isinstance(document, Mapping):
        raise InvalidRequest("invalid_policy", f"{what} must be an object, not {type(document).__name__}", field=what)
    known = [item.name for item in fields(record)]
    for key in document:
        if key not in known:
            nearest = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {nearest[0]}?" if nearest else f"; known are {', '.join(known)}"
            raise InvalidRequest("unknown_field", f"{what} has no field {limits.shown(key)}{hint}", field=str(key)[:60])
    return dict(document)


def _choice(kind: type[StrEnum], value: Any, what: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(kind)
        raise InvalidRequest(
            "invalid_policy", f"{what} must be one of {choices}, not {limits.shown(value)}", field=what
        ) from None


def _multiplier(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= 1000:
        field, message = "backoff.multiplier", "backoff.multiplier must be a number between 1 and 1000"
        raise InvalidRequest("out_of_range", message, field=field, least=1, most=1000)
    return float(value)


def _categories(value: object) -> tuple[str, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Collection):
        raise InvalidRequest(
            "invalid_type", "retryable_categories must be a collection of names", field="retryable_categories"
        )
    return tuple(sorted({limits.name(item, "retryable_categories") for item in value}))


def _optional_duration(value: object, what: str) -> timedelta | None:
    return None if value is None else limits.duration(value, what, timedelta(milliseconds=1))


DEFAULT_BACKOFF = Backoff()
DEFAULT_POLICY = Policy()
