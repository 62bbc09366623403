"""Who does something, why, and whether it is meant."""

from __future__ import annotations

import argparse
import getpass
import sys
from typing import Any

from flowfabric.cli.interrupting import interruptible
from flowfabric.cli.screen import escaped
from flowfabric.core.errors import Refused

_YES = ("y", "yes")


def who(arguments: argparse.Namespace) -> dict[str, Any]:
    """The principal and the reason, as operations take them."""
    return {"principal": principal(arguments), "reason": arguments.reason}


def principal(arguments: argparse.Namespace) -> str:
    """Who acts: as given, or the user of the system."""
    if arguments.principal is not None:
        return str(arguments.principal)
    try:
        found = getpass.getuser()
    except (OSError, KeyError, ImportError):
        found = ""
    return found if found.isprintable() and found.strip() == found and 0 < len(found) <= 256 else "unknown"


def must_be_told(arguments: argparse.Namespace) -> None:
    """Refuses at once where nobody can be asked and nobody has said --yes."""
    if not arguments.yes and not _can_ask():
        message = "this must be confirmed, and there is no terminal to ask on; say --yes if it is meant"
        raise Refused("not_confirmed", message)


def confirm(arguments: argparse.Namespace, question: str) -> None:
    """Goes on if it is meant, and refuses otherwise."""
    must_be_told(arguments)
    if arguments.yes:
        return
    with interruptible():
        print(f"{escaped(question)} [y/N] ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
    if answer.strip().lower() not in _YES:
        raise Refused("not_confirmed", "nothing was done")


def _can_ask() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
