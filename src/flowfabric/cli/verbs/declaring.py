"""How a verb is declared: plain data, so that help and completion need nothing else of the package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Argument:
    """One option or positional argument, in the words of argparse."""

    names: tuple[str, ...]
    help: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_option(self) -> bool:
        return self.names[0].startswith("-")

    @property
    def takes_value(self) -> bool:
        """True if a word follows the option."""
        return (self.is_option and "action" not in self.settings) or self.settings.get("action") == "append"

    @property
    def choices(self) -> tuple[str, ...]:
        return tuple(self.settings.get("choices", ()))

    @property
    def label(self) -> str:
        """What stands for its value in help."""
        longest = self.names[-1].lstrip("-").replace("-", "_").upper()
        return str(self.settings.get("metavar", longest))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One command. `run` names the function that does it, as `module:function` below `flowfabric.cli`. One that
    `operates` is recorded with who did it, and with the `reason` if there is a place for one; one that `asks` must be
    confirmed."""

    name: str
    help: str
    run: str
    about: str = ""
    arguments: tuple[Argument, ...] = ()
    verbs: tuple[Verb, ...] = ()
    operates: bool = False
    reason: str | None = "why, for the history"
    asks: bool = False

    @property
    def all_arguments(self) -> tuple[Argument, ...]:
        """Its own arguments, and those that follow from what it does."""
        return self.arguments + (self._operating if self.operates else ()) + (ASKING if self.asks else ())

    @property
    def _operating(self) -> tuple[Argument, ...]:
        return (PRINCIPAL,) if self.reason is None else (argument("--reason", default="", help=self.reason), PRINCIPAL)


def argument(*names: str, help: str, **settings: Any) -> Argument:
    """An argument; one without dashes is positional."""
    return Argument(names, help, settings)


def flag(*names: str, help: str) -> Argument:
    """An option without a value."""
    return Argument(names, help, {"action": "store_true"})


def many(*names: str, help: str, **settings: Any) -> Argument:
    """An option that may be given several times."""
    return Argument(names, help, {"action": "append", "default": [], **settings})


PRINCIPAL = argument("--principal", metavar="WHO", help="who, for the history; the user of the system by default")
ASKING = (flag("--yes", "-y", help="do not ask"),)

# These go before the command as well as after it.
COMMON = (
    argument("--store", metavar="URL", help="postgresql://… or a file; $FLOWFABRIC_STORE, else flowfabric.db"),
    argument("--namespace", metavar="NAME", help="the namespace to act in (default)"),
    argument("--schema", metavar="NAME", help="the schema on PostgreSQL (flowfabric)"),
    flag("--pooler", help="PostgreSQL is behind a pooler in transaction mode"),
    flag("--not-durable", help="accept a store that may lose acknowledged work in a power cut"),
    flag("--json", help="one JSON document a line"),
)
DEFAULTS: Mapping[str, Any] = {
    "store": None, "namespace": "default", "schema": "flowfabric", "pooler": False, "not_durable": False, "json": False,
}  # fmt: skip
