"""Converts exceptions to stored records, and stored records back to exceptions that the code declared.

Classes are never imported or unpickled by name. A failure is restored as a record. If its class was declared with
`raises=`, the exception itself is rebuilt from plain JSON arguments.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.values import guards
from flowfabric.values.codecs import codec_for
from flowfabric.values.errors import (
    AllFailed,
    ExecutionCancelled,
    ExecutionExpired,
    ExecutionFailed,
    ExecutionSkipped,
    PermanentError,
    StepFailed,
    ValueRefused,
    WaitOverridden,
)
from flowfabric.values.records import ErrorInfo, class_name, same_class
from flowfabric.values.signatures import EMPTY

MAX_MESSAGE_CHARACTERS = 3_000
MAX_TRACEBACK_CHARACTERS = 12_000

# For these exceptions, all retries are used up already, or a retry cannot help.
_FINAL = (
    AllFailed, ExecutionCancelled, ExecutionExpired, ExecutionFailed, ExecutionSkipped, PermanentError, StepFailed,
    SystemExit, ValueRefused, WaitOverridden,
)  # fmt: skip
_CUT = "\n[…]\n"
_NO_CATEGORY = "error"


def error_info(exc: BaseException) -> ErrorInfo:
    """Return the record of an exception, with each text shortened to its limit.

    The exception itself loses the frames of this package, so that it looks the same in a log as in its record.
    """
    fold_frames(exc)
    return ErrorInfo(
        type=guards.type_name(exc),
        message=_clean_text(error_message(exc), MAX_MESSAGE_CHARACTERS),
        bases=_list_bases(exc),
        traceback=format_safely(exc),
        category=_get_category(exc),
        permanent=is_permanent(exc),
    )


def is_declared(exc: BaseException, raises: Collection[type[Exception]]) -> bool:
    """Return True if the class of the exception, or one of its base classes, is in `raises`."""
    return any(base is declared for base in guards.bases_of(type(exc)) for declared in raises)


def is_permanent(exc: BaseException, raises: Collection[type[Exception]] = ()) -> bool:
    """Return True if a retry cannot help.

    A retry cannot help for the classes in `_FINAL`, the classes in `raises`, and groups that contain only such
    exceptions.
    """
    return all(guards.is_a(inner, *_FINAL, *raises) for inner in iter_leaves(exc))


def to_json(info: ErrorInfo) -> dict[str, Any]:
    """Return the record as plain JSON."""
    return asdict(info) | {"bases": list(info.bases)}


def from_json(document: Mapping[str, Any]) -> ErrorInfo:
    """Return the record parsed from JSON; missing fields are empty."""
    return ErrorInfo(
        type=str(document.get("type", "Exception")),
        message=str(document.get("message", "")),
        bases=tuple(str(base) for base in document.get("bases", ())),
        traceback=str(document.get("traceback", "")),
        category=str(document.get("category", "")),
        permanent=bool(document.get("permanent", False)),
    )


def encode_declared(exc: BaseException, raises: Collection[type[Exception]]) -> dict[str, Any] | None:
    """Return the name of the exception's nearest class in `raises` and its args, from which `rebuild` makes it again.

    Return None if no class matches or the rebuilt exception would differ. In that case the caller gets only the record
    of the failure.
    """
    kind = next((base for base in guards.bases_of(type(exc)) if any(base is declared for declared in raises)), None)
    if kind is None:
        return None
    args = guards.args_of(exc)
    data = {"class": class_name(kind), "args": list(args)}
    try:
        codec_for(EMPTY, what="the args of an exception").store(data["args"])
    except InvalidRequest:
        return None
    rebuilt = rebuild(data, raises)
    return data if rebuilt is not None and guards.guarded(lambda: guards.args_of(rebuilt) == args, False) else None


def rebuild(data: Mapping[str, Any], raises: Collection[type[Exception]]) -> Exception | None:
    """Return the declared exception, or None if its class is not in `raises` or does not accept the args."""
    recorded = str(data.get("class", ""))
    kind = next((kind for kind in raises if same_class(recorded, class_name(kind))), None)
    if kind is None:
        return None
    try:
        exc = kind(*data.get("args", ()))
    except BaseException:
        return None
    return exc if guards.is_a(exc, kind) and guards.has_own_class(exc) else None


def _list_bases(exc: BaseException) -> tuple[str, ...]:
    """Return the names of the exception's class and base classes, and those of the failure that it wraps."""
    own = [class_name(base) for base in guards.bases_of(type(exc)) if base is not object]
    wrapped = wrapped_error(exc)
    return tuple(dict.fromkeys((*own, *(wrapped.bases if wrapped else ()))))


