"""Importing the modules that hold tasks, and apps by their address."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from flowfabric.core.errors import InvalidRequest

if TYPE_CHECKING:
    from flowfabric.sdk.app import App

_importing: ContextVar[str | None] = ContextVar("flowfabric_importing", default=None)


def import_all(modules: Sequence[str]) -> None:
    """Imports modules for the tasks that they register."""
    for module in modules:
        with _imported(module):
            importlib.import_module(module)


def load_app(address: str) -> App:
    """The app at an address such as `shop.tasks:app`, looked for in the working directory too; without a colon, the
    only app of that module."""
    from flowfabric.sdk.app import App

    name, _, attribute = address.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    with _imported(name):
        module = importlib.import_module(name)
    if attribute:
        found = getattr(module, attribute, None)
        if isinstance(found, App):
            return found
        raise InvalidRequest("app_not_found", f"module {name!r} has no App named {attribute!r}", address=address)
    apps = {id(value): value for value in vars(module).values() if isinstance(value, App)}
    if len(apps) == 1:
        return next(iter(apps.values()))
    message = f"module {name!r} has {len(apps)} apps; say which one, as in '{name}:app'"
    raise InvalidRequest("app_not_found", message, address=address)


def refuse_while_importing() -> None:
    """Refuses to run an app from a module that a worker is only importing."""
    module = _importing.get()
    if module is not None:
        message = f"app.run was called while a worker imports {module!r}; guard it with `if __name__ == '__main__'`"
        raise InvalidRequest("run_while_importing", message, module=module)


@contextmanager
def _imported(module: str) -> Iterator[None]:
    before = _importing.set(module)
    try:
        yield
    finally:
        _importing.reset(before)
