"""The command: what becomes of a call, and of errors: one line, and a code that tells what kind it was."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from flowfabric.cli import exit_codes
from flowfabric.cli.parsing import PROGRAM, parse
from flowfabric.cli.screen import escaped
from flowfabric.core.errors import Conflict, FlowFabricError, InvalidRequest, NotFound, Refused

_CODES = (
    (InvalidRequest, exit_codes.USAGE),
    (NotFound, exit_codes.NOT_FOUND),
    (Refused, exit_codes.REFUSED),
    (Conflict, exit_codes.REFUSED),
)
# What the engine says in the words of Python, in those of the command line.
_HERE = {"unsafe_durability": " (--not-durable)"}
# For whoever mends the program itself.
_TRACEBACK_VARIABLE = "FLOWFABRIC_TRACEBACK"


def main(words: Sequence[str] | None = None) -> int:
    """Runs one command, and answers its exit code: see `exit_codes`."""
    if words is None:
        _behave()
    try:
        code = _run(parse(words))
        sys.stdout.flush()
    except SystemExit as ended:
        return _flushed(_code_at_exit(ended.code))
    except FlowFabricError as error:
        _complain(f"{error}{_HERE.get(error.code, '')}")
        return _flushed(_code_of(error))
    except KeyboardInterrupt:
        return _flushed(exit_codes.INTERRUPTED)
    except BrokenPipeError:
        return _give_up_output(exit_codes.BROKEN_PIPE)
    except Exception as error:
        if os.environ.get(_TRACEBACK_VARIABLE):
            raise
        _complain(f"internal: {type(error).__name__}: {error}; {_TRACEBACK_VARIABLE}=1 shows where")
        return _give_up_output(exit_codes.FAILED if isinstance(error, OSError) else exit_codes.INTERNAL)
    return code


def _code_at_exit(code: object) -> int:
    """As Python itself takes what a program leaves with: nothing is well, and a text is told."""
    if code is None or isinstance(code, int):
        return int(code or exit_codes.OK)
    _complain(str(code))
    return exit_codes.FAILED


def _code_of(error: FlowFabricError) -> int:
    return next((code for kind, code in _CODES if isinstance(error, kind)), exit_codes.UNAVAILABLE)


def _run(arguments: Namespace) -> int:
    """Imports only what the verb needs, since the engine takes its time."""
    import asyncio
    import inspect

    module, _, function = arguments.verb.run.partition(":")
    answer: Any = getattr(import_module(f"flowfabric.cli.{module}"), function)(arguments)
    found = asyncio.run(answer) if inspect.iscoroutine(answer) else answer
    return exit_codes.OK if found is None else int(found)


def _behave() -> None:
    """Output that cannot be written in the terminal's encoding is escaped, and nobody's log gets between the lines."""
    import logging

    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115 - it stays open until the end
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    logging.getLogger().addHandler(logging.NullHandler())


def _complain(text: str) -> None:
    with suppress(OSError):
        print(f"{PROGRAM}: {escaped(text)}", file=sys.stderr)


def _flushed(code: int) -> int:
    """The code, after what was printed before has gone out."""
    try:
        sys.stdout.flush()
    except OSError:
        return _give_up_output(exit_codes.BROKEN_PIPE)
    return code


def _give_up_output(code: int) -> int:
    """Nothing more can be said there, and Python would complain about that once more at its end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
