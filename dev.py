#!/usr/bin/env python3
"""Run the project's tasks. This needs only Python 3.11 or newer and a package index that pip can reach.

usage: python3 dev.py <command> [arguments]

  setup   create .venv and install the locked packages; every other command but demo does this first when needed
  demo    run `flowfabric demo`, a tour of two minutes, in .venv-demo; --record writes docs/demo.txt
  test    run the test suite; arguments go to pytest, --all runs every test at its largest size
  faults  run the fault tests at full size: kills, freezes, outages, planted faults; arguments go to pytest
          --short runs only what `test` leaves out, and one in eight of the planted faults
          --scoreboard injects every fault in large numbers and writes docs/reliability.md; it takes up to an hour,
          and accepts --row NAME, --seed N, --minutes N, --short and --resume, which continues an interrupted run
  check   lint, formatting, types and import rules
  bench   run the benchmarks; arguments go to benchmarks/run.py, --peers first installs other systems to compare
          --publish writes the results into the README and docs/
          --against PATH alternates with the benchmarks of another checkout and prints ratios
  docs    build the documentation site in build/site, in strict mode; once .venv-docs exists it needs no network
  lock    write the lock files again; --upgrade also moves the pins forward

Three markers decide which tests a command runs, and how:

  alone   the test measures time, or needs every core; it runs after the others, one at a time
  full    `faults` runs the test at full size (`--full`); a folder's conftest.py can mark the whole folder
  long    the test is too slow for `test`; it runs at full size only
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCK = ROOT / "requirements.lock"
PROJECT = ROOT / "pyproject.toml"
DEMO = ROOT / ".venv-demo"
BASE_LOCK = ROOT / "requirements-base.lock"
DOCS = ROOT / ".venv-docs"
DOCS_LOCK = ROOT / "tools" / "docs.lock"
PEERS = ROOT / ".venv-peers"
PEERS_LOCK = ROOT / "benchmarks" / "peers.lock"

# The contribution of each area to the time budget of a plain `dev.py test`, in seconds.
TEST_BUDGETS_S = {
    "foundation": 150,
    "waits": 95,
    "flows": 50,
    "events": 45,
    "durable functions": 90,
    "documents": 15,
    "examples": 20,
    "command line": 15,
}

# pytest's exit code when no test was selected.
NO_TESTS = 5

CHECKS = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
    ("lint-imports", "--no-logo"),
)


def main(arguments: list[str]) -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 - this line exists for the Pythons we do not support
        return complain(f"flowfabric needs Python 3.11 or newer, this is {sys.version.split()[0]}.")
    # Without cached bytecode, each of the many processes of the tests compiles every module again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    command = COMMANDS.get(arguments[0]) if arguments else None
    if command is None:
        return complain(str(__doc__).strip())
    try:
        return command(arguments[1:])
    except subprocess.CalledProcessError as error:
        return complain(f"dev.py: this command failed with exit code {error.returncode}: {error.cmd}")
    except KeyboardInterrupt:
        return 130


def setup(arguments: list[str]) -> int:
    if arguments:
        return complain("dev.py setup takes no arguments.")
    prepare()
    print(f"Ready: {PYTHON}")
    return 0


def demo(arguments: list[str]) -> int:
    if arguments not in ([], ["--record"]):
        return complain("dev.py demo takes no arguments but --record.")
    prepare_packages(DEMO, BASE_LOCK)
    os.environ["PYTHONPATH"] = str(ROOT / "src")
    python = DEMO / "bin" / "python"
    return run(python, "tools/record_demo.py") if arguments else run(python, "-m", "flowfabric", "demo")


def test(arguments: list[str]) -> int:
    prepare()
    began = time.monotonic()
    whole_suite = not set(arguments) - {"--all"}
    exit_code = test_everything(arguments) if whole_suite else run(PYTHON, "-m", "pytest", *arguments)
    report_test_time(time.monotonic() - began, whole_suite=not arguments)
    return exit_code


def test_everything(arguments: list[str]) -> int:
    """Run every test. Many wait for a server or a lease, so three at a time keep two cores busy."""
    return run_in_two_parts("3", "", arguments)


def faults(arguments: list[str]) -> int:
    prepare()
    if "--scoreboard" in arguments:
        options = [word for word in arguments if word != "--scoreboard"]
        return run(PYTHON, "-m", "tests.faults.scoreboard", *options)
    began = time.monotonic()
    is_short = "--short" in arguments
    arguments = [word for word in arguments if word != "--short"]
    exit_code = (
        run_in_two_parts("2", "full and long", ["--sample", *arguments])
        if is_short
        else run_in_two_parts("2", "full", ["--full", *arguments])
    )
    report_test_time(time.monotonic() - began, whole_suite=False)
    return exit_code


def run_in_two_parts(processes: str, markers: str, arguments: list[str]) -> int:
    """Run the tests with these markers in several processes, then those marked `alone` in one process.

    Each is a child process that pytest replaces if a test hangs or crashes.
    """
    also = f"{markers} and " if markers else ""
    parallel = ("-n", processes, "--dist", "worksteal", "-m", f"{also}not alone")
    alone = ("-n", "1", "-m", f"{also}alone")
    exit_codes = [run(PYTHON, "-m", "pytest", "-q", *part, *arguments) for part in (parallel, alone)]
    # Arguments such as -k may leave one of the parts without tests.
    failed = [code for code in exit_codes if code not in (0, NO_TESTS)]
    return failed[0] if failed else min(exit_codes)


def check(arguments: list[str]) -> int:
    if arguments:
        return complain("dev.py check takes no arguments.")
    prepare()
    failed = [" ".join(words) for words in CHECKS if run(PYTHON.with_name(words[0]), *words[1:])]
    print(f"Failed: {', '.join(failed)}" if failed else "All checks passed.")
    return 1 if failed else 0


def bench(arguments: list[str]) -> int:
    prepare()
    if "--peers" in arguments:
        prepare_peers()
    compares = any(word.partition("=")[0] == "--against" for word in arguments)
    return run(PYTHON, "-m", "benchmarks.against" if compares else "benchmarks.run", *arguments)


def docs(arguments: list[str]) -> int:
    if arguments:
        return complain("dev.py docs takes no arguments.")
    prepare_packages(DOCS, DOCS_LOCK)
    python = DOCS / "bin" / "python"
    return run(python, "-m", "zensical", "build", "--strict", "--clean") or run(python, "tools/check_site.py")


def lock(arguments: list[str]) -> int:
    prepare()
    options = ["--universal", "--python-version=3.11", "--generate-hashes", "--no-header", "--no-annotate", "--quiet"]
    compile_lock = (str(PYTHON.with_name("uv")), "pip", "compile", *options, *arguments)
    must(*compile_lock, "--all-extras", PROJECT.name, "-o", LOCK.name)
    must(*compile_lock, "--constraint", LOCK.name, PROJECT.name, "-o", BASE_LOCK.name)
    for extra_lock in (DOCS_LOCK, PEERS_LOCK):
        must(*compile_lock, extra_lock.with_suffix(".in"), "-o", extra_lock)
    prepare()
    return 0


COMMANDS = {
    "setup": setup, "demo": demo, "test": test, "faults": faults, "check": check, "bench": bench, "docs": docs,
    "lock": lock,
}  # fmt: skip


def report_test_time(took_s: float, *, whole_suite: bool) -> None:
    """Print the test time, and compare it with the budget if the whole suite ran without options."""
    if not whole_suite:
        print(f"Test time: {took_s:.1f} s")
        return
    allowed_s = sum(TEST_BUDGETS_S.values())
    parts = ", ".join(f"{area} {budget_s} s" for area, budget_s in TEST_BUDGETS_S.items())
    verdict = "within" if took_s <= allowed_s else "OVER"
    print(f"Test time: {took_s:.1f} s, {verdict} the budget of {allowed_s} s ({parts})")


def prepare() -> None:
    """Bring .venv in line with the lock and the project file. Do nothing if both are unchanged."""
    prepare_packages(VENV, LOCK)
    project = fingerprint(PROJECT.read_bytes())
    if not is_done("project", project):
        # The build backend is a locked package. Without isolation pip fetches nothing unpinned.
        pip(VENV, "install", "--no-deps", "--no-build-isolation", "--editable", ROOT)
        mark_done("project", project)


def prepare_packages(venv: Path, lock: Path) -> None:
    """Create an environment with the packages of a lock, or do nothing if it has them."""
    # Console scripts and the editable install contain absolute paths, so a moved checkout needs a new environment.
    packages = fingerprint(f"{sys.version_info[:2]} {ROOT}".encode(), lock.read_bytes())
    if is_done("packages", packages, venv):
        return
    create_venv(venv)
    # The lock is complete, so pip resolves nothing. It rejects a wheel with a different hash.
    pip(venv, "install", "--require-hashes", "--no-deps", "--requirement", lock)
    mark_done("packages", packages, venv)


def prepare_peers() -> None:
    """Bring .venv-peers in line with its lock.

    Print packages that cannot be installed; the benchmarks report missing peers.
    """
    packages = fingerprint(f"{sys.version_info[:2]} {ROOT}".encode(), PEERS_LOCK.read_bytes())
    if is_done("packages", packages, PEERS):
        return
    create_venv(PEERS)
    try:
        pip(PEERS, "install", "--require-hashes", "--no-deps", "--requirement", PEERS_LOCK)
    except subprocess.CalledProcessError:
        install_one_by_one()
    if shutil.which("redis-server") is None:
        unpack_redis(PEERS / "redis")
    mark_done("packages", packages, PEERS)


def install_one_by_one() -> None:
    """Install each package of the peers separately, and print those that fail."""
    requirement = PEERS / "one.txt"
    for text in re.split(r"\n(?=\S)", PEERS_LOCK.read_text()):
        requirement.write_text(text + "\n")
        try:
            pip(PEERS, "install", "--require-hashes", "--no-deps", "--requirement", requirement)
        except subprocess.CalledProcessError:
            print(f"dev.py: could not be installed: {text.split()[0]}", flush=True)


def unpack_redis(folder: Path) -> None:
    """Unpack Debian's Redis server and its libraries into a folder, without installing them in the system."""
    folder.mkdir(exist_ok=True)
    try:
        wanted = subprocess.run(
            ["apt-get", "-s", "install", "redis-server"], check=True, capture_output=True, text=True
        )
        packages = re.findall(r"^Inst (\S+)", wanted.stdout, flags=re.MULTILINE)
        subprocess.run(["apt-get", "-qq", "download", *packages], check=True, cwd=folder)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"dev.py: no Redis server: {error}", flush=True)


