"""`flowfabric keys`, `migrate`, `backup` and `restore`: manage signing keys, the schema and copies of the store.

Secrets are never passed as arguments and never printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from flowfabric.cli import exit_codes
from flowfabric.cli.inputs import audit_args, confirm, read_secret, require_confirmation
from flowfabric.cli.output import (
    format_age,
    format_count,
    format_json,
    print_hint,
    print_lines,
    print_result,
    stdout_screen,
    to_json,
)
from flowfabric.cli.targets import open_and_migrate, open_for_reading, open_for_writing, store_url
from flowfabric.cli.terminal import Column, Screen, format_table
from flowfabric.core.errors import Unavailable
from flowfabric.core.tokens.key_ring import parse_kid
from flowfabric.engine import KeyView, Rotated, Seeded
from flowfabric.engine.keys import draw_key
from flowfabric.engine.opener import restorable_path, restore_backup

_COLUMNS = (
    Column("KID"), Column("STATE"), Column("AGE", align_right=True), Column("VERIFIES FOR", align_right=True),
    Column("IN USE", is_optional=True), Column("SECRET"),
)  # fmt: skip


async def list_keys(arguments: argparse.Namespace) -> None:
    """Print all keys, newest first."""
    async with open_for_reading(arguments) as engine:
        keys, now = await engine.keys.list(), engine.now()
    if arguments.json:
        print_lines(format_json(key) for key in keys)
    elif keys:
        print_lines(keys_table(keys, now, stdout_screen()))
    else:
        print_hint("There is no key yet. The first token creates one, or run: flowfabric keys seed")


async def rotate(arguments: argparse.Namespace) -> None:
    """Activate another key."""
    require_confirmation(arguments)
    kid = draw_key().kid if arguments.kid is None else parse_kid(arguments.kid)
    secret = None if arguments.secret_file is None else read_secret(arguments.secret_file)
    async with open_for_writing(arguments) as engine:
        expiry = "" if arguments.grace is None else f" Tokens of the old key expire after {arguments.grace}."
        confirm(arguments, f"Sign new tokens with key {kid} in all namespaces of the store?{expiry}")
        outcome = await engine.keys.rotate(kid, secret, grace=arguments.grace, **audit_args(arguments))
    if not isinstance(outcome, Rotated):
        print_result(arguments, f"Nothing to do: {kid} is the active key.", {"rotated": False, **to_json(outcome)})
        return
    sentence = f"{kid} is the active key; the previous one was {outcome.previous or 'none'}."
    if outcome.cut_off:
        sentence += f" The tokens of {format_count(outcome.cut_off, 'open waitpoint')} will expire with the old key."
    print_result(arguments, sentence, {"rotated": True, **to_json(outcome)})


async def seed(arguments: argparse.Namespace) -> int:
    """Store the first key. Return 1 if a key with this kid (key id) exists with a different secret."""
    kid, secret = parse_kid(arguments.kid), read_secret(arguments.secret_file)
    async with open_for_writing(arguments) as engine:
        outcome = await engine.keys.seed(kid, secret, **audit_args(arguments))
    if isinstance(outcome, Seeded):
        print_result(arguments, f"{kid} is the active key.", {"seeded": True, "kid": kid})
        return exit_codes.OK
    same = "with this secret" if outcome.same_secret else "with another secret"
    print_result(arguments, f"{kid} already exists {same}.", {"seeded": False, **to_json(outcome)})
    return exit_codes.OK if outcome.same_secret else exit_codes.FAILED


def keys_table(keys: Sequence[KeyView], now: datetime, screen: Screen) -> list[str]:
    """Return the keys as a table."""
    rows = [
        (
            key.kid,
            key.state,
            format_age(key.created_at, now),
            _remaining(key, now),
            "yes" if key.in_use else "no",
            "known" if key.known else "missing" if key.state in ("active", "verifying") else "gone",
        )
        for key in keys
    ]
    return format_table(_COLUMNS, rows, screen)


def _remaining(key: KeyView, now: datetime) -> str:
    if key.verifies_until is None:
        return "no limit"
    return format_age(key.verifies_until, now).removeprefix("in ") if key.verifies_until > now else "ended"


async def migrate(arguments: argparse.Namespace) -> int:
    """Create the store or update its schema. With --check, only report whether a migration is necessary."""
    before, is_current = await _read_version(arguments)
    if arguments.check:
        return _print_check(arguments, before, is_current)
    async with open_and_migrate(arguments) as engine:
        now = (await engine.store_info()).schema_version
    if before == now:
        sentence = f"The schema is already at version {now}."
    elif before:
        sentence = f"Migrated the schema from version {before} to {now}."
    else:
        sentence = f"Created the store with schema version {now}."
    print_result(arguments, sentence, {"from": before, "to": now, "changed": before != now})
    return exit_codes.OK


async def backup(arguments: argparse.Namespace) -> None:
    """Write a checked copy of the store to a new file."""
    async with open_for_reading(arguments) as engine:
        await engine.backup(arguments.file)
    print_result(arguments, f"Wrote a checked backup to {arguments.file}.", {"file": arguments.file})


async def restore(arguments: argparse.Namespace) -> None:
    """Put a backup in the place of the store."""
    url = store_url(arguments)
    if _exists(restorable_path(url)):
        question = f"Replace the store {url} with {arguments.file}? The former store is kept under another name."
        confirm(arguments, question)
    kept = await restore_backup(url, arguments.file)
    former = "" if kept is None else f" The former store is {kept}."
    print_result(arguments, f"Restored {arguments.file} to {url}.{former}", {"file": arguments.file, "kept": kept})


def _exists(path: str) -> bool:
    return Path(path).exists()


def _print_check(arguments: argparse.Namespace, version: int, is_current: bool) -> int:
    state = f"The schema is at version {version}" if version else "There is no store yet"
    advice = "nothing to do" if is_current else "run flowfabric migrate"
    print_result(arguments, f"{state}: {advice}.", {"version": version, "present": is_current})
    return exit_codes.OK if is_current else exit_codes.FAILED


async def _read_version(arguments: argparse.Namespace) -> tuple[int, bool]:
    """Return the store's schema version and whether it is current. The version is 0 if there is no store."""
    try:
        async with open_for_reading(arguments) as engine:
            return (await engine.store_info()).schema_version, True
    except Unavailable as error:
        if error.code not in ("schema_outdated", "store_not_found"):
            raise
        return int(error.fields["version"]), False
