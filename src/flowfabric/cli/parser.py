"""The argument parser, built from the table of commands. Usage errors are reported on one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NoReturn

from flowfabric.cli import exit_codes
from flowfabric.cli.command_table import COMMANDS
from flowfabric.cli.spec import COMMON, DEFAULTS, Argument, CommandSpec
from flowfabric.core.validation import escape

PROGRAM = "flowfabric"
_SUMMARY = "Submit, watch and operate durable executions."
_MAX_LISTED_CHOICES = 12


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed arguments, with the `CommandSpec` as `command`. A usage error exits the program.

    Without any argument, print the help instead.
    """
    if not (sys.argv[1:] if argv is None else argv):
        argv = ["--help"]
    return argparse.Namespace(**{**DEFAULTS, **vars(make_parser().parse_args(argv))})


@cache
def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = Parser(prog=PROGRAM, description=_SUMMARY, allow_abbrev=False)
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version")
    _add_arguments(parser, COMMON, common=True)
    _add_commands(parser, COMMANDS, required=True)
    return parser


class Parser(argparse.ArgumentParser):
    """A parser that reports errors on one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(exit_codes.USAGE, f"{self.prog}: {escape(message)}; see {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = [] if action.choices is None else list(action.choices)
        if not choices or value in choices:
            return
        raise argparse.ArgumentError(action, f"invalid choice: {str(value)[:60]!r}{_suggest(str(value), choices)}")


class _ShowVersion(argparse.Action):
    """The `--version` option. It imports the package metadata only when it is used, because that import is slow."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(PROGRAM, version("flowfabric"))
        sys.exit(exit_codes.OK)


def _add_commands(parser: argparse.ArgumentParser, commands: Sequence[CommandSpec], *, required: bool) -> None:
    subparsers = parser.add_subparsers(
        title="commands", required=required, metavar="COMMAND", parser_class=Parser, dest=argparse.SUPPRESS
    )
    for command in commands:
        subparser = subparsers.add_parser(
            command.name,
            help=command.help,
            description=f"{command.help[0].upper()}{command.help[1:]}. {command.description}",
            allow_abbrev=False,
        )
        _add_arguments(subparser, command.all_arguments)
        _add_arguments(subparser, COMMON, common=True)
        subparser.set_defaults(command=command)
        if command.subcommands:
            _add_commands(subparser, command.subcommands, required=False)


def _add_arguments(parser: argparse.ArgumentParser, arguments: Iterable[Argument], *, common: bool = False) -> None:
    group = parser.add_argument_group("store and output") if common else parser
    for argument in arguments:
        settings = dict(argument.settings)
        if common:
            # Options have no default here. Otherwise the parser of the command would overwrite an option given before
            # the command.
            settings["default"] = argparse.SUPPRESS
        help_text = argument.help
        if argument.choices and argument.is_option:
            # List the choices in the help text, which argparse can wrap. As the metavar, they would be one long word.
            settings["metavar"], help_text = argument.label, f"{argument.help}: {', '.join(argument.choices)}"
        group.add_argument(*argument.names, help=help_text, **settings)


def _suggest(value: str, choices: list[str]) -> str:
    from difflib import get_close_matches

    matches = get_close_matches(value[:60], choices, 1)
    if matches:
        return f"; did you mean {matches[0]!r}?"
    return f" (choose from {', '.join(choices)})" if len(choices) <= _MAX_LISTED_CHOICES else ""
