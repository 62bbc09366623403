#!/usr/bin/env python3
"""Write the command-line reference from the table of commands.

usage: python tools/generate_cli_reference.py [--check]

With `--check` nothing is written, and the exit code is 1 if docs/reference/cli.md is not up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from flowfabric.cli import command_table, exit_codes
from flowfabric.cli.spec import COMMON, Argument, CommandSpec

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "cli.md"
SELF = "tools/generate_cli_reference.py"
PARTS = (
    ("Executions", command_table.EXECUTION_COMMANDS),
    ("Operating", command_table.OPERATOR_COMMANDS),
    ("Workers and the store", command_table.STORE_COMMANDS),
)
HEAD = f"""# The command line

<!-- Written by {SELF}; do not edit. -->

The program is `flowfabric`, or `ff` for short, or `python -m flowfabric`. Every command has `--help`, and with `--json`
it prints one JSON document per line. Times are UTC. Durations are written `500ms`, `30s`, `15m`, `2h`, `1d`.

Irreversible commands ask for confirmation on a terminal. Without a terminal they need `--yes`. The store records the
`--principal` and the `--reason` of operator commands.

Results go to standard output, hints and errors to standard error. An error is one line, `flowfabric: code: message`,
with a code from [the list](errors.md). A usage error has no code and prints
`flowfabric command: message; see flowfabric command --help`.

Tables and lines are as wide as the terminal, or as the variable `COLUMNS`. Ids are never shortened. In a pipe nothing
is shortened or wrapped. `NO_COLOR` disables colours. `FLOWFABRIC_TRACEBACK=1` shows the traceback of an internal error.
"""


def main(arguments: Sequence[str]) -> int:
    """Write docs/reference/cli.md. With `--check`, only return 1 if the file is not up to date."""
    text = page()
    if "--check" in arguments:
        return 0 if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text else 1
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
    return 0


def page() -> str:
    """Return the text of docs/reference/cli.md."""
    parts = [
        HEAD,
        "## Options of every command\n",
        "They can be placed before or after the command.\n",
        _options(COMMON),
    ]
    parts += ["## Exit codes\n", _codes()]
    for title, verbs in PARTS:
        parts.append(f"## {title}\n")
        parts += [text for verb in verbs for text in _verb(verb, "flowfabric")]
    return "\n".join(parts).rstrip() + "\n"


def _codes() -> str:
    rows = [f"| {code} | {meaning} |" for code, meaning in exit_codes.MEANINGS.items()]
    return "\n".join(["| code | meaning |", "|---|---|", *rows]) + "\n"


def _verb(verb: CommandSpec, before: str) -> Iterator[str]:
    level = "###" if before == "flowfabric" else "####"
    yield f"{level} `{before} {verb.name}`\n"
    yield f"{verb.help[0].upper()}{verb.help[1:]}. {_joined(verb.description)}".rstrip() + "\n"
    yield f"```text\n{_usage(verb, before)}\n```\n"
    if verb.all_arguments:
        yield _options(verb.all_arguments)
    for below in verb.subcommands:
        yield from _verb(below, f"{before} {verb.name}")


def _usage(verb: CommandSpec, before: str) -> str:
    words = [before, verb.name]
    words += ["[COMMAND]"] if verb.subcommands else []
    words += ["[options]"] if any(item.is_option for item in verb.all_arguments) else []
    words += [_required(item) for item in verb.arguments if item.is_option and item.settings.get("required")]
    words += [_positional(item) for item in verb.arguments if not item.is_option]
    return " ".join(words)


def _required(item: Argument) -> str:
    return f"{item.names[0]} {item.label}"


def _positional(item: Argument) -> str:
    many = {"?": f"[{item.label}]", "+": f"{item.label}..."}
    return many.get(str(item.settings.get("nargs")), item.label)


def _options(arguments: Iterable[Argument]) -> str:
    rows = [f"| {_names(item)} | {_cell(item.help)}{_choices(item)} |" for item in arguments]
    return "\n".join(["| argument | meaning |", "|---|---|", *rows]) + "\n"


def _names(item: Argument) -> str:
    if not item.is_option:
        return f"`{_cell(item.label)}`"
    value = f" {_cell(item.label)}" if item.takes_value else ""
    return ", ".join(f"`{name}{value}`" for name in item.names)


def _choices(item: Argument) -> str:
    return f": {', '.join(f'`{word}`' for word in item.choices)}" if item.is_option and item.choices else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _joined(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
