"""Forks. A forked process has copies of its parent's connections, and must use none of them.

`os.fork()` runs a hook of this module in the child before it returns there. From then on:

- Calls of an engine that was opened before the fork raise `store_forked`.
- The sockets of PostgreSQL connections are the null device. So the child can send nothing to the server, and a
  connection ends with its parent, even if the child lives longer.
- Connections to SQLite files are neither used nor closed.
- If code of a task has forked and returns in the child, the child exits. It must not continue the run of its parent.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import NoReturn, Protocol
from weakref import WeakSet

from flowfabric.core.errors import Unavailable

_log = logging.getLogger("flowfabric")
_EXIT_CODE = 1


class Forks:
    """Counts the forks since the first process. Reading this number is cheaper than reading the process id."""

    number = 0


class Inheritable(Protocol):
    """An object with connections that a forked process gets a copy of."""

    def leave_to_parent(self) -> None:
        """Make the copy in a forked process useless, without an effect on the parent."""


_open: WeakSet[Inheritable] = WeakSet()
_left: list[Inheritable] = []


def call_after_fork(hook: Callable[[], object]) -> None:
    """Call `hook` in each forked process. Windows has no forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=hook)


def watch_forks(inheritable: Inheritable) -> None:
    """Call `leave_to_parent` in each forked process, which also never deletes the object."""
    _open.add(inheritable)


def check_not_forked(forks: int) -> None:
    """Raise if this process was forked after `forks` was read from `Forks.number`."""
    if Forks.number != forks:
        message = "this process was forked after the engine was opened; open another engine, or exit with os._exit()"
        raise Unavailable("store_forked", message)


def exit_child(code: str) -> NoReturn:
    """End this process, which was forked inside some code of a task and has returned from it. Log one line."""
    text = "Process %d was forked inside %s and returned from it, so it exits; end such a process with os._exit()"
    _log.error(text, os.getpid(), code)
    os._exit(_EXIT_CODE)


def _leave_connections() -> None:
    Forks.number += 1
    inherited = list(_open)
    _open.clear()
    _left.extend(inherited)  # Deleting the objects would close their connections.
    for inheritable in inherited:
        inheritable.leave_to_parent()


call_after_fork(_leave_connections)
