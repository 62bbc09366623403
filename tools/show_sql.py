#!/usr/bin/env python3
"""Print the SQL that a backend sends for a named statement, with fragments, overrides and translation applied.

usage: python tools/show_sql.py [NAME ...] [--backend postgres|sqlite] [--schema SCHEMA]

Without a name, the tool lists all statements with the files that define them.

A batch statement is shown as it is sent for one row. PostgreSQL receives the rows of a batch as one JSON document, and
several batch statements may be combined into one. An update sets only the columns for which it gets values.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from flowfabric.store import statements
from flowfabric.store.statements import Dialect, Part, Statement

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(statements.__file__).parent
PACKAGE = SHARED.parent
BACKENDS = ("postgres", "sqlite")
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load(backend: str, schema: str = "flowfabric") -> Mapping[str, Statement]:
    """Return all statements of a backend, translated into its dialect."""
    prefixes = {"postgres": f'"{schema}".', "sqlite": "ff_"}
    dialect = Dialect(table_prefix=prefixes[backend], numbered=backend == "postgres")
    return statements.load_statements(dialect, f"flowfabric.backends.{backend}")


def sources(backend: str) -> dict[str, Path]:
    """Return the file that defines each statement of a backend. A file of the backend overrides a shared file."""
    folders = (SHARED / "sql", PACKAGE / "backends" / backend / "sql")
    files = [path for folder in folders for path in sorted(folder.glob("*.sql"))]
    return {name: path for path in files for name in _NAME.findall(path.read_text(encoding="utf-8"))}


def sent(part: Part) -> str:
    """Return the SQL text of one part of a statement as it is sent for a single row."""
    if part.rows:
        return statements.combine_batches((part,))
    return part.over(1) if ":items" in part.text else part.text


def show(name: str, backend: str, schema: str) -> Iterator[str]:
    """Yield the lines that describe one statement of a backend."""
    statement = load(backend, schema)[name]
    yield f"-- {backend}: {name}, from {sources(backend)[name].relative_to(ROOT)}"
    for part in statement.parts:
        if part.parameters:
            yield f"-- {_binding(part, backend)}: {', '.join(part.parameters)}"
        yield f"{sent(part)};"


def _binding(part: Part, backend: str) -> str:
    if part.rows:
        return "$1 is a JSON array of objects with"
    if backend == "postgres":
        return "parameters from $1 on"
    return "columns of each row" if ":items" in part.text else "named parameters"


def listing(backends: Sequence[str]) -> Iterator[str]:
    """Yield one line per statement, with the files that define it."""
    found = {backend: sources(backend) for backend in backends}
    for name in sorted({name for files in found.values() for name in files}):
        places = {backend: files[name] for backend, files in found.items() if name in files}
        paths = sorted({str(path.relative_to(PACKAGE)) for path in places.values()})
        yield f"{name}  {', '.join(paths)}"


def main(arguments: Sequence[str]) -> int:
    """Print the named statements, or a list of all statements. Return 2 if a name is unknown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a statement; without one all are listed")
    parser.add_argument("--backend", choices=BACKENDS, action="append", help="show only this backend")
    parser.add_argument("--schema", default="flowfabric", help="the schema on PostgreSQL (flowfabric)")
    options = parser.parse_args(arguments)
    backends = options.backend or BACKENDS
    if not options.names:
        print(*listing(backends), sep="\n")
        return 0
    for name in options.names:
        having = [backend for backend in backends if name in load(backend)]
        if not having:
            close = difflib.get_close_matches(name, {known for backend in backends for known in load(backend)})
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            print(f"show_sql: no statement {name!r} on {' or '.join(backends)}{hint}", file=sys.stderr)
            return 2
        for backend in backends:
            missing = f"-- {backend}: has no statement {name}"
            print(*(show(name, backend, options.schema) if backend in having else [missing]), sep="\n", end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
