"""Arrays as PostgreSQL writes them. A driver looks at every element of a list; one text costs a third of that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

Write = Callable[[Sequence[Any]], str]


def written(kind: str | None, values: Any) -> Any:
    """The array of a column of that kind; what has no kind, or is null, stays as it is."""
    return values if kind is None or values is None else _WAYS[kind](values)


def _texts(values: Sequence[str | None]) -> str:
    if None not in values:
        joined = '","'.join(values)  # type: ignore[arg-type]
        # Nothing to be escaped, unless there are more quotes than those that were just put there.
        if values and "\\" not in joined and joined.count('"') == 2 * (len(values) - 1):
            return f'{{"{joined}"}}'
    return _listed("NULL" if value is None else _quoted(value) for value in values)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _others(show: Callable[[Any], str]) -> Write:
    return lambda values: _listed(["NULL" if value is None else show(value) for value in values])


def _listed(values: Iterable[str]) -> str:
    return f"{{{','.join(values)}}}"


_WAYS: dict[str, Write] = {
    "TEXT": _texts,
    "UUID": _others(lambda value: value.hex),
    "BIGINT": _others(str),
    "INTEGER": _others(str),
    "BOOLEAN": _others(lambda value: "t" if value else "f"),
    "TIMESTAMPTZ": _others(lambda value: f'"{value.isoformat()}"'),
}
