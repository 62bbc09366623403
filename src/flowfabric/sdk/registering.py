"""Registering functions as tasks: what can be one, and under which kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest
from flowfabric.sdk import retrying
from flowfabric.sdk.tasks import Task, TaskForms, TaskSettings
from flowfabric.sdk.values import Names, inputs_of, return_form


class Registry:
    """The tasks of an app by kind, and the newest version of each."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task[..., Any]] = {}
        self._newest: dict[str, Task[..., Any]] = {}
        self.tasks: Mapping[str, Task[..., Any]] = MappingProxyType(self._tasks)

    def add(self, task: Task[..., Any]) -> None:
        """Takes a task in; a kind that is taken already is refused with both places."""
        other = self._tasks.get(task.name)
        if other is not None:
            message = (
                f"two tasks of this app are named {task.name!r}, at {place_of(other.fn)} and {place_of(task.fn)}; "
                f"give one of them another name= or a higher version="
            )
            raise InvalidRequest("kind_taken", message, kind=task.name)
        self._tasks[task.name] = task
        newest = self._newest.get(task.base)
        if newest is None or newest.settings.version < task.settings.version:
            self._newest[task.base] = task

    def newest(self, base: str) -> Task[..., Any] | None:
        """The newest version under this name."""
        return self._newest.get(base)


def forms_of(fn: Callable[..., Any], names: Names | None) -> TaskForms:
    """How a function that can be a task takes and answers values; `names` are those of the frame it is written in."""
    inputs = inputs_of(fn, names)
    _refuse_methods(fn)
    return TaskForms(inputs, is_async=inspect.iscoroutinefunction(fn), result=lambda: return_form(fn, names))


def base_name(fn: Callable[..., Any], name: str | None) -> str:
    """The name of a task without its version: the function's, unless told."""
    found = limits.name(fn.__name__ if name is None else name, "name of the task")
    if "@" in found:
        message = f"{found!r} holds an @, which separates name and version; use version="
        raise InvalidRequest("invalid_name", message, field="name")
    return found


def place_of(fn: Callable[..., Any]) -> str:
    """Where a function is defined, as file:line."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(fn)


def checked_settings(given: Mapping[str, Any]) -> TaskSettings:
    """The settings of a task, each as it will be applied."""
    values = {word: value for word, value in given.items() if value is not None}
    for word in ("signals", "raises"):
        values[word] = tuple(values.get(word, ()))
    values["retry_on"] = retrying.checked(values.get("retry_on", ()))
    for kind in values["raises"]:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            message = f"raises must hold exception classes, not {limits.shown(kind)}"
            raise InvalidRequest("invalid_type", message, field="raises")
    return TaskSettings(**values)


def _refuse_methods(fn: Callable[..., Any]) -> None:
    """Refuses functions in the body of a class, whatever their parameters say: there is no instance to call them on."""
    outer = fn.__qualname__.rpartition(".")[0]
    if outer and not outer.endswith("<locals>"):
        message = f"{fn.__qualname__} cannot be a task: it belongs to a class at {place_of(fn)}; use a function"
        raise InvalidRequest("invalid_task", message, function=fn.__qualname__)
