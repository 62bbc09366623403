"""How a failure is told in full: as Python prints it, or shortened if it hangs together of too many exceptions. Groups
and chains may be thousands deep, so they are never walked by recursion."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType

import flowfabric

_OURS = str(Path(flowfabric.__file__).parent)
_MOST_EXCEPTIONS = 100
_SHOWN = 5
_FRAMES = 20
_LINE = 300


def told(error: BaseException) -> str:
    """The exception with its traceback and whatever it was raised from."""
    if sum(1 for _ in islice(_related(error), _MOST_EXCEPTIONS + 1)) > _MOST_EXCEPTIONS:
        return _shortened(error)
    try:
        return "".join(traceback.format_exception(type(error), error, _from_the_code(error.__traceback__)))
    except RecursionError:  # Little room is left where it was raised.
        return _shortened(error)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions within a group, those of groups within it too; or the exception itself, if it is none."""
    rest = [error]
    while rest:
        found = rest.pop()
        if isinstance(found, BaseExceptionGroup):
            rest += reversed(found.exceptions)
        else:
            yield found


def message_of(error: BaseException) -> str:
    """What it says."""
    try:
        return str(error)
    except Exception:
        return f"<{type(error).__name__} whose text cannot be made>"


def _related(error: BaseException) -> Iterator[BaseException]:
    """All that would be printed with it, each once."""
    rest, seen = [error], set[int]()
    while rest:
        found = rest.pop()
        if id(found) not in seen:
            seen.add(id(found))
            yield found
            rest += found.exceptions if isinstance(found, BaseExceptionGroup) else ()
            rest += [cause] if (cause := _cause(found)) is not None else []


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _shortened(error: BaseException) -> str:
    chain = list(_chain(error))[::-1]
    if len(chain) <= 2 * _SHOWN:
        return "\nwhich led to:\n\n".join(map(_alone, chain))
    first, last = chain[:_SHOWN], chain[-_SHOWN:]
    left = f"[… {len(chain) - 2 * _SHOWN} more]\n"
    return "\nwhich led to:\n\n".join([*map(_alone, first), left, *map(_alone, last)])


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, what it was raised from, and so on."""
    seen, found = set[int](), error
    while id(found) not in seen:
        seen.add(id(found))
        yield found
        found = _cause(found) or found


def _alone(error: BaseException) -> str:
    frames = traceback.format_tb(_from_the_code(error.__traceback__), limit=-_FRAMES)
    lines = ["Traceback (most recent call last):\n", *frames] if frames else []
    lines.append(_line(error))
    if isinstance(error, BaseExceptionGroup):
        members = list(leaves(error))
        lines += [f"  | {_line(member)}" for member in members[:_SHOWN]]
        lines += [f"  | [… {len(members) - _SHOWN} more]\n"] if len(members) > _SHOWN else []
    return "".join(lines)


def _line(error: BaseException) -> str:
    return f"{type(error).__qualname__}: {message_of(error)}"[:_LINE] + "\n"


def _from_the_code(tb: TracebackType | None) -> TracebackType | None:
    """The traceback from where it leaves our own package; all of it if it never does."""
    inner = tb
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(_OURS):
        inner = inner.tb_next
    return inner or tb
