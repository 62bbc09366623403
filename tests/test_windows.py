"""What holds on Windows: everything can be imported and stores in memory work; a SQLite file is refused with advice.

The tests run in a process without the modules and functions that Windows lacks.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# What Python lacks on Windows, among the modules and names that the package uses anywhere.
WITHOUT_UNIX = """
import os, sys, time
sys.modules["fcntl"] = None
for module, names in {
    os: ("O_CLOEXEC", "fchmod", "fchown", "fork", "geteuid", "register_at_fork"),
    time: ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC", "clock_gettime", "clock_gettime_ns"),
}.items():
    for name in names:
        vars(module).pop(name, None)
"""
IMPORT_EVERYTHING = """
import importlib, pkgutil
import flowfabric
for module in pkgutil.walk_packages(flowfabric.__path__, "flowfabric."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(len(sys.modules) > 100)
"""
RUN_A_TASK = """
from flowfabric import App, gather, step
app = App(":memory:")

@app.task
async def hello(name: str) -> str:
    first, second = await gather(step("Hello, {}".format, name), step(str, "!"))
    return first + second

if __name__ == "__main__":
    print(app.run(hello, "Windows"))
"""
OPEN_A_FILE = """
from flowfabric import App
app = App("jobs.db")

@app.task
def job() -> None: ...

app.run(job)
"""


def run_without_unix(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_UNIX + program]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=60)


def test_every_module_can_be_imported_on_windows(tmp_path: Path) -> None:
    process = run_without_unix(IMPORT_EVERYTHING, tmp_path)
    assert (process.stdout, process.stderr) == ("True\n", "")


def test_a_store_in_memory_works_on_windows(tmp_path: Path) -> None:
    process = run_without_unix(RUN_A_TASK, tmp_path)
    assert (process.stdout, process.stderr) == ("Hello, Windows!\n", "")


def test_a_sqlite_file_is_refused_on_windows_with_what_to_use_instead(tmp_path: Path) -> None:
    process = run_without_unix(OPEN_A_FILE, tmp_path)
    assert process.returncode == 1
    assert process.stderr.splitlines()[-1].endswith(
        "file_locks_missing: "
        f"{tmp_path / 'jobs.db'} cannot be opened, because a store in a SQLite file needs the file locks of Linux or "
        "macOS; use PostgreSQL, a store in memory (:memory:), or the Windows Subsystem for Linux"
    )
    assert list(tmp_path.iterdir()) == []
