"""`flowfabric migrate`: makes a store, or brings its schema up to date. Migrations go forward only."""

from __future__ import annotations

import argparse

from flowfabric.cli import exit_codes
from flowfabric.cli.opening import looking, migrating
from flowfabric.cli.saying import say
from flowfabric.core.errors import Unavailable


async def migrate(arguments: argparse.Namespace) -> int:
    """Says from which version to which; with --check only whether there is something to do."""
    before, is_present = await _found(arguments)
    if arguments.check:
        return _tell(arguments, before, is_present)
    async with migrating(arguments) as engine:
        now = (await engine.facts()).schema_version
    told = {"from": before, "to": now, "changed": before != now}
    if before == now:
        say(arguments, f"The schema is at version {now}; there was nothing to do.", told)
    else:
        said = (
            f"The schema went from version {before} to {now}." if before else f"The store was made, at version {now}."
        )
        say(arguments, said, told)
    return exit_codes.OK


def _tell(arguments: argparse.Namespace, version: int, is_present: bool) -> int:
    said = f"The schema is at version {version}" if version else "There is no store yet"
    to_do = "nothing to do" if is_present else "run flowfabric migrate"
    say(arguments, f"{said}: {to_do}.", {"version": version, "present": is_present})
    return exit_codes.OK if is_present else exit_codes.FAILED


async def _found(arguments: argparse.Namespace) -> tuple[int, bool]:
    """The version that is there, 0 for none, and whether it is the present one."""
    try:
        async with looking(arguments) as engine:
            return (await engine.facts()).schema_version, True
    except Unavailable as error:
        if error.code != "schema_outdated":
            raise
        return int(error.fields["version"]), False