def create_venv(venv: Path) -> None:
    print(f"Creating {venv}", flush=True)
    arguments = (sys.executable, "-m", "venv", "--clear", str(venv))
    if subprocess.run(arguments, check=False, capture_output=True).returncode != 0:
        # Debian ships ensurepip in a separate package (python3-venv). The pip of this Python can also fill a venv.
        must(*arguments, "--without-pip")


def pip(venv: Path, *arguments: str | Path) -> None:
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    python = venv / "bin" / "python"
    if has_pip(python):
        must(python, "-m", "pip", *quiet, *arguments)
    elif has_pip(sys.executable):
        must(sys.executable, "-m", "pip", "--python", python, *quiet, *arguments)
    else:
        sys.exit("dev.py: this Python has neither venv with pip nor pip. On Debian: apt-get install python3-venv")


def has_pip(python: str | Path) -> bool:
    return subprocess.run([python, "-m", "pip", "--version"], check=False, capture_output=True).returncode == 0


def is_done(step: str, wanted: str, venv: Path = VENV) -> bool:
    stamp = venv / f".{step}"
    return (venv / "bin" / "python").exists() and stamp.exists() and stamp.read_text() == wanted


def mark_done(step: str, fingerprint: str, venv: Path = VENV) -> None:
    (venv / f".{step}").write_text(fingerprint)


def fingerprint(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def must(*words: str | Path) -> None:
    """Run a command and raise an error if it fails."""
    subprocess.run([str(word) for word in words], check=True, cwd=ROOT)


def run(*words: str | Path) -> int:
    """Print and run a command, and return its exit code. Ctrl-C also reaches the command, which then cleans up."""
    print("+", *words, flush=True)
    interrupted = False
    with subprocess.Popen([str(word) for word in words], cwd=ROOT) as process:
        while process.poll() is None:
            try:
                process.wait()
            except KeyboardInterrupt:
                interrupted = True
    if interrupted:
        raise KeyboardInterrupt
    return process.returncode


def complain(text: str) -> int:
    print(text, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
