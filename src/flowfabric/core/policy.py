"""The policy stored with an execution. The engine applies the policy; workers cannot change it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, Self

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.fast_dataclass import put

_DEFAULT_INITIAL = timedelta(seconds=1)
_DEFAULT_MAX_DELAY = timedelta(seconds=60)


class BackoffKind(StrEnum):
    """How the delay between retries grows."""

    FIXED = "fixed"
    EXPONENTIAL = "exponential"


class OnLeaseLoss(StrEnum):
    """What happens to an execution whose lease expired or was revoked."""

    REQUEUE = "requeue"
    HAND_OFF = "hand_off"


class OnAttemptTimeout(StrEnum):
    """What happens when an attempt exceeds its timeout."""

    RETRY = "retry"
    EXPIRE = "expire"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The delay before a retry: `initial`, multiplied by `multiplier` for each retry, at most `max_delay`.

    A `fixed` delay does not grow. `max_delay` defaults to 60 s, or to `initial` if that is longer. With `jitter`, the
    delay is a random part of this.
    """

    kind: BackoffKind = BackoffKind.EXPONENTIAL
    initial: validation.Duration = _DEFAULT_INITIAL
    multiplier: float = 2.0
    max_delay: validation.Duration | None = None
    jitter: bool = True

    def __post_init__(self) -> None:
        initial = validation.duration(self.initial, "backoff.initial")
        put(
            self,
            kind=_choice(BackoffKind, self.kind, "backoff.kind"),
            initial=initial,
            max_delay=_max_delay(self.max_delay, initial),
            multiplier=_multiplier(self.multiplier),
            jitter=validation.boolean(self.jitter, "backoff.jitter"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Retries, timeouts, lease handling, bounds and retention of one execution. The defaults suit most work."""

    max_retries: int = 3
    backoff: Backoff = field(default_factory=Backoff)
    retryable_categories: Collection[str] = ()
    attempt_timeout: validation.Duration | None = None
    on_attempt_timeout: OnAttemptTimeout = OnAttemptTimeout.RETRY
    deadline: validation.Duration | None = None
    lease_ttl: validation.Duration = timedelta(seconds=30)
    on_lease_loss: OnLeaseLoss = OnLeaseLoss.REQUEUE
    max_reclaims: int = 100
    max_replays: int = 10
    max_signals: int = 10_000
    dedup_window: validation.Duration = timedelta(days=1)
    retention: validation.Duration = timedelta(days=30)

    def __post_init__(self) -> None:
        if not isinstance(self.backoff, Backoff):
            message = f"backoff must be a Backoff, not {type(self.backoff).__name__}"
            raise InvalidRequest("invalid_policy", message, field="backoff")
        put(
            self,
            max_retries=validation.integer(self.max_retries, "max_retries", 0, validation.MAX_COUNT),
            max_reclaims=validation.integer(self.max_reclaims, "max_reclaims", 0, validation.MAX_COUNT),
            max_replays=validation.integer(self.max_replays, "max_replays", 0, validation.MAX_COUNT),
            max_signals=validation.integer(self.max_signals, "max_signals", 0, validation.MAX_COUNT),
            retryable_categories=_categories(self.retryable_categories),
            on_attempt_timeout=_choice(OnAttemptTimeout, self.on_attempt_timeout, "on_attempt_timeout"),
            on_lease_loss=_choice(OnLeaseLoss, self.on_lease_loss, "on_lease_loss"),
            attempt_timeout=_optional_duration(self.attempt_timeout, "attempt_timeout"),
            deadline=_optional_duration(self.deadline, "deadline"),
            lease_ttl=validation.duration(
                self.lease_ttl, "lease_ttl", validation.MIN_LEASE_TTL, validation.MAX_LEASE_TTL
            ),
            dedup_window=validation.duration(self.dedup_window, "dedup_window"),
            retention=validation.duration(self.retention, "retention"),
        )

    def to_text(self) -> str:
        """Return the stored JSON text; equal policies have equal texts."""
        return _policy_text(self)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object to store: only the fields that differ from the defaults, with durations in seconds."""
        return _to_json(self, DEFAULT_POLICY)

    @classmethod
    def from_json(cls, document: object) -> Self:
        """Return the policy parsed from JSON. An unknown field raises an error that suggests the nearest name."""
        values = _check_fields(cls, document, "policy")
        if "backoff" in values:
            values["backoff"] = _backoff_from_json(_check_fields(Backoff, values["backoff"], "backoff"))
        return cls(**values)


def span(value: validation.Duration | None) -> timedelta:
    """Return a validated duration, which is present, as a `timedelta`."""
    assert isinstance(value, timedelta), "a policy converts its durations when it is created"
    return value


def optional_span(value: validation.Duration | None) -> timedelta | None:
    """Return a validated duration as a `timedelta`, or None if it is absent."""
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


def _check_fields(record: type[Any], document: object, what: str) -> dict[str, Any]:
    if not isinstance(document, Mapping):
        raise InvalidRequest("invalid_policy", f"{what} must be an object, not {type(document).__name__}", field=what)
    names = [item.name for item in fields(record)]
    for key in document:
        if key not in names:
            raise validation.unknown_field(what, key, names)
    return dict(document)


def _choice(kind: type[StrEnum], value: object, field: str) -> Any:
    return validation.parse_choice(kind, value, field, code="invalid_policy")


def _max_delay(value: validation.Duration | None, initial: timedelta) -> timedelta:
    if value is None:
        return max(_DEFAULT_MAX_DELAY, initial)
    longest = validation.duration(value, "backoff.max_delay")
    if longest < initial:
        message = (
            f"backoff.max_delay is {longest.total_seconds():g} s, shorter than backoff.initial, which is "
            f"{initial.total_seconds():g} s; leave out max_delay or make it longer"
        )
        raise InvalidRequest("invalid_policy", message, field="backoff.max_delay")
    return longest


def _backoff_from_json(values: dict[str, Any]) -> Backoff:
    """Return a stored backoff. Work that was stored with an `initial` above its `max_delay` still waits `max_delay`."""
    longest = validation.duration(values.get("max_delay", _DEFAULT_MAX_DELAY), "backoff.max_delay")
    initial = validation.duration(values.get("initial", _DEFAULT_INITIAL), "backoff.initial")
    return Backoff(**{**values, "initial": min(initial, longest), "max_delay": longest})


def _multiplier(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= 1000:
        message = "backoff.multiplier must be a number between 1 and 1000"
        raise InvalidRequest("out_of_range", message, field="backoff.multiplier", minimum=1, maximum=1000)
    return float(value)


def _categories(value: object) -> tuple[str, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Collection):
        raise validation.wrong_type("retryable_categories", "a collection of names", value)
    return tuple(sorted({validation.name(item, "retryable_categories") for item in value}))


def _optional_duration(value: object, what: str) -> timedelta | None:
    return None if value is None else validation.duration(value, what, timedelta(milliseconds=1))


DEFAULT_BACKOFF = Backoff()
DEFAULT_POLICY = Policy()


class FailureClass(StrEnum):
    """The class of a failure. Failures of class `permanent` and `cancelled` are never retried."""

    TRANSIENT = "transient"
    PERMANENT = "permanent"
    INFRA_CRASH = "infra_crash"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"


_NEVER_RETRIED = frozenset({FailureClass.PERMANENT, FailureClass.CANCELLED})


def may_retry(policy: Policy, retries_taken: int, failure_class: FailureClass, category: str) -> bool:
    """Return True if the policy allows another retry after a failure of this class and category."""
    if failure_class in _NEVER_RETRIED or retries_taken >= policy.max_retries:
        return False
    return not policy.retryable_categories or category in policy.retryable_categories


def backoff_delay(backoff: Backoff, retries_taken: int, chance: float) -> timedelta:
    """Return the delay before the next retry; `chance` in [0, 1) is the random number for full jitter."""
    initial, max_delay = span(backoff.initial), span(backoff.max_delay)
    delay = initial
    if backoff.kind is BackoffKind.EXPONENTIAL and initial:
        try:
            grown = initial.total_seconds() * backoff.multiplier**retries_taken
            delay = timedelta(seconds=min(grown, max_delay.total_seconds()))
        except OverflowError:
            delay = max_delay
    return delay * chance if backoff.jitter else delay
