"""What whoever installs the package gets: a wheel that needs no compiler, and a command that works on SQLite."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest

import dev

HELLO = """
from flowfabric import App, step
app = App("hello.db")

@app.task
async def hello(name: str) -> str:
    return await step("Hello, {}!".format, name)

if __name__ == "__main__":
    print(app.run(hello, "world"))
"""
# The bar of 0.35 s is for a machine that has nothing else to do; on one that is shared the same work takes longer.
IMPORT_S, APP_S = 0.35, 0.5


@pytest.mark.long
def test_the_wheel_works_in_a_clean_environment(tmp_path: Path, scoreboard: Callable[[str], None]) -> None:
    python = installed(tmp_path)
    command = str(python.with_name("flowfabric"))
    assert says(tmp_path, str(python), "-c", "import asyncpg", code=1) == "", "it is not clean"
    assert says(tmp_path, command, "--version") == f"flowfabric {metadata.version('flowfabric')}\n"
    assert says(tmp_path, command, "--store", "hello.db", "migrate").startswith("The store was made")
    (tmp_path / "hello.py").write_text(HELLO)
    assert says(tmp_path, str(python), "hello.py") == "Hello, world!\n"
    [line] = says(tmp_path, str(python.with_name("ff")), "--store", "hello.db", "list", "--json").splitlines()
    assert (json.loads(line)["kind"], json.loads(line)["state"]) == ("hello", "completed")
    whole, app = (least_s(tmp_path, python, code) for code in ("import flowfabric", "from flowfabric import App, step"))
    scoreboard(f"`import flowfabric` {whole:.3f} s, with `App` {app:.3f} s of the processor at best")
    assert whole < IMPORT_S and app < APP_S


def installed(folder: Path) -> Path:
    """The Python of a new environment that has the package and, of the locked ones, only what the package asks for."""
    dev.pip(Path(sys.prefix), "wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", folder, dev.ROOT)
    [wheel] = folder.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl"), "anything else would have to be compiled"
    dev.create_venv(folder / "venv")
    dev.pip(folder / "venv", "install", "--no-index", "--no-deps", wheel)
    [packages] = (folder / "venv" / "lib").glob("python*/site-packages")
    for path in {path for name in needed("flowfabric") for path in parts_of(name)}:
        (packages / path.name).symlink_to(path)
    return folder / "venv" / "bin" / "python"


def needed(package: str) -> Iterator[str]:
    """The packages below one, extras left out."""
    for requirement in metadata.requires(package) or ():
        if "extra ==" not in requirement:
            name = re.split(r"[^\w.-]", requirement)[0]
            yield name
            yield from needed(name)


def parts_of(package: str) -> set[Path]:
    """The files and folders that a package has put into the environment."""
    found = metadata.distribution(package)
    tops = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
    return {Path(str(found.locate_file(top))) for top in tops}


def says(folder: Path, *words: str, code: int = 0) -> str:
    done = subprocess.run(words, cwd=folder, env=bare(), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == code, done.stderr
    return done.stdout


def bare() -> dict[str, str]:
    """An environment with no compiler on the path, and nothing that says where Python finds or puts things."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FLOWFABRIC", "PATH"))}


def least_s(folder: Path, python: Path, code: str) -> float:
    """How much of the processor a program takes at best."""
    took = []
    for _ in range(7):
        before = spent_s()
        says(folder, str(python), "-c", code)
        took.append(spent_s() - before)
    return min(took)


def spent_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
