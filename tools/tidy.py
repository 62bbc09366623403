#!/usr/bin/env python3
"""Measure the size and the prose of each package, and keep tests/tidy_ratchet.toml up to date.

usage: python tools/tidy.py [--update]

    code      lines of code of a package of src, without blanks, imports, docstrings and comments
    markers   marker words per 10,000 words of docstrings, comments, messages and Markdown; see tools/prose.py
    tables    how many literal tables are exempt from the formatter

tests/tidy_ratchet.toml has one limit for each number of a package, and tests/test_tidy.py fails if a number exceeds its
limit. The test also fails if a limit is far above the measured number, so that a package that became smaller stays
small. `--update` sets the limits from the current numbers. If a number rises, explain the reason in the commit message.
"""

from __future__ import annotations

import argparse
import ast
import io
import math
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import tidy_limits as limits  # noqa: E402
from tests import tidy_rules as rules  # noqa: E402
from tools import prose  # noqa: E402

COMMAND = "python tools/tidy.py --update"
RATCHET = "tests/tidy_ratchet.toml"
PACKAGE = "src/flowfabric"
FOLDERS = ("tests", "docs", "tools", "benchmarks", "examples")
_HEAD = f"# Written by `{COMMAND}`. Numbers should fall; explain in the commit why one rises.\n"
_NOT_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


@dataclass(frozen=True, slots=True)
class Numbers:
    """The measured or allowed numbers of each kind, by package."""

    code: Mapping[str, float] = field(default_factory=dict)
    markers: Mapping[str, float] = field(default_factory=dict)
    tables: Mapping[str, float] = field(default_factory=dict)


def packages(root: Path) -> dict[str, list[Path]]:
    """Return the files and folders of each package.

    Files outside of packages belong to `src/flowfabric` or to `root`.
    """
    source = root / PACKAGE
    found = {str(path.parent.relative_to(root)): [path.parent] for path in sorted(source.glob("*/__init__.py"))}
    found[PACKAGE] = sorted(source.glob("*.py"))
    found |= {name: [root / name] for name in FOLDERS if (root / name).is_dir()}
    found["root"] = sorted([*root.glob("*.md"), *root.glob("*.py")])
    return {name: paths for name, paths in found.items() if paths}


@cache
def measure(root: Path) -> Numbers:
    """Measure all packages of a checkout. The result is cached, because this takes seconds."""
    found = packages(root)
    sources = {name: paths for name, paths in found.items() if name.startswith(PACKAGE)}
    return Numbers(
        code={name: sum(map(_code_of, _python(paths))) for name, paths in sources.items()},
        markers={name: prose.rate(texts)[2] for name, texts in read_prose(root).items()},
        tables={name: sum(map(_tables, _python(paths))) for name, paths in found.items()},
    )


@cache
def read_prose(root: Path) -> dict[str, list[prose.Text]]:
    """Return all prose of a checkout by package."""
    return {name: list(prose.read_paths(paths)) for name, paths in packages(root).items()}


def code_lines(source: str) -> int:
    """Return the number of lines that are neither blank nor part of imports, docstrings and comments."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    spans = [(token.start[0], token.end[0]) for token in tokens if token.type not in _NOT_CODE]
    lines = {line for first, last in spans for line in range(first, last + 1)}
    for node in ast.walk(ast.parse(source)):
        if _is_type_checking(node):
            lines.discard(node.lineno)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            lines -= set(_span(node))
        elif docstring := _docstring(node):
            lines -= set(_span(docstring))
    return len(lines)


def problems(measured: Numbers, allowed: Numbers) -> list[str]:
    """Return a message for each number that exceeds its limit, has no limit, or is far below its limit."""
    found = []
    for kind, slack in (("code", _code_slack), ("markers", _marker_slack), ("tables", _no_slack)):
        now: Mapping[str, float] = getattr(measured, kind)
        most: Mapping[str, float] = getattr(allowed, kind)
        for name in sorted({*now, *most}):
            value, limit = now.get(name, 0), most.get(name, 0)
            if name not in most:
                found.append(f"{name}: no number of {kind} ({value:g} today); {COMMAND}")
            elif value > limit:
                found.append(
                    f"{name}: {kind} {value:.6g}, at most {limit:g}; reduce it, or explain it and run {COMMAND}"
                )
            elif limit > slack(value) or name not in now:
                found.append(f"{name}: {kind} may be {limit:g} but is only {value:.6g}; {COMMAND}")
    return found


def read_ratchet(path: Path) -> Numbers:
    """Read the limits from tests/tidy_ratchet.toml."""
    return Numbers(**tomllib.loads(path.read_text(encoding="utf-8")))


def ratchet(measured: Numbers) -> str:
    """Return the text of tests/tidy_ratchet.toml for these numbers."""
    parts = [
        _HEAD,
        _table("code", {name: math.ceil(lines * (1 + limits.SLACK / 2)) for name, lines in measured.code.items()}),
        _table("markers", {name: math.ceil(rate) for name, rate in measured.markers.items()}),
        _table("tables", measured.tables),
    ]
    return "\n".join(parts)


def _table(name: str, numbers: Mapping[str, float]) -> str:
    return "".join([f"[{name}]\n", *(f'"{key}" = {value:g}\n' for key, value in sorted(numbers.items()))])


def _code_slack(lines: float) -> float:
    return math.ceil(lines * (1 + limits.SLACK))


def _marker_slack(rate: float) -> float:
    return rate + limits.MARKER_SLACK


def _no_slack(count: float) -> float:
    return count


def _tables(path: Path) -> int:
    """Return how many literal tables a file exempts from the formatter."""
    source = path.read_text(encoding="utf-8")
    return len(rules.formatter_switches(source)) - len(rules.formatter_problems(source))


def _python(paths: Iterable[Path]) -> list[Path]:
    """Return the Python files among the given files and below the given folders."""
    return [
        file
        for path in paths
        for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])
        if file.suffix == ".py" and not prose.SKIPPED & set(file.parts)
    ]


def _code_of(path: Path) -> int:
    return code_lines(path.read_text(encoding="utf-8"))


def _span(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _is_type_checking(node: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING"


def _docstring(node: ast.AST) -> ast.Expr | None:
    match node:
        case (
            ast.Module(body=[ast.Expr(value=ast.Constant(value=str())) as first, *_])
            | ast.ClassDef(body=[ast.Expr(value=ast.Constant(value=str())) as first, *_])
            | ast.FunctionDef(body=[ast.Expr(value=ast.Constant(value=str())) as first, *_])
            | ast.AsyncFunctionDef(body=[ast.Expr(value=ast.Constant(value=str())) as first, *_])
        ):
            return first
    return None


def main(arguments: Sequence[str]) -> int:
    """Print the numbers, or write the limits with `--update`. Return 1 if a number does not fit its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help=f"write {RATCHET}")
    options = parser.parse_args(arguments)
    measured = measure(ROOT)
    if options.update:
        (ROOT / RATCHET).write_text(ratchet(measured), encoding="utf-8")
        print(f"Wrote {RATCHET}")
        return 0
    print(f"{'package':28} {'code':>7} {'markers':>8}")
    for name, rate in measured.markers.items():
        print(f"{name:28} {measured.code.get(name, ''):>7} {rate:8.1f}")
    print(f"{'all of src':28} {sum(measured.code.values()):>7}")
    found = problems(measured, read_ratchet(ROOT / RATCHET))
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
