#!/usr/bin/env python3
"""Write the completion scripts of the command line, which shtab generates from the parser.

usage: python tools/generate_completion.py [--check]

The scripts are package data, and `flowfabric completion SHELL` prints them. With `--check` nothing is written, and the
exit code is 1 if a script is not up to date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import shtab

from flowfabric.cli.parser import make_parser

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "src" / "flowfabric" / "cli" / "completions"
SHELLS = ("bash", "zsh", "fish")
FILE_METAVARS = frozenset({"URL", "FILE", "TARGET"})

# Changes to the generated scripts, as pairs of old and new text. Among others, they add completion for `ff`.
EDITS = {
    "bash": [
        # Do not mistake the value of an option for a command, as in `flowfabric --store list`.
        ("if [[ -n $sub_parsers &&", "if [[ $current_action_is_positional = true && -n $sub_parsers &&"),
        # For arguments without choices, the shell offers file names.
        (
            "complete -o bashdefault -F _shtab_flowfabric flowfabric",
            "complete -o bashdefault -o default -F _shtab_flowfabric flowfabric ff",
        ),
    ],
    "zsh": [
        ("#compdef flowfabric\n", "#compdef flowfabric ff\n"),
        ("compdef _shtab_flowfabric -N flowfabric\n", "compdef _shtab_flowfabric -N flowfabric ff\n"),
        # Register the completion function also after `source <(flowfabric completion zsh)`, not only after `eval`.
        ("if [[ $zsh_eval_context[-1] == eval ]]", "if [[ $zsh_eval_context[-1] != loadautofunc ]]"),
        # If an argument takes several values, complete each value, not only the first.
        ('"(*):', '"*:'),
    ],
    "fish": [
        ("complete -c flowfabric -f\n", "complete -c flowfabric -f\ncomplete -c ff -e\ncomplete -c ff -w flowfabric\n"),
    ],
}


def main(arguments: Sequence[str]) -> int:
    """Write the scripts. With `--check`, only return 1 if a script is not up to date."""
    scripts = {FOLDER / f"flowfabric.{shell}": generate(shell) for shell in SHELLS}
    if "--check" in arguments:
        is_current = all(
            path.is_file() and path.read_text(encoding="utf-8") == script for path, script in scripts.items()
        )
        return 0 if is_current else 1
    FOLDER.mkdir(exist_ok=True)
    for path, script in scripts.items():
        path.write_text(script, encoding="utf-8")
    return 0


def generate(shell: str) -> str:
    """Return the completion script for a shell."""
    # Build a new parser, because it is changed below, and the cached parser must stay unchanged.
    parser = make_parser.__wrapped__()
    for command in _parsers(parser):
        # Remove the description, so that shtab shows the short help of the command.
        command.description = None
        for action in command._actions:
            _prepare(action)
    script = shtab.complete(parser, shell)
    for old, new in EDITS[shell]:
        if old not in script:
            raise ValueError(f"shtab no longer writes {old!r} for {shell}; adapt EDITS")
        script = script.replace(old, new)
    return script.rstrip("\n") + "\n"


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _parsers(command)


def _prepare(action: argparse.Action) -> None:
    if isinstance(action.metavar, str):
        if action.metavar in FILE_METAVARS:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        # Replace colons, because in zsh a colon ends the label of the value.
        action.metavar = action.metavar.replace(":", " ")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
