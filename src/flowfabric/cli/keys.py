"""`flowfabric keys`: the keys that sign tokens. A secret is never an argument, and never shown."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime

from flowfabric.cli.asking import confirm, must_be_told, who
from flowfabric.cli.documents import document, plain
from flowfabric.cli.opening import looking, writing
from flowfabric.cli.reading import secret_of
from flowfabric.cli.saying import age, count_of, hint, on_screen, say, say_lines
from flowfabric.cli.screen import Screen
from flowfabric.cli.tables import Column, table
from flowfabric.core.keyring import parse_kid
from flowfabric.engine import KeyView, Rotated, Seeded
from flowfabric.engine.key_source import draw_key

_COLUMNS = (
    Column("KID"), Column("STATE"), Column("AGE", right=True), Column("VERIFIES FOR", right=True),
    Column("IN USE", spare=True), Column("SECRET"),
)  # fmt: skip


async def list_keys(arguments: argparse.Namespace) -> None:
    """Prints all keys, the newest first."""
    async with looking(arguments) as engine:
        keys, now = await engine.keys.list(), engine.now()
    if arguments.json:
        say_lines(document(key) for key in keys)
    elif keys:
        say_lines(keys_table(keys, now, on_screen()))
    else:
        hint("there is no key yet; the first token makes one, or: flowfabric keys seed")


async def rotate(arguments: argparse.Namespace) -> None:
    """Makes another key active."""
    must_be_told(arguments)
    kid = draw_key().kid if arguments.kid is None else parse_kid(arguments.kid)
    secret = None if arguments.secret_file is None else secret_of(arguments.secret_file)
    async with writing(arguments) as engine:
        ends = "" if arguments.grace is None else f" Tokens of the old key end after {arguments.grace}."
        confirm(arguments, f"Sign with the new key {kid} from now on, in all namespaces of the store?{ends}")
        answer = await engine.keys.rotate(kid, secret, grace=arguments.grace, **who(arguments))
    if not isinstance(answer, Rotated):
        say(arguments, f"Nothing to do: {kid} is the active key.", {"rotated": False, **plain(answer)})
        return
    said = f"{kid} is the active key; before it was {answer.previous or 'none'}."
    said += f" {count_of(answer.cut_off, 'open waitpoint')} will be cut off." if answer.cut_off else ""
    say(arguments, said, {"rotated": True, **plain(answer)})


async def seed(arguments: argparse.Namespace) -> int:
    """Gives the store its first key."""
    kid, secret = parse_kid(arguments.kid), secret_of(arguments.secret_file)
    async with writing(arguments) as engine:
        answer = await engine.keys.seed(kid, secret, **who(arguments))
    if isinstance(answer, Seeded):
        say(arguments, f"{kid} is the active key.", {"seeded": True, "kid": kid})
        return 0
    same = "with this secret" if answer.same_secret else "with another secret"
    say(arguments, f"{kid} was there before, {same}.", {"seeded": False, **plain(answer)})
    return 0 if answer.same_secret else 1


def keys_table(keys: Sequence[KeyView], now: datetime, screen: Screen) -> list[str]:
    """Keys as people see them."""
    rows = [
        (key.kid, key.state, age(key.created_at, now), _left(key, now), "yes" if key.in_use else "no",
         "known" if key.known else "missing" if key.state in ("active", "verifying") else "gone")
        for key in keys
    ]  # fmt: skip
    return table(_COLUMNS, rows, screen)


def _left(key: KeyView, now: datetime) -> str:
    if key.verifies_until is None:
        return "ever"
    return age(key.verifies_until, now).removeprefix("in ") if key.verifies_until > now else "ended"
