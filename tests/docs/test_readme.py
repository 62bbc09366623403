"""The README is short, its links work on a package index, and its programs print what it shows."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from flowfabric.engine import State, connect
from tests.docs.pages import ROOT, anchors, fences

PAGE = ROOT / "README.md"
README = PAGE.read_text(encoding="utf-8")
HELLO, TRIP, REFUND, TEST = (fence.text for fence in fences(PAGE) if fence.language == "python")
FIRST_SCREEN = "\n".join(README.splitlines()[:35])
LINKS = re.findall(r"\]\(([^)\s]+)\)", README)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY = PROJECT["urls"]["Repository"]
BLOB, RAW = f"{REPOSITORY}/blob/main/", f"{REPOSITORY.replace('github.com', 'raw.githubusercontent.com')}/main/"
TIMEOUT_S = 60


def test_readme_has_at_most_200_lines() -> None:
    assert len(README.splitlines()) <= 200


def test_first_screen_says_what_it_does_how_to_install_it_and_how_to_run_hello() -> None:
    assert "continues where it stopped" in FIRST_SCREEN
    assert "pip install flowfabric" in FIRST_SCREEN
    assert HELLO in FIRST_SCREEN and "python hello.py" in FIRST_SCREEN and "Hello, world!" in FIRST_SCREEN


def test_both_commands_of_a_checkout_are_near_the_top() -> None:
    lines = README.splitlines()
    commands = [number for number, line in enumerate(lines) if re.match(r"python3 dev\.py (demo|test)", line)]
    assert len(commands) == 2 and max(commands) < 50
    assert lines.index("## Try it from a checkout") < min(commands)


@pytest.mark.parametrize("link", sorted(set(LINKS)))
def test_link_works_on_a_package_index(link: str) -> None:
    assert target_problem(link) is None


@pytest.mark.parametrize(
    "link", ["docs/index.md", "#speed", f"{BLOB}docs/gone.md", f"{BLOB}docs/concepts.md#gone", "http://example.com"]
)
def test_link_that_a_package_index_cannot_follow_is_found(link: str) -> None:
    assert target_problem(link) is not None


def target_problem(link: str) -> str | None:
    """Return what is wrong with a link: it must be absolute, and its target in this repository must exist."""
    base = next((base for base in (BLOB, RAW) if link.startswith(base)), None)
    if base is None:
        return f"{link} is not an address in the repository"
    path, _, anchor = link.removeprefix(base).partition("#")
    target = ROOT / path
    if not target.is_file() or (anchor and anchor not in anchors(target)):
        return f"{link} has no target"
    return None


def test_every_address_of_the_project_is_below_its_repository() -> None:
    assert all(address.startswith(REPOSITORY) for address in PROJECT["urls"].values())


def test_hello_runs(tmp_path: Path) -> None:
    assert run(HELLO, tmp_path) == "Hello, world!\n"


async def test_killed_trip_continues_as_the_readme_shows(tmp_path: Path) -> None:
    shown = next(fence.text for fence in fences(PAGE) if "kill -9" in fence.text).splitlines()
    first, *second = [line for line in shown if not line.startswith("$ ")]
    command = [sys.executable, "-uc", TRIP]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - it starts fast
    with process:
        assert process.stdout is not None, "stdout is a pipe"
        assert process.stdout.readline().rstrip() == first
        await wait_until_it_sleeps(tmp_path)
        process.send_signal(signal.SIGKILL)
        assert process.stdout.read() == ""
    assert run(TRIP, tmp_path).splitlines() == second
    assert run(TRIP, tmp_path).splitlines() == second[-1:], "a third run returns the stored result"


async def wait_until_it_sleeps(folder: Path) -> None:
    """Wait until the sleep of the trip is stored, which releases the lease."""
    async with asyncio.timeout(TIMEOUT_S), connect(str(folder / "trip.db")) as engine:
        while not (await engine.executions.list(state=State.DELAYED)).items:  # noqa: ASYNC110 - another process sleeps
            await asyncio.sleep(0.01)


def test_refund_passes_the_test_below_it(tmp_path: Path) -> None:
    printed = run(f"{REFUND}\n{TEST}\nimport asyncio\nasyncio.run(test_two_people_must_agree())\n", tmp_path)
    assert sorted(line.split(":")[0] for line in printed.splitlines()) == ["to finance", "to ops"]


def run(program: str, folder: Path) -> str:
    """Run a program and return its output."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
