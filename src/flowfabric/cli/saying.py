"""Printing: a sentence for people or a document for programs, and the few forms that many verbs share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from flowfabric.cli.documents import document
from flowfabric.cli.screen import Screen, screen
from flowfabric.cli.tables import paragraph

_AGES = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def say(arguments: argparse.Namespace, sentence: str, answer: Any) -> None:
    """One answer."""
    say_lines([document(answer)] if arguments.json else paragraph(sentence, on_screen()))


def say_lines(lines: Iterable[str]) -> None:
    """Lines that are safe to print as they are."""
    for line in lines:
        print(line)


def hint(text: str) -> None:
    """Something beside the answer, where it does not get into a pipe."""
    for line in paragraph(text, screen(sys.stderr)):
        print(line, file=sys.stderr)


def on_screen() -> Screen:
    """What standard output is shown on."""
    return screen()


def moment(time: datetime | None) -> str:
    """A time to the second; all times are UTC."""
    return "" if time is None else time.strftime("%Y-%m-%d %H:%M:%S")


def age(time: datetime | None, now: datetime) -> str:
    """How long ago, or with `in` how far ahead, in its largest unit."""
    if time is None:
        return ""
    seconds = int(abs((now - time) / timedelta(seconds=1)))
    unit, name = next(((size, name) for size, name in _AGES if seconds >= size), (1, "s"))
    return f"{'in ' if time > now and seconds else ''}{seconds // unit}{name}"


def count_of(number: int, noun: str) -> str:
    """`1 lane`, `2 lanes`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
