"""Options of tasks, submits and steps. An invalid option is refused where it is written, with a valid example."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeAlias

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.ids import parse_new_id
from flowfabric.core.policy import Backoff
from flowfabric.runtime.signals import Signal

Retryable: TypeAlias = str | type[Exception]
Check: TypeAlias = Callable[[Any, str], Any]


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are not None, with their values converted. Raise if one is invalid."""
    return {name: check_option(name, value) for name, value in options.items() if value is not None}


def check_option(name: str, value: Any) -> Any:
    """Return the converted value of an option. Raise an error with an example if the value is invalid."""
    check, example = _OPTIONS[name]
    try:
        return check(value, name)
    except InvalidRequest as error:
        message = f"{error.message}; for example {name}={example}"
        raise InvalidRequest(error.code, message, **{**error.fields, "field": name}) from None


def check_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the converted settings of `@app.task(…)`. Raise if one is invalid or unknown."""
    for name in settings:
        if name not in TASK_SETTINGS:
            message = f"app.task has no option {name!r}; its options are name, {', '.join(TASK_SETTINGS)}"
            raise InvalidRequest("unknown_field", message, field=name)
    return check_options(settings)


def _whole_number(value: object, name: str, minimum: int = 0) -> int:
    return validation.integer(value, name, minimum, validation.MAX_COUNT)


def _backoff(value: object, name: str) -> Backoff:
    if not isinstance(value, Backoff):
        raise validation.wrong_type(name, "a Backoff", value)
    return value


def _priority(value: object, name: str) -> int:
    return validation.priority(value)


def _tags(value: object, name: str) -> dict[str, str]:
    return validation.tags(value)


def _id(value: object, name: str) -> Any:
    return parse_new_id(value)


def _anything(value: object, name: str) -> object:
    return value


def _signals(value: object, name: str) -> tuple[Signal[Any], ...]:
    return _collect(value, name, "Signal objects", lambda signal: isinstance(signal, Signal))


def _raises(value: object, name: str) -> tuple[type[Exception], ...]:
    return _collect(value, name, "exception classes", _is_exception_class)


def _retry_on(value: object, name: str) -> tuple[Retryable, ...]:
    retryables: tuple[Retryable, ...] = _collect(value, name, "categories and exception classes", _is_retryable)
    return tuple(validation.name(each, name) if isinstance(each, str) else each for each in retryables)


def _collect(value: object, name: str, expected: str, is_valid: Callable[[object], bool]) -> tuple[Any, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Collection):
        shown = value.__name__ if isinstance(value, type) else validation.preview(value)
        raise InvalidRequest("invalid_type", f"{name} must be a collection of {expected}, not {shown}", field=name)
    for each in value:
        if not is_valid(each):
            message = f"{name} must contain {expected}, not {validation.preview(each)}"
            raise InvalidRequest("invalid_type", message, field=name)
    return tuple(value)


def _is_exception_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def _is_retryable(value: object) -> bool:
    return isinstance(value, str) or _is_exception_class(value)


# The check of each option, and an example of its value.
_OPTIONS: Mapping[str, tuple[Check, str]] = {
    "at": (validation.timestamp, "datetime(2031, 5, 1, tzinfo=UTC)"),
    "backoff": (_backoff, 'Backoff(initial="2s")'),
    "cancel_grace": (validation.duration, '"10s"'),
    "connection": (_anything, ""),
    "creator": (validation.name, '"ann"'),
    "deadline": (validation.duration, '"1d"'),
    "delay": (validation.duration, '"15m"'),
    "detached": (validation.boolean, "True"),
    "id": (_id, 'error.fields["id"]'),
    "key": (validation.name, '"order-17"'),
    "key_window": (validation.duration, '"7d"'),
    "lane": (validation.name, '"mail"'),
    "name": (validation.name, '"extract"'),
    "priority": (_priority, "10"),
    "raises": (_raises, "[CardDeclined]"),
    "requires": (validation.capabilities, '["gpu"]'),
    "retention": (validation.duration, '"90d"'),
    "retries": (_whole_number, "5"),
    "retry_on": (_retry_on, "[TimeoutError]"),
    "signals": (_signals, '[Signal("paid", Payment)]'),
    "tags": (_tags, '{"customer": "c-7"}'),
    "timeout": (validation.duration, '"30s"'),
    "version": (partial(_whole_number, minimum=1), "2"),
}  # fmt: skip
TASK_SETTINGS = (
    "version", "retries", "backoff", "timeout", "deadline", "lane", "priority", "requires", "retention", "signals",
    "raises", "cancel_grace", "retry_on",
)  # fmt: skip
