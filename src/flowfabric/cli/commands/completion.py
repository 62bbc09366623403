"""`flowfabric completion`: print the completion script of a shell.

`tools/generate_completion.py` generates the scripts.
"""

from __future__ import annotations

import argparse
from importlib.resources import files

from flowfabric.cli.output import format_json


def print_completion(arguments: argparse.Namespace) -> None:
    """Print the completion script for the given shell."""
    script = read_script(arguments.shell)
    if arguments.json:
        print(format_json({"shell": arguments.shell, "script": script}))
    else:
        print(script, end="")


def read_script(shell: str) -> str:
    """Return the completion script for bash, zsh or fish."""
    return (files("flowfabric.cli") / "completions" / f"flowfabric.{shell}").read_text(encoding="utf-8")
