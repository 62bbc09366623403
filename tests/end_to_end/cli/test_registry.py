"""The registry of verbs: whole, and in step with the engine's own words."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from importlib import import_module

import pytest

from flowfabric.cli import exit_codes
from flowfabric.cli.parsing import make_parser
from flowfabric.cli.verbs import VERBS, executions, operating, store
from flowfabric.cli.verbs.declaring import COMMON, Verb
from flowfabric.engine import CancelPolicy, EventFamily, FlowState, State
from flowfabric.sdk.default_store import DEFAULT_STORE, STORE_VARIABLE
from tests.end_to_end.cli.shell import ROOT

ASKED_FOR = """
    worker submit list show history explain signal approve reject cancel revoke replay priority hold unhold lanes flows
    waitpoints keys events workers stats doctor migrate check bench completion
"""


def every(verbs: Sequence[Verb] = VERBS, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Verb]]:
    """All verbs with their words, those below others too."""
    for verb in verbs:
        path = (*before, verb.name)
        yield path, verb
        yield from every(verb.verbs, path)


def test_every_verb_that_there_should_be_is_there() -> None:
    assert set(ASKED_FOR.split()) <= {verb.name for verb in VERBS}


def test_every_verb_leads_to_a_function() -> None:
    for path, verb in every():
        module, _, function = verb.run.partition(":")
        assert callable(getattr(import_module(f"flowfabric.cli.{module}"), function)), path


def test_choices_are_the_words_of_the_engine() -> None:
    assert tuple(State) == executions.STATES
    assert tuple(EventFamily) == executions.FAMILIES
    assert tuple(CancelPolicy) == operating.POLICIES
    assert tuple(FlowState) == store.FLOW_STATES


def test_help_names_the_variable_and_the_file_that_are_used() -> None:
    assert f"${STORE_VARIABLE}, else {DEFAULT_STORE}" in COMMON[0].help


@pytest.mark.parametrize("path", [path for path, _ in every()], ids=" ".join)
def test_options_for_the_store_and_json_go_before_and_after_every_verb(path: tuple[str, ...]) -> None:
    given = ["--store", "x.db", "--json"]
    needed = ["1"] * sum(
        not item.is_option and item.settings.get("nargs") != "?" for item in dict(every())[path].arguments
    )
    if path == ("completion",):
        needed = ["bash"]
    required = ["--secret-file", "-"] if path == ("keys", "seed") else []
    parser = make_parser()
    for words in ([*given, *path, *needed, *required], [*path, *needed, *required, *given]):
        found = parser.parse_args(words)
        assert (found.store, found.json, found.verb.name) == ("x.db", True, path[-1]), words


def test_exit_codes_are_told_and_do_not_change() -> None:
    assert list(exit_codes.MEANINGS) == [0, 1, 2, 3, 4, 5, 6, 70, 130, 141]


def test_both_names_of_the_command_are_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == dict.fromkeys(("flowfabric", "ff"), "flowfabric.cli.main:main")
