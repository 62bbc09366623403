"""Importing of modules that contain tasks, and of apps by addresses such as `shop.tasks:app`."""

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
    from flowfabric.app.app import App

_importing: ContextVar[str | None] = ContextVar("flowfabric_importing", default=None)


def import_all(modules: Sequence[str]) -> None:
    """Import modules, so that they register their tasks."""
    for module in modules:
        with _mark_importing(module):
            importlib.import_module(module)


def load_app(address: str) -> App:
    """Return the app at an address such as `shop.tasks:app`. Also look for the module in the working directory.

    An address without a colon names only a module, and means the only app in that module.
    """
    from flowfabric.app.app import App

    name, _, attribute = address.partition(":")
    directory = str(Path.cwd())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    with _mark_importing(name):
        module = importlib.import_module(name)
    if attribute:
        app = getattr(module, attribute, None)
        if isinstance(app, App):
            return app
        raise InvalidRequest("app_not_found", f"module {name!r} has no App named {attribute!r}", address=address)
    apps = {id(value): value for value in vars(module).values() if isinstance(value, App)}
    if len(apps) == 1:
        return next(iter(apps.values()))
    message = f"module {name!r} has {len(apps)} apps; name one, as in '{name}:app'"
    raise InvalidRequest("app_not_found", message, address=address)


def refuse_while_importing() -> None:
    """Raise if a worker is importing a module, which must not call `app.run` at its top level."""
    module = _importing.get()
    if module is not None:
        message = f"app.run was called while a worker imports {module!r}; guard it with `if __name__ == '__main__'`"
        raise InvalidRequest("run_while_importing", message, module=module)


@contextmanager
def _mark_importing(module: str) -> Iterator[None]:
    before = _importing.set(module)
    try:
        yield
    finally:
        _importing.reset(before)
