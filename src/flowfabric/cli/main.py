"""The entry point: run one command, print errors on one line and return an exit code."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from flowfabric.cli import exit_codes
from flowfabric.cli.parser import PROGRAM, parse
from flowfabric.core.errors import Conflict, FlowFabricError, InvalidRequest, NotFound, Refused
from flowfabric.core.validation import escape

_CODES = (
    (InvalidRequest, exit_codes.USAGE),
    (NotFound, exit_codes.NOT_FOUND),
    (Refused, exit_codes.REFUSED),
    (Conflict, exit_codes.REFUSED),
)
# Some error messages name a Python parameter. These hints add the corresponding option of the command line.
_OPTION_HINTS = {"unsafe_durability": " (--not-durable)", "pooler_undeclared": " (--pooler)"}
# If this variable is set, an internal error shows its traceback, for developers of flowfabric.
_TRACEBACK_VARIABLE = "FLOWFABRIC_TRACEBACK"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code, as listed in `exit_codes`."""
    if argv is None:
        configure_streams()
    try:
        code = _run(parse(argv))
        sys.stdout.flush()
    except SystemExit as error:
        return _flush_output(_code_at_exit(error.code))
    except FlowFabricError as error:
        print_error(f"{error}{_OPTION_HINTS.get(error.code, '')}")
        return _flush_output(_code_of(error))
    except KeyboardInterrupt:
        return _flush_output(exit_codes.INTERRUPTED)
    except BrokenPipeError:
        return _discard_output(exit_codes.BROKEN_PIPE)
    except Exception as error:
        if os.environ.get(_TRACEBACK_VARIABLE):
            raise
        print_error(f"internal: {type(error).__name__}: {error}; set {_TRACEBACK_VARIABLE}=1 to see where")
        return _discard_output(exit_codes.FAILED if isinstance(error, OSError) else exit_codes.INTERNAL)
    return code


def _code_at_exit(code: object) -> int:
    """Return the exit code for the argument of `sys.exit`, as Python does. None means success; a text is printed."""
    if code is None or isinstance(code, int):
        return int(code or exit_codes.OK)
    print_error(str(code))
    return exit_codes.FAILED


def _code_of(error: FlowFabricError) -> int:
    return next((code for kind, code in _CODES if isinstance(error, kind)), exit_codes.UNAVAILABLE)


def _run(arguments: Namespace) -> int:
    """Run the command. Import only its own module, because importing the whole engine is slow."""
    import asyncio
    import inspect

    module, _, function = arguments.command.run.partition(":")
    result: Any = getattr(import_module(f"flowfabric.cli.commands.{module}"), function)(arguments)
    code = asyncio.run(result) if inspect.iscoroutine(result) else result
    return exit_codes.OK if code is None else int(code)


def configure_streams() -> None:
    """Configure both output streams to escape characters that they cannot encode.

    Keep log lines of libraries out of them.
    """
    import logging

    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115 - it stays open until the end
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    logging.getLogger().addHandler(logging.NullHandler())


def print_error(text: str) -> None:
    with suppress(OSError):
        print(f"{PROGRAM}: {escape(text)}", file=sys.stderr)


def _flush_output(code: int) -> int:
    """Flush standard output and return the code."""
    try:
        sys.stdout.flush()
    except OSError:
        return _discard_output(exit_codes.BROKEN_PIPE)
    return code


def _discard_output(code: int) -> int:
    """Redirect standard output to the null device.

    Otherwise Python fails on exit, when it flushes standard output again.
    """
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
