"""Test an installed package: the wheel needs no compiler, and the command works on SQLite."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest

import dev

pytestmark = [pytest.mark.alone, pytest.mark.full]

HELLO = """
from flowfabric import App, step
app = App("hello.db")

@app.task
async def hello(name: str) -> str:
    return await step("Hello, {}!".format, name)

if __name__ == "__main__":
    print(app.run(hello, "world"))
"""
# The limit of 0.35 s is for an idle machine. On a shared machine the same work takes longer.
IMPORT_S, APP_S = 0.35, 0.5


# `flowfabric demo` takes about 5 s on an idle core.
DEMO_S = 20.0


@pytest.mark.long
def test_the_wheel_works_in_a_clean_environment(tmp_path: Path, scoreboard: Callable[[str], None]) -> None:
    python = install_package(tmp_path)
    command = str(python.with_name("flowfabric"))
    assert run_command(tmp_path, str(python), "-c", "import asyncpg", code=1) == "", "the environment is not clean"
    assert run_command(tmp_path, command, "--version") == f"flowfabric {metadata.version('flowfabric')}\n"
    assert run_command(tmp_path, command, "--store", "hello.db", "migrate").startswith("Created the store")
    (tmp_path / "hello.py").write_text(HELLO)
    assert run_command(tmp_path, str(python), "hello.py") == "Hello, world!\n"
    [line] = run_command(tmp_path, str(python.with_name("ff")), "--store", "hello.db", "list", "--json").splitlines()
    assert (json.loads(line)["kind"], json.loads(line)["state"]) == ("hello", "completed")
    whole, app = (
        least_cpu_time_s(tmp_path, python, code) for code in ("import flowfabric", "from flowfabric import App, step")
    )
    scoreboard(f"`import flowfabric` {whole:.3f} s, with `App` {app:.3f} s of the processor at best")
    assert whole < IMPORT_S and app < APP_S


@pytest.mark.long
def test_demo_runs_from_the_wheel_with_the_base_dependencies_in_20_s(tmp_path: Path) -> None:
    python = install_package(tmp_path)
    began = time.monotonic()
    printed = run_command(tmp_path, str(python.with_name("flowfabric")), "demo")
    assert time.monotonic() - began < DEMO_S
    assert "result: 120 euros for order 17 are paid back" in printed
    assert printed.endswith("The demo has removed its store, its files and its workers.\n")


def test_base_lock_has_the_base_dependencies_at_the_versions_of_the_lock() -> None:
    base, whole = (
        dict(re.findall(r"^([\w.-]+)==(\S+)", lock.read_text(), re.MULTILINE)) for lock in (dev.BASE_LOCK, dev.LOCK)
    )
    assert base.items() <= whole.items()
    assert set(base) == set(requirements_of("flowfabric"))


def install_package(folder: Path) -> Path:
    """Install the package with only its required dependencies, and return the Python of the new environment."""
    dev.pip(Path(sys.prefix), "wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", folder, dev.ROOT)
    [wheel] = folder.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl"), "only pure Python needs no compiler"
    dev.create_venv(folder / "venv")
    dev.pip(folder / "venv", "install", "--no-index", "--no-deps", wheel)
    [packages] = (folder / "venv" / "lib").glob("python*/site-packages")
    for path in {path for name in requirements_of("flowfabric") for path in parts_of(name)}:
        (packages / path.name).symlink_to(path)
    return folder / "venv" / "bin" / "python"


def requirements_of(package: str) -> Iterator[str]:
    """Return the transitive requirements of a package, without extras."""
    for requirement in metadata.requires(package) or ():
        if "extra ==" not in requirement:
            name = re.split(r"[^\w.-]", requirement)[0]
            yield name
            yield from requirements_of(name)


def parts_of(package: str) -> set[Path]:
    """Return the files and folders that a package has installed."""
    distribution = metadata.distribution(package)
    tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
    return {Path(str(distribution.locate_file(top))) for top in tops}


def run_command(folder: Path, *words: str, code: int = 0) -> str:
    done = subprocess.run(
        words, cwd=folder, env=bare_environment(), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def bare_environment() -> dict[str, str]:
    """Return an environment without a compiler on the path and without Python variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FLOWFABRIC", "PATH"))}


def least_cpu_time_s(folder: Path, python: Path, code: str) -> float:
    """Return the lowest processor time of several runs of a program."""
    took = []
    for _ in range(7):
        before = cpu_time_s()
        run_command(folder, str(python), "-c", code)
        took.append(cpu_time_s() - before)
    return min(took)


def cpu_time_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