def wrapped_error(exc: BaseException) -> ErrorInfo | None:
    """Return the recorded failure of a step or an execution that the exception reports, or None."""
    if not guards.is_a(exc, StepFailed, ExecutionFailed):
        return None
    # A subclass of the user may not have called our `__init__`.
    info = guards.guarded(lambda: object.__getattribute__(exc, "error"), None)
    return info if type(info) is ErrorInfo else None


def _get_category(exc: BaseException) -> str:
    """Return the `category` attribute of the exception, or its class name, or `error` if neither is a valid name."""
    # `category` may be missing or invalid, or a property that raises. A class made by `type()` may have any name.
    category = guards.guarded(lambda: validation.name(getattr(exc, "category", None), "category"), None)
    if category is not None:
        return category
    shortened = guards.type_name(exc)[: validation.MAX_NAME_CHARACTERS]
    return guards.guarded(lambda: validation.name(shortened, "category"), _NO_CATEGORY)


def _clean_text(text: str, maximum: int) -> str:
    """Return the text as valid Unicode without NUL, shortened in the middle."""
    text = text.encode(errors="backslashreplace").decode().replace("\x00", "\\x00")
    if len(text) <= maximum:
        return text
    half = (maximum - len(_CUT)) // 2
    return f"{text[:half]}{_CUT}{text[-half:]}"


_PACKAGE_DIR = Path(__file__).parent.parent
_OWN_FILES = f"{_PACKAGE_DIR}{os.sep}"
# The tasks of the demo are programs, although they are part of the package.
_DEMO_FILES = f"{_PACKAGE_DIR / 'demo'}{os.sep}"
_OWN_MODULES, _DEMO_MODULE = "flowfabric.", "flowfabric.demo"
_MAX_EXCEPTIONS = 100
_MAX_PRINTED = 5
_MAX_FRAMES = 20
_MAX_LINE_CHARACTERS = 300


def format_safely(error: BaseException) -> str:
    """Return the exception with its traceback, shortened to the limit, even if its attributes raise."""
    for form in (format_traceback, _format_shortened, _format_line):
        text = guards.guarded(partial(form, error), None)
        if text is not None:
            return _clean_text(text, MAX_TRACEBACK_CHARACTERS)
    return guards.type_name(error)


def format_traceback(error: BaseException) -> str:
    """Return the exception with its traceback and its notes, and the exceptions that led to it."""
    if _has_many_related(error):
        return _format_shortened(error)
    try:
        return "".join(traceback.format_exception(type(error), error, _fold(guards.traceback_of(error))))
    except RecursionError:  # The exception was raised with little stack left.
        return _format_shortened(error)


def fold_frames(error: BaseException) -> None:
    """Remove the frames of this package from the tracebacks of an exception and of its causes.

    Logs and debuggers then end in the code of the user. A traceback without such code stays as it is.
    """
    for related in islice(_iter_related(error), _MAX_EXCEPTIONS):
        guards.set_traceback(related, _fold(guards.traceback_of(related)))


def find_place(error: BaseException) -> str | None:
    """Return the innermost file, line and function outside this package, or None if there is no traceback."""
    frames = [entry for entry in _iter_frames(guards.traceback_of(error)) if not _is_own(entry)]
    if not frames:
        return None
    code = frames[-1].tb_frame.f_code
    return f"{code.co_filename}:{frames[-1].tb_lineno} in {code.co_name}"


