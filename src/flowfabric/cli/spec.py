"""Declarations of commands as plain data, so that help and completion need no other imports of the package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Argument:
    """One option or positional argument. `settings` are the keyword arguments for argparse's `add_argument`."""

    names: tuple[str, ...]
    help: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_option(self) -> bool:
        return self.names[0].startswith("-")

    @property
    def takes_value(self) -> bool:
        """True if a value follows the option."""
        return (self.is_option and "action" not in self.settings) or self.settings.get("action") == "append"

    @property
    def choices(self) -> tuple[str, ...]:
        return tuple(self.settings.get("choices", ()))

    @property
    def label(self) -> str:
        """The placeholder for the argument's value in the help text."""
        longest = self.names[-1].lstrip("-").replace("-", "_").upper()
        return str(self.settings.get("metavar", longest))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """One command.

    `run` names the command's function as `module:function` below `flowfabric.cli.commands`. An audited command records
    who ran it. If `reason_help` is set, an audited command also records a reason. A command with `needs_confirmation`
    asks the user on the terminal before it acts.
    """

    name: str
    help: str
    run: str
    description: str = ""
    arguments: tuple[Argument, ...] = ()
    subcommands: tuple[CommandSpec, ...] = ()
    is_audited: bool = False
    reason_help: str | None = "why, for the history"
    needs_confirmation: bool = False

    @property
    def all_arguments(self) -> tuple[Argument, ...]:
        """The command's own arguments, then the arguments for audit and confirmation."""
        audit = self._audit_arguments if self.is_audited else ()
        return self.arguments + audit + (CONFIRMATION if self.needs_confirmation else ())

    @property
    def _audit_arguments(self) -> tuple[Argument, ...]:
        if self.reason_help is None:
            return (PRINCIPAL,)
        return (argument("--reason", default="", help=self.reason_help), PRINCIPAL)


def argument(*names: str, help: str, **settings: Any) -> Argument:
    """Declare an option, or a positional argument if the name has no dashes."""
    return Argument(names, help, settings)


def flag(*names: str, help: str) -> Argument:
    """Declare an option without a value."""
    return Argument(names, help, {"action": "store_true"})


def repeatable(*names: str, help: str, **settings: Any) -> Argument:
    """Declare an option that may be given several times."""
    return Argument(names, help, {"action": "append", "default": [], **settings})


PRINCIPAL = argument("--principal", metavar="WHO", help="who acts, for the history (the system user)")
CONFIRMATION = (flag("--yes", "-y", help="do not ask for confirmation"),)

# These options are accepted both before and after the command.
COMMON = (
    argument("--store", metavar="URL", help="postgresql://… or a file; $FLOWFABRIC_STORE, else flowfabric.db"),
    argument("--namespace", metavar="NAME", help="the namespace to use (default)"),
    argument("--schema", metavar="NAME", help="the schema on PostgreSQL (flowfabric)"),
    flag("--pooler", help="connect through a pooler in transaction mode"),
    flag("--not-durable", help="accept a store that may lose acknowledged work in a power cut"),
    flag("--json", help="print one JSON document per line"),
)
DEFAULTS: Mapping[str, Any] = {
    "store": None, "namespace": "default", "schema": "flowfabric", "pooler": False, "not_durable": False, "json": False,
}  # fmt: skip
