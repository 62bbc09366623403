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

from flowfabric.cli.screen import escaped
from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.sdk.checking import Finding, check_file


def run_check(arguments: argparse.Namespace) -> int:
    """Prints what is found; 1 if there is anything, else 0."""
    targets = [(Path(target).exists(), target) for target in arguments.targets]
    names = [target if is_path else target.partition(":")[0] for is_path, target in targets]
    paths = dict.fromkeys(path for name in names for path in _files(name))
    findings = [finding for path in paths for finding in check_file(path)]
    findings += [found for is_path, target in targets if not is_path and ":" in target for found in _app_says(target)]
    for finding in findings:
        # Never folded: editors and terminals find the place by `path:line:column` on one line.
        print(_document(finding) if arguments.json else escaped(str(finding)))
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
            raise InvalidRequest("target_not_found", f"there is no file, folder or module {escaped(name)!r}")
        places, origin = spec.submodule_search_locations, spec.origin
    if places is not None:
        return Path(next(iter(places)))
    if origin is None or not origin.endswith(".py"):
        raise InvalidRequest("target_not_found", f"the module {escaped(name)!r} is not written in Python")
    return Path(origin)


def _app_says(target: str) -> Iterator[Finding]:
    """What the app itself finds wrong, if it can be imported."""
    module, _, name = target.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        app = getattr(importlib.import_module(_module_name(module)), name)
        check = app.check
    except (Exception, SystemExit) as error:
        raise InvalidRequest("import_failed", f"{escaped(target)} cannot be imported: {_said(error)}") from error
    finally:
        sys.path.pop(0)
    try:
        check()
    except (Exception, SystemExit) as error:
        yield Finding(target, 1, 1, "app_check", _said(error))


def _module_name(module: str) -> str:
    return ".".join(Path(module).with_suffix("").parts) if module.endswith(".py") else module


def _said(error: BaseException) -> str:
    return str(error) if isinstance(error, FlowFabricError) else f"{type(error).__name__}: {error}"


def _document(finding: Finding) -> str:
    names = ("path", "line", "column", "code", "message")
    return json.dumps({name: getattr(finding, name) for name in names})


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.parts)