def is_printable(error: BaseException) -> bool:
    """Return True if Python can print the exception to any stream, although its class may have replaced attributes."""
    return not _has_many_related(error) and guards.guarded(lambda: _encode_traceback(error) != b"", False)


def _encode_traceback(error: BaseException) -> bytes:
    # A lone surrogate in the text would raise here, and in every file that a log handler writes.
    return "".join(traceback.format_exception(error)).encode()


def _has_many_related(error: BaseException) -> bool:
    return sum(1 for _ in islice(_iter_related(error), _MAX_EXCEPTIONS + 1)) > _MAX_EXCEPTIONS


def iter_leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions in a group and its subgroups, or the exception itself if it is not a group."""
    pending = [error]
    while pending:
        current = pending.pop()
        if guards.is_a(current, BaseExceptionGroup):
            pending += reversed(guards.members_of(current))
        else:
            yield current


def error_message(error: BaseException) -> str:
    """Return the text of the exception, even if its `__str__` fails."""
    text = guards.text_of(error)
    return f"<{guards.type_name(error)} whose __str__ failed>" if text is None else text


def _iter_related(error: BaseException) -> Iterator[BaseException]:
    """Yield each exception that a full traceback would print, without repeats."""
    pending, visited = [error], set[int]()
    while pending:
        current = pending.pop()
        if id(current) not in visited:
            visited.add(id(current))
            yield current
            pending += guards.members_of(current)
            pending += [cause] if (cause := guards.cause_of(current)) is not None else []


def _format_shortened(error: BaseException) -> str:
    chain = list(_iter_chain(error))[::-1]
    if len(chain) <= 2 * _MAX_PRINTED:
        return "\nwhich led to:\n\n".join(map(_format_single, chain))
    first, last = chain[:_MAX_PRINTED], chain[-_MAX_PRINTED:]
    omitted = f"[… {len(chain) - 2 * _MAX_PRINTED} more]\n"
    return "\nwhich led to:\n\n".join([*map(_format_single, first), omitted, *map(_format_single, last)])


def _iter_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception, its cause, the cause of its cause, and so on."""
    visited, current = set[int](), error
    while id(current) not in visited:
        visited.add(id(current))
        yield current
        cause = guards.cause_of(current)
        current = current if cause is None else cause


def _format_single(error: BaseException) -> str:
    frames = traceback.format_tb(_fold(guards.traceback_of(error)), limit=-_MAX_FRAMES)
    lines = ["Traceback (most recent call last):\n", *frames] if frames else []
    lines.append(_format_line(error))
    if guards.is_a(error, BaseExceptionGroup):
        members = list(iter_leaves(error))
        lines += [f"  | {_format_line(member)}" for member in members[:_MAX_PRINTED]]
        lines += [f"  | [… {len(members) - _MAX_PRINTED} more]\n"] if len(members) > _MAX_PRINTED else []
    return "".join(lines)


def _format_line(error: BaseException) -> str:
    return f"{guards.qualified_name(type(error))}: {error_message(error)}"[:_MAX_LINE_CHARACTERS] + "\n"


def _fold(tb: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames of this package, or all of it if it has no other frames."""
    folded: TracebackType | None = None
    for entry in reversed([entry for entry in _iter_frames(tb) if not _is_own(entry)]):
        folded = TracebackType(folded, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return folded or tb


def _iter_frames(tb: TracebackType | None) -> Iterator[TracebackType]:
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _is_own(entry: TracebackType) -> bool:
    """Return True for a frame of this package. Generated code, such as that of a dataclass, has only a module."""
    file, module = entry.tb_frame.f_code.co_filename, entry.tb_frame.f_globals.get("__name__")
    if file.startswith(_OWN_FILES):
        return not file.startswith(_DEMO_FILES)
    return type(module) is str and f"{module}.".startswith(_OWN_MODULES) and not module.startswith(_DEMO_MODULE)
