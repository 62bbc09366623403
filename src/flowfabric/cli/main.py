"""The commands, their arguments, and what becomes of errors: one line, and a code that tells what kind it was."""

from __future__ import annotations

import argparse
import asyncio
import inspect
import os
import sys
from collections.abc import Sequence

from flowfabric.cli.check import add_check
from flowfabric.cli.events import add_events
from flowfabric.cli.history import add_history
from flowfabric.core.errors import FlowFabricError, InvalidRequest, NotFound

_ENVIRONMENT = "FLOWFABRIC_URL"
_BROKEN_PIPE, _INTERRUPTED = 141, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; 0 if all is well, 2 for a wrong call, 3 for something that is not there, 1 for other errors."""
    parser = _parser()
    found = parser.parse_args(arguments)
    if found.url is None and found.needs_store:
        parser.error(f"say where the store is: --url, or the environment variable {_ENVIRONMENT}")
    try:
        answer = found.run(found)
        code = asyncio.run(answer) if inspect.iscoroutine(answer) else answer
    except FlowFabricError as error:
        print(f"flowfabric: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidRequest) else 3 if isinstance(error, NotFound) else 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever reads has gone; nothing more can be said, and Python would complain about that once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    return code or 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flowfabric", description="Look at a FlowFabric store, and at the code of tasks."
    )
    parser.set_defaults(needs_store=True)
    parser.add_argument(
        "--url", default=os.environ.get(_ENVIRONMENT), help=f"postgresql://… or a file; ${_ENVIRONMENT} by default"
    )
    parser.add_argument("--namespace", default="default", help="the namespace to look at (default)")
    parser.add_argument("--schema", default="flowfabric", help="the schema on PostgreSQL (flowfabric)")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    add_events(commands)
    add_history(commands)
    add_check(commands)
    return parser
