"""Test the programs on the engine's page, and its list of operations, and the list of packages.

tests/docs checks that every program of every page runs, and that links are valid.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from flowfabric.engine.events import Events
from flowfabric.engine.executions import Executions
from flowfabric.engine.flows import Flows
from flowfabric.engine.keys import Keys
from flowfabric.engine.lanes import Lanes
from flowfabric.engine.leases import Leases
from flowfabric.engine.operator import Operator
from flowfabric.engine.signals import Signals
from flowfabric.engine.waitpoints import Waitpoints
from flowfabric.engine.workers import Workers
from flowfabric.reconcilers.loop import Reconcilers

ROOT = Path(__file__).parent.parent
ENGINE = (ROOT / "docs" / "engine.md").read_text(encoding="utf-8")
GROUPS = {
    "executions": Executions,
    "leases": Leases,
    "flows": Flows,
    "waitpoints": Waitpoints,
    "signals": Signals,
    "keys": Keys,
    "operator": Operator,
    "lanes": Lanes,
    "workers": Workers,
    "events": Events,
    "reconcilers": Reconcilers,
}


def blocks(text: str) -> list[str]:
    """Return the Python blocks of a document."""
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def programs() -> list[str]:
    """Return the Python blocks about the engine that are complete programs."""
    return [block for block in blocks(ENGINE) if "asyncio.run" in block]


def run(program: str, folder: Path) -> str:
    """Run a program and return its output."""
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_first_program_runs_twice_and_finds_its_order(tmp_path: Path) -> None:
    first, *_ = programs()
    assert [run(first, tmp_path) for _ in range(2)] == ['"shipped"\n'] * 2


def test_signed_approval_needs_both_and_explains_its_wait(tmp_path: Path) -> None:
    _, approval, _ = programs()
    why, ann, bob, resumed = run(approval, tmp_path).splitlines()
    assert "2 more of 2 sources" in why and "verified" not in why
    assert ann == "ann appended_to_waitpoint" and bob == "bob resume_condition_satisfied"
    assert resumed == "resumed ['approver:ann@shop', 'approver:bob@shop']"


def test_flow_adds_up_the_counts_of_its_members(tmp_path: Path) -> None:
    _, _, flow = programs()
    assert run(flow, tmp_path) == "b'5'\n"


@pytest.mark.parametrize("group", GROUPS)
def test_docs_list_exactly_the_operations_of_each_group(group: str) -> None:
    [row] = [line for line in ENGINE.splitlines() if line.startswith(f"| `engine.{group}`")]
    listed = set(re.findall(r"`(\w+)`", row.split("|")[2]))
    offered = {name for name in dir(GROUPS[group]) if not name.startswith("_")} - {"wake_for"}
    assert listed == offered


def test_the_packages_of_the_overview_are_those_of_the_tree() -> None:
    text = (ROOT / "docs" / "architecture" / "overview.md").read_text(encoding="utf-8")
    packages = re.findall(r"^([a-z]+)/ ", text, re.MULTILINE)
    folders = {path.name for path in (ROOT / "src" / "flowfabric").iterdir() if (path / "__init__.py").exists()}
    assert sorted(packages) == sorted(folders)
