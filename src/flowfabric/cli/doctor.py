"""`flowfabric doctor`: looks at a store and says what is wrong with it, and what to do."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from flowfabric.cli import exit_codes
from flowfabric.cli.documents import document
from flowfabric.cli.findings import ALL, Finding, look_around, of_unusable
from flowfabric.cli.opening import looking
from flowfabric.cli.saying import on_screen, say_lines
from flowfabric.cli.screen import Screen
from flowfabric.cli.tables import paragraph
from flowfabric.core.errors import Unavailable

_INDENT = 22


async def examine(arguments: argparse.Namespace) -> int:
    """Prints a line for everything that was looked at. A store that cannot be used is also told as an error."""
    try:
        async with looking(arguments) as engine:
            around = await look_around(engine)
    except Unavailable as error:
        _print(arguments, [of_unusable(error)])
        raise
    findings = [finding for judge in ALL for finding in judge(around)]
    _print(arguments, findings)
    return exit_codes.FAILED if any(item.verdict == "wrong" for item in findings) else exit_codes.OK


def findings_lines(findings: Sequence[Finding], screen: Screen) -> list[str]:
    """Findings as people see them."""
    lines: list[str] = []
    for item in findings:
        head = f"{screen.paint_word(item.verdict.ljust(8))} {item.subject:<{_INDENT - 9}}"
        first, *rest = paragraph(item.text, screen, _INDENT)
        advice = paragraph(f"-> {item.advice}", screen, _INDENT) if item.advice else []
        lines += [head + first, *(" " * _INDENT + line for line in (*rest, *advice))]
    return lines


def _print(arguments: argparse.Namespace, findings: Sequence[Finding]) -> None:
    say_lines(map(document, findings) if arguments.json else findings_lines(findings, on_screen()))
