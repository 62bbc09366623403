"""Generate docs/reference/api.md and engine-api.md with the signature and docstring of every public name."""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from types import UnionType
from typing import Any, get_overloads

GROUPS = (
    "executions", "leases", "flows", "waitpoints", "signals", "keys", "operator", "lanes", "workers", "events",
    "reconcilers",
)  # fmt: skip
# Descriptions of public values that are neither classes nor functions, and so have no docstring.
_VALUES = {
    "flowfabric.Durable": "The type of durable calls. `Durable[T]` is `Coroutine[None, None, T]`, to be awaited.",
    "flowfabric.logger": "The logger `flowfabric.task`. It logs nothing while a task replays its journal.",
    "flowfabric.step": "Call a function once and record its result. Later runs return the recorded result.",
}
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
# Names that are public only for other packages of flowfabric.
_HIDDEN = {"hint", "newest", "result_codec", "submission", "submission_of", "with_ids"}
# Users call only these methods of the awaitables, before they await them. The page leaves out the others.
_ONLY = {"Approval": {"links", "tokens"}, "Callback": {"token", "url"}}
_MADE_BY_US = {
    "Approval", "Callback", "Compensations", "Engine", "Flow", "FlowHandle", "Handle", "Node", "Subscription",
    "SyncKit", "Task", "Worker", "WorkWatch",
}  # fmt: skip
_LONGEST_DEFAULT = 40
_LONGEST_LINE = 100


def page() -> str:
    """Return the page about durable functions, their synchronous API, and the testing kit."""
    parts = [_HEAD]
    parts += _face("flowfabric", "Durable functions")
    parts += ["## flowfabric.sync", _SYNC.format(names=", ".join(f"`{name}`" for name in _sync_names()))]
    parts += _face("flowfabric.testing", "Tests")
    return "\n\n".join(parts) + "\n"


def engine_page() -> str:
    """Return the page about the engine."""
    parts = [_ENGINE_HEAD]
    for group in GROUPS:
        kind = _group_class(group)
        parts += [f"## engine.{group}", _doc(kind), *(_method(name, fn) for name, fn in _methods(kind))]
    return "\n\n".join([*parts, *_face("flowfabric.engine", "Names")]) + "\n"


def _face(module: str, title: str) -> list[str]:
    face = import_module(module)
    parts = [f"## {module}", f"{title}. `from {module} import …`"]
    for name in sorted(face.__all__, key=str.lower):
        parts += [f'### <a id="{module}.{name}"></a>`{name}`', *_described(f"{module}.{name}", getattr(face, name))]
    return parts


def _described(name: str, value: Any) -> list[str]:
    if name in _VALUES:
        methods = [] if name.endswith("logger") else [_method(*item) for item in _methods(type(value))]
        called = _signatures("step", type(value).__call__, bound=True) if name == "flowfabric.step" else ""
        return [part for part in (called, _VALUES[name], *methods) if part]
    if isinstance(value, UnionType):
        return [f"Any of {', '.join(f'`{kind.__name__}`' for kind in value.__args__)}."]
    if inspect.isclass(value):
        return list(_class(value))
    return [_signatures(name.rpartition(".")[2], value), _doc(value)]


def _class(kind: type) -> Iterator[str]:
    if issubclass(kind, enum.Enum):
        yield _doc(kind)
        yield "Values: " + ", ".join(f"`{member.value}`" for member in kind) + "."
        return
    if issubclass(kind, BaseException):
        yield f"Inherits from `{next(base.__name__ for base in kind.__mro__[1:] if base.__name__[0] != '_')}`."
    if dataclasses.is_dataclass(kind):
        yield _fields(kind)
    elif "__init__" in vars(kind) and kind.__name__ not in _MADE_BY_US:
        yield _signatures(kind.__name__, kind.__init__, bound=True)
    yield _doc(kind)
    for name, fn in _methods(kind):
        yield _method(name, fn)


def _fields(kind: type) -> str:
    lines = [f"{item.name}: {item.type}{_default(item)}" for item in dataclasses.fields(kind)]
    return _code([f"{kind.__name__}(", *(f"    {line}," for line in lines), ")"] if lines else [f"{kind.__name__}()"])


def _default(item: dataclasses.Field[Any]) -> str:
    if item.default is not dataclasses.MISSING:
        return f" = {_value(item.default)}"
    return " = …" if item.default_factory is not dataclasses.MISSING else ""


def _methods(kind: type) -> list[tuple[str, Any]]:
    found = {
        name: value
        for base in reversed(kind.__mro__)
        if base.__module__.startswith("flowfabric.")
        for name, value in vars(base).items()
        if not name.startswith("_") and name not in _HIDDEN and _is_described(value)
    }
    only = _ONLY.get(kind.__name__, set(found))
    return sorted((name, value) for name, value in found.items() if name in only)


