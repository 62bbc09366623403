"""`flowfabric check`: find code in tasks and steps that misbehaves when it runs again.

A file, a folder or a module is read as text, without importing it. `module:app` is also imported, so that the app's
own check can resolve all annotations.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.core.validation import escape
from flowfabric.lint import Finding, check_file


def run_check(arguments: argparse.Namespace) -> int:
    """Print the findings. Return 1 if there are findings, otherwise 0."""
    targets = [(Path(target).exists(), target) for target in arguments.targets]
    names = [target if is_path else target.partition(":")[0] for is_path, target in targets]
    paths = dict.fromkeys(path for name in names for path in _files(name))
    findings = [finding for path in paths for finding in check_file(path)]
    apps = [target for is_path, target in targets if not is_path and ":" in target]
    findings += [finding for app in apps for finding in _check_app(app)]
    for finding in findings:
        # Do not wrap the line, because editors and terminals parse its `path:line:column`.
        print(_document(finding) if arguments.json else escape(str(finding)))
    return 1 if findings else 0


def _files(target: str) -> Iterator[Path]:
    """Yield the Python files of a target, which is a file, a folder or a module."""
    path = Path(target)
    if not path.exists():
        path = _module_path(target, [str(Path.cwd()), *sys.path])
    if path.is_dir():
        yield from sorted(file for file in path.rglob("*.py") if not _is_hidden(file.relative_to(path)))
    else:
        yield path


def _module_path(name: str, search_path: Sequence[str]) -> Path:
    """Return the path of a module without importing it or its packages."""
    folders: Sequence[str] | None = search_path
    origin: str | None = None
    for part in name.split("."):
        spec = PathFinder.find_spec(part, folders) if part.isidentifier() and folders is not None else None
        if spec is None:
            raise InvalidRequest("target_not_found", f"there is no file, folder or module {escape(name)!r}")
        folders, origin = spec.submodule_search_locations, spec.origin
    if folders is not None:
        return Path(next(iter(folders)))
    if origin is None or not origin.endswith(".py"):
        raise InvalidRequest("target_not_found", f"the module {escape(name)!r} is not written in Python")
    return Path(origin)


def _check_app(target: str) -> Iterator[Finding]:
    """Import an app, run `app.check()`, and yield the error that the check raises as a finding."""
    module, _, name = target.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        app = getattr(importlib.import_module(_module_name(module)), name)
        check = app.check
    except (Exception, SystemExit) as error:
        raise InvalidRequest("import_failed", f"{escape(target)} cannot be imported: {_describe(error)}") from error
    finally:
        sys.path.pop(0)
    try:
        check()
    except (Exception, SystemExit) as error:
        yield Finding(target, 1, 1, "app_check", _describe(error))


def _module_name(module: str) -> str:
    return ".".join(Path(module).with_suffix("").parts) if module.endswith(".py") else module


def _describe(error: BaseException) -> str:
    return str(error) if isinstance(error, FlowFabricError) else f"{type(error).__name__}: {error}"


def _document(finding: Finding) -> str:
    names = ("path", "line", "column", "code", "message")
    return json.dumps({name: getattr(finding, name) for name in names})


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.parts)
