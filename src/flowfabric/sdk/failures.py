"""How failures are recorded and seen again.

Classes are never imported or unpickled by name: what comes back is a record of the failure, or one of the classes that
the code itself declared with `raises=`, made anew from plain JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest
from flowfabric.sdk import tracebacks
from flowfabric.sdk.annotations import EMPTY
from flowfabric.sdk.errors import (
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
from flowfabric.sdk.forms import form_of
from flowfabric.sdk.records import ErrorInfo, class_name, same_class
from flowfabric.sdk.tracebacks import leaves, message_of

MESSAGE_CHARACTERS = 3_000
TRACEBACK_CHARACTERS = 12_000

# Seen by the function only when nothing more can be tried, or thrown where trying again would not help.
_FINAL = (
    AllFailed, ExecutionCancelled, ExecutionExpired, ExecutionFailed, ExecutionSkipped, PermanentError, StepFailed,
    SystemExit, ValueRefused, WaitOverridden,
)  # fmt: skip
_CUT = "\n[…]\n"


def error_info(exc: BaseException) -> ErrorInfo:
    """The exception as it is recorded, each part cut to what can be stored."""
    kind = type(exc)
    return ErrorInfo(
        type=kind.__name__,
        message=_clean(message_of(exc), MESSAGE_CHARACTERS),
        bases=_bases(exc),
        traceback=_clean(_trace(exc), TRACEBACK_CHARACTERS),
        category=_category(exc),
        permanent=is_final(exc),
    )


def is_final(exc: BaseException, raises: Collection[type[Exception]] = ()) -> bool:
    """True when trying again would not help: failures that are final when seen, those that say so, classes that are
    declared in `raises`, and groups of nothing else."""
    return all(isinstance(inner, (*_FINAL, *raises)) for inner in leaves(exc))


def to_json(info: ErrorInfo) -> dict[str, Any]:
    """The record as plain JSON."""
    return {
        "type": info.type, "message": info.message, "bases": list(info.bases), "traceback": info.traceback,
        "category": info.category, "permanent": info.permanent,
    }  # fmt: skip


def from_json(document: Mapping[str, Any]) -> ErrorInfo:
    """The record behind its JSON; parts that are missing are empty."""
    return ErrorInfo(
        type=str(document.get("type", "Exception")),
        message=str(document.get("message", "")),
        bases=tuple(str(base) for base in document.get("bases", ())),
        traceback=str(document.get("traceback", "")),
        category=str(document.get("category", "")),
        permanent=bool(document.get("permanent", False)),
    )


def declared(exc: BaseException, raises: Collection[type[Exception]]) -> dict[str, Any] | None:
    """What a declared exception is made again from: the nearest class in `raises` and the args. None when it is not
    declared, or could not be made again as it is: then it is seen as a record."""
    kind = next((base for base in type(exc).__mro__ if base in raises), None)
    if kind is None:
        return None
    args = list(exc.args)
    data = {"class": class_name(kind), "args": args}
    try:
        form_of(EMPTY, what="the args of an exception").store(args)
    except InvalidRequest:
        return None
    again = rebuild(data, raises)
    return data if again is not None and again.args == exc.args else None


def rebuild(data: Mapping[str, Any], raises: Collection[type[Exception]]) -> Exception | None:
    """The declared exception, made anew; None when it was not declared, is no longer, or takes other arguments."""
    recorded = str(data.get("class", ""))
    kind = next((kind for kind in raises if same_class(recorded, class_name(kind))), None)
    if kind is None:
        return None
    try:
        exc = kind(*data.get("args", ()))
    except Exception:
        return None
    return exc if isinstance(exc, kind) else None


def _bases(exc: BaseException) -> tuple[str, ...]:
    """The classes of the exception, and of the failure that it tells about."""
    own = [class_name(base) for base in type(exc).__mro__ if base is not object]
    told = exc.error.bases if isinstance(exc, StepFailed | ExecutionFailed) else ()
    return tuple(dict.fromkeys((*own, *told)))


def _category(exc: BaseException) -> str:
    """By what policies and lists tell failures apart: the exception's own `category`, else the name of its class."""
    try:
        return limits.name(getattr(exc, "category", None), "category")
    except Exception:  # None, nothing that the engine takes, or a property that fails.
        return type(exc).__name__[: limits.NAME_CHARACTERS]


def _trace(exc: BaseException) -> str:
    try:
        own = tracebacks.told(exc)
    except Exception:
        return ""
    before = exc.error.traceback if isinstance(exc, StepFailed | ExecutionFailed) else ""
    return f"{before}\nwhich was seen as:\n\n{own}" if before else own


def _clean(text: str, most: int) -> str:
    """Text that can be stored: valid Unicode without NUL, cut in the middle."""
    text = text.encode(errors="backslashreplace").decode().replace("\x00", "\\x00")
    if len(text) <= most:
        return text
    half = (most - len(_CUT)) // 2
    return f"{text[:half]}{_CUT}{text[-half:]}"
