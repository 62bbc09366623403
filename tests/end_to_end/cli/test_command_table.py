"""The command table is complete and uses the engine's own names."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from importlib import import_module

import pytest

from flowfabric.app.store_address import DEFAULT_STORE, STORE_VARIABLE
from flowfabric.cli import command_table, exit_codes
from flowfabric.cli.command_table import COMMANDS
from flowfabric.cli.parser import make_parser
from flowfabric.cli.spec import COMMON, CommandSpec
from flowfabric.engine import CancelPolicy, EventFamily, FlowState, State
from tests.end_to_end.cli.shell import ROOT

REQUIRED_COMMANDS = """
    worker submit list show history explain signal approve reject cancel revoke replay priority hold unhold lanes flows
    waitpoints keys events workers stats doctor migrate check bench demo completion
"""


def all_commands(
    specs: Sequence[CommandSpec] = COMMANDS, parent_path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], CommandSpec]]:
    """Yield every command and subcommand with its path."""
    for spec in specs:
        path = (*parent_path, spec.name)
        yield path, spec
        yield from all_commands(spec.subcommands, path)


def test_all_required_commands_exist() -> None:
    assert set(REQUIRED_COMMANDS.split()) <= {spec.name for spec in COMMANDS}


def test_every_command_has_a_function() -> None:
    for path, spec in all_commands():
        module, _, function = spec.run.partition(":")
        assert callable(getattr(import_module(f"flowfabric.cli.commands.{module}"), function)), path


def test_choices_match_the_enums_of_the_engine() -> None:
    assert tuple(State) == command_table.STATES
    assert tuple(EventFamily) == command_table.FAMILIES
    assert tuple(CancelPolicy) == command_table.POLICIES
    assert tuple(FlowState) == command_table.FLOW_STATES


def test_help_names_the_store_variable_and_the_default_file() -> None:
    assert f"${STORE_VARIABLE}, else {DEFAULT_STORE}" in COMMON[0].help


@pytest.mark.parametrize("path", [path for path, _ in all_commands()], ids=" ".join)
def test_common_options_are_accepted_before_and_after_every_command(path: tuple[str, ...]) -> None:
    common_options = ["--store", "x.db", "--json"]
    positionals = ["1"] * sum(
        not argument.is_option and argument.settings.get("nargs") != "?"
        for argument in dict(all_commands())[path].arguments
    )
    if path == ("completion",):
        positionals = ["bash"]
    required_options = ["--secret-file", "-"] if path == ("keys", "seed") else []
    parser = make_parser()
    for words in (
        [*common_options, *path, *positionals, *required_options],
        [*path, *positionals, *required_options, *common_options],
    ):
        namespace = parser.parse_args(words)
        assert (namespace.store, namespace.json, namespace.command.name) == ("x.db", True, path[-1]), words


def test_exit_codes_are_stable() -> None:
    assert list(exit_codes.MEANINGS) == [0, 1, 2, 3, 4, 5, 6, 70, 130, 141]


def test_both_names_of_the_command_are_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == dict.fromkeys(("flowfabric", "ff"), "flowfabric.cli.main:main")