def _is_described(value: Any) -> bool:
    return isinstance(value, property | classmethod | staticmethod) or inspect.isfunction(value)


def _method(name: str, value: Any) -> str:
    if isinstance(value, property):
        return f"**`.{name}`** {_doc(value)}"
    fn = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    return f"{_signatures(name, fn, bound=not isinstance(value, staticmethod), dotted=True)}\n\n{_doc(fn)}"


def _signatures(name: str, fn: Callable[..., Any], *, bound: bool = False, dotted: bool = False) -> str:
    prefix = "async " if inspect.iscoroutinefunction(fn) else ""
    head = f"{prefix}{'.' if dotted else ''}{name}"
    return _code([_signature(head, item, bound=bound) for item in _overloads(fn) or [inspect.signature(fn)]])


def _overloads(fn: Callable[..., Any]) -> list[inspect.Signature]:
    """Return the signatures of a function's overloads.

    Each option of `**options: Unpack[…]` becomes a separate parameter.
    """
    overloads = [inspect.signature(item) for item in get_overloads(fn)]
    all_parameters = inspect.signature(fn).parameters
    shared = all_parameters.keys() - {name for overload in overloads for name in overload.parameters}
    for place, overload in enumerate(overloads):
        if any(str(item.annotation).startswith("Unpack[") for item in overload.parameters.values()):
            parameters = {**all_parameters, **overload.parameters}
            named = shared | overload.parameters.keys()
            overloads[place] = overload.replace(
                parameters=[parameters[name] for name in all_parameters if name in named]
            )
    return overloads


def _signature(head: str, signature: inspect.Signature, *, bound: bool) -> str:
    parameters = list(signature.parameters.values())[1 if bound else 0 :]
    shown, kinds = [], [item.kind for item in parameters]
    for place, item in enumerate(parameters):
        if (
            item.kind is item.KEYWORD_ONLY
            and item.VAR_POSITIONAL not in kinds
            and kinds.index(item.KEYWORD_ONLY) == place
        ):
            shown.append("*")
        shown.append(_parameter(item))
        if item.kind is item.POSITIONAL_ONLY and kinds[place + 1 : place + 2] != [item.POSITIONAL_ONLY]:
            shown.append("/")
    answer = signature.return_annotation
    tail = "" if answer is signature.empty or head[0].isupper() else f" -> {_annotation(answer)}"
    line = f"{head}({', '.join(shown)}){tail}"
    if len(line) <= _LONGEST_LINE:
        return line
    return "\n".join([f"{head}(", *(f"    {item}," for item in shown), f"){tail}"])


def _parameter(item: inspect.Parameter) -> str:
    stars = "*" * (item.kind is item.VAR_POSITIONAL) + "**" * (item.kind is item.VAR_KEYWORD)
    note = "" if item.annotation is item.empty else f": {_annotation(item.annotation)}"
    default = "" if item.default is item.empty else f"{' = ' if note else '='}{_value(item.default)}"
    return f"{stars}{item.name}{note}{default}"


def _annotation(note: Any) -> str:
    return note if isinstance(note, str) else getattr(note, "__name__", str(note))


def _value(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return repr(value.value)
    text = repr(value)
    return text if len(text) <= _LONGEST_DEFAULT and "<" not in text else f"{type(value).__name__}(…)"


def _group_class(group: str) -> type:
    module = import_module("flowfabric.reconcilers.loop" if group == "reconcilers" else f"flowfabric.engine.{group}")
    kind = getattr(module, group.capitalize())
    assert isinstance(kind, type), "a group is a class"
    return kind


def _sync_names() -> list[str]:
    return sorted(import_module("flowfabric.sync").__all__, key=str.lower)


def _doc(value: Any) -> str:
    return inspect.getdoc(value) or ""


def _code(lines: list[str]) -> str:
    return "\n".join(["```text", *lines, "```"])


_HEAD = """# API: durable functions and tests

<!-- Written by tools/generate_reference.py from signatures and docstrings. Change those. -->

`Durable[X]` is an awaitable that returns an `X`. `Duration` is a `timedelta`, a number of seconds, or text such
as `"500ms"`, `"30s"`, `"15m"`, `"2h"`, `"1d"`. `Async` is a coroutine function. The engine is documented on
[a separate page](engine-api.md)."""

_SYNC = """The calls for tasks that are plain functions. Each call returns its value directly instead of an awaitable.
`approval` and `callback` have `.wait()`. `gather`, `settle` and `race` take functions without arguments.

{names}"""

_ENGINE_HEAD = """# API: the engine

<!-- Written by tools/generate_reference.py from signatures and docstrings. Change those. -->

`async with connect(url) as engine:` opens an `Engine`. Its operations are grouped by the objects they change.
[The engine below durable functions](../engine.md) explains how they work together."""
