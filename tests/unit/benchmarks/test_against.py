"""Tests that two checkouts take turns and that corresponding figures are compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import against
from benchmarks.against import Comparison, Figure, Tree, TreeFailed
from benchmarks.spread import Spread
from tests.postgres_server import PostgresServer

OURS, THEIRS = Tree("ours", Path("ours")), Tree("theirs", Path("theirs"))
RATE = Figure("PostgreSQL", "FlowFabric SDK", "jobs/s", "submit to result", 100.0, 40.0)
TIME = Figure("SQLite", "FlowFabric engine", "ms p50", "resume", 4.0, None)

# A benchmark program that reports the speed of its `flowfabric` package and the URL of its server.
FAKE_RUN = """
import json, os, sys
import flowfabric
where = {"backend": "PostgreSQL", "scenario": os.environ["FLOWFABRIC_TEST_PG_DSN"]}
figure = {"values": [float(flowfabric.SPEED)]}
own = where | {"who": "FlowFabric SDK", "unit": "jobs/s", "figure": figure, "client_us": 2.0, "server_us": 3.0}
found = {"series": [own, own | {"who": "pgbench"}, own | {"unit": "statements/job"}], "broken": flowfabric.BROKEN}
open(sys.argv[sys.argv.index("--json") + 1], "w").write(json.dumps(found))
sys.exit(1)
"""


def checkout(folder: Path, source: str) -> Tree:
    """Write a checkout whose benchmark is FAKE_RUN, and return it."""
    for path, text in {"src/flowfabric/__init__.py": source, "benchmarks/run.py": FAKE_RUN}.items():
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text(text)
    return Tree("fake", folder)


def test_each_tree_begins_every_other_time() -> None:
    order = [f"{name} {tree.label}" for name, tree in against.turns(OURS, THEIRS, ["a", "b"], 2)]
    assert order[:4] == ["a ours", "a theirs", "b theirs", "b ours"]
    assert order[4:] == ["a theirs", "a ours", "b ours", "b theirs"]


def test_a_tree_runs_its_own_code_on_the_common_server(postgres: PostgresServer, tmp_path: Path) -> None:
    tree = checkout(tmp_path / "tree", "SPEED, BROKEN = 7, {}")
    [figure] = against.measure(tree, "jobs", 0.1, postgres.dsn, tmp_path)
    assert figure == Figure("PostgreSQL", "FlowFabric SDK", "jobs/s", postgres.dsn, 7.0, 5.0)


@pytest.mark.parametrize("source", ["SPEED, BROKEN = 7, {'jobs': 'no'}", "raise RuntimeError('no')"])
def test_a_scenario_that_breaks_is_reported(postgres: PostgresServer, tmp_path: Path, source: str) -> None:
    tree = checkout(tmp_path / "tree", source)
    with pytest.raises(TreeFailed, match="jobs failed in"):
        against.measure(tree, "jobs", 0.1, postgres.dsn, tmp_path)


def test_path_that_is_not_a_checkout_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert against.main(["--against", str(tmp_path)]) == 1
    assert "src/flowfabric is missing" in capsys.readouterr().err


def test_the_ratio_of_rates_is_ours_over_theirs() -> None:
    comparison = Comparison("jobs", (RATE, replace(RATE, value=90.0)), (replace(RATE, value=50.0), RATE))
    assert comparison.speed == Spread((2.0, 0.9))


def test_the_ratio_of_times_is_above_1_if_ours_is_shorter() -> None:
    assert Comparison("waits", (TIME,), (replace(TIME, value=8.0),)).speed == Spread((2.0,))


def test_cpu_is_compared_if_every_round_has_it() -> None:
    half = replace(RATE, cpu_us=20.0)
    assert Comparison("jobs", (half, RATE), (RATE, RATE)).cpu == Spread((0.5, 1.0))
    assert Comparison("jobs", (half, RATE), (RATE, replace(RATE, cpu_us=None))).cpu is None


def test_figures_belong_together_by_their_labels() -> None:
    other = replace(RATE, scenario="another")
    assert against.match("jobs", [RATE, other], [other, RATE]) == {RATE.key: RATE.key, other.key: other.key}


def test_reworded_figures_belong_together_by_backend_unit_and_position() -> None:
    first, second = replace(RATE, scenario="one"), replace(RATE, scenario="two")
    mine = [replace(first, scenario="1"), TIME, replace(second, scenario="2")]
    partners = against.match("jobs", mine, [first, second, TIME])
    assert partners == {mine[0].key: first.key, TIME.key: TIME.key, mine[2].key: second.key}


def test_a_figure_that_one_tree_lacks_is_an_error() -> None:
    with pytest.raises(TreeFailed, match="no counterpart"):
        against.match("jobs", [RATE], [RATE, TIME])


def test_waits_are_summarized_separately_for_durable_functions_and_the_engine() -> None:
    durable = Comparison("waits", (RATE,), (RATE,))
    engine = Comparison("waits", (TIME,), (replace(TIME, value=1.0),))
    text = against.report([durable, engine])
    summary = text.partition("Geometric means")[2]
    assert "waits of durable functions  PostgreSQL  1.000" in summary
    assert "waits of engine callers     SQLite      0.250" in summary


def test_every_round_is_written_as_json() -> None:
    rows: list[dict[str, Any]] = json.loads(against.to_json([Comparison("jobs", (RATE, RATE), (RATE, RATE))]))
    assert [row["speed"] for row in rows] == [[1.0, 1.0]]
    assert [figure["value"] for figure in rows[0]["ours"]] == [100.0, 100.0]
