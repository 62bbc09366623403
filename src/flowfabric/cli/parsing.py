"""The parser, made from the registry of verbs. Whatever is wrong with a call is said in one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NoReturn

from flowfabric.cli import exit_codes
from flowfabric.cli.screen import escaped
from flowfabric.cli.verbs import VERBS
from flowfabric.cli.verbs.declaring import COMMON, DEFAULTS, Argument, Verb

PROGRAM = "flowfabric"
_SUMMARY = "Submit, watch and operate durable executions."
_MOST_LISTED = 12


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """The arguments of a call, `verb` among them; a wrong call ends the program."""
    return argparse.Namespace(**{**DEFAULTS, **vars(make_parser().parse_args(words))})


@cache
def make_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    parser = Parser(prog=PROGRAM, description=_SUMMARY, allow_abbrev=False)
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version")
    _add(parser, COMMON, common=True)
    _add_verbs(parser, VERBS, required=True)
    return parser


class Parser(argparse.ArgumentParser):
    """A parser that complains in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(exit_codes.USAGE, f"{self.prog}: {escaped(message)}; see {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = [] if action.choices is None else list(action.choices)
        if not choices or value in choices:
            return
        raise argparse.ArgumentError(action, f"invalid choice: {str(value)[:60]!r}{_hint(str(value), choices)}")


class _ShowVersion(argparse.Action):
    """Reading the version takes time that only whoever asks for it should spend."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(PROGRAM, version("flowfabric"))
        sys.exit(exit_codes.OK)


def _add_verbs(parser: argparse.ArgumentParser, verbs: Sequence[Verb], *, required: bool) -> None:
    commands = parser.add_subparsers(
        title="commands", required=required, metavar="COMMAND", parser_class=Parser, dest=argparse.SUPPRESS
    )
    for verb in verbs:
        found = commands.add_parser(
            verb.name, help=verb.help, description=f"{verb.help[0].upper()}{verb.help[1:]}. {verb.about}",
            allow_abbrev=False,
        )  # fmt: skip
        _add(found, verb.all_arguments)
        _add(found, COMMON, common=True)
        found.set_defaults(verb=verb)
        if verb.verbs:
            _add_verbs(found, verb.verbs, required=False)


def _add(parser: argparse.ArgumentParser, arguments: Iterable[Argument], *, common: bool = False) -> None:
    place = parser.add_argument_group("store and output") if common else parser
    for item in arguments:
        settings = dict(item.settings)
        if common:
            # Given before the command it must not be overwritten by the absence after it.
            settings["default"] = argparse.SUPPRESS
        about = item.help
        if item.choices and item.is_option:
            # Among the words of the help they are folded; in the place of the value they would be one long word.
            settings["metavar"], about = item.label, f"{item.help}: {', '.join(item.choices)}"
        place.add_argument(*item.names, help=about, **settings)


def _hint(value: str, choices: list[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(value[:60], choices, 1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f" (choose from {', '.join(choices)})" if len(choices) <= _MOST_LISTED else ""
