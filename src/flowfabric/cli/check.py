"""`flowfabric check`: looks at tasks and steps for what goes wrong when they run again.

A file, a folder or the name of a module is read as text, and nothing of it is imported. `module:app` is read too, and
then imported, and the app's own check resolves all annotations.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.sdk.checking import CODES, Finding, check_file


def add_check(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "check", help="look at tasks and steps for what goes wrong when they run again", description=__doc__,
        epilog=_codes(), formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("targets", nargs="+", metavar="TARGET", help="a file, a folder, a module or module:app")
    parser.add_argument("--json", action="store_true", help="one JSON document a line")
    parser.set_defaults(run=run_check, needs_store=False)


def run_check(arguments: argparse.Namespace) -> int:
    """Prints what is found; 1 if there is anything, else 0."""
    targets = [(Path(target).exists(), target) for target in arguments.targets]
    names = [target if is_path else target.partition(":")[0] for is_path, target in targets]
    paths = dict.fromkeys(path for name in names for path in _files(name))
    findings = [finding for path in paths for finding in check_file(path)]
    findings += [found for is_path, target in targets if not is_path and ":" in target for found in _app_says(target)]
    for finding in findings:
        print(_document(finding) if arguments.json else _printable(str(finding)))
    return 1 if findings else 0


def _files(target: str) -> Iterator[Path]:
    """The files that a target names."""
    path = Path(target)
    if not path.exists():
        path = _module_path(target, [str(Path.cwd()), *sys.path])
    if path.is_dir():
        yield from sorted(each for each in path.rglob("*.py") if not _is_hidden(each.relative_to(path)))
    else:
        yield path


def _module_path(name: str, searched: Sequence[str]) -> Path:
    """Where a module is, without importing it or what it is in."""
    places: Sequence[str] | None = searched
    origin: str | None = None
    for part in name.split("."):
        spec = PathFinder.find_spec(part, places) if part.isidentifier() and places is not None else None
        if spec is None:
            raise InvalidRequest("target_not_found", f"there is no file, folder or module {_printable(name)!r}")
        places, origin = spec.submodule_search_locations, spec.origin
    if places is not None:
        return Path(next(iter(places)))
    if origin is None or not origin.endswith(".py"):
        raise InvalidRequest("target_not_found", f"the module {_printable(name)!r} is not written in Python")
    return Path(origin)


def _app_says(target: str) -> Iterator[Finding]:
    """What the app itself finds wrong, if it can be imported."""
    module, _, name = target.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        app = getattr(importlib.import_module(_module_name(module)), name)
        check = app.check
    except Exception as error:
        raise InvalidRequest("import_failed", f"{_printable(target)} cannot be imported: {_said(error)}") from error
    finally:
        sys.path.pop(0)
    try:
        check()
    except Exception as error:
        yield Finding(target, 1, 1, "app_check", _said(error))


def _module_name(module: str) -> str:
    return ".".join(Path(module).with_suffix("").parts) if module.endswith(".py") else module


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, FlowFabricError) else f"{type(error).__name__}: {error}"


def _document(finding: Finding) -> str:
    names = ("path", "line", "column", "code", "message")
    return json.dumps({name: getattr(finding, name) for name in names})


def _codes() -> str:
    lines = [f"  {code:<18} {about}" for code, about in sorted(CODES.items())]
    return "\n".join(["codes, silenced by `# flowfabric: ignore[code]` on a line:", *lines])


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.parts)
