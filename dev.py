#!/usr/bin/env python3
"""The project's tasks. Needs nothing but Python 3.11 or newer and a package index that pip can reach.

usage: python3 dev.py <command> [arguments]

  setup   create .venv and install the locked packages; every other command does this first when needed
  demo    run examples/demo.py, a tour of two minutes; --record writes docs/demo.txt
  test    run the test suite; arguments go to pytest, --all runs everything at its largest
  faults  run tests/faults at full size: kills, freezes, outages, lost replies, planted faults; arguments go to pytest
  check   lint, formatting, types and import rules
  bench   run the benchmarks; arguments go to benchmarks/run.py, --peers installs others to compare with first
          --publish writes what they find into the README and docs/
  lock    write requirements.lock and benchmarks/peers.lock again; --upgrade also moves the pins forward
"""

from __future__ import annotations

import hashlib
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
PEERS = ROOT / ".venv-peers"
PEERS_LOCK = ROOT / "benchmarks" / "peers.lock"

# What each part of the project may add to the time of a plain `dev.py test`, in seconds.
TEST_BUDGETS_S = {
    "foundation": 180,
    "waits": 120,
    "flows": 60,
    "events": 60,
    "durable functions": 120,
    "documents": 20,
    "examples": 25,
    "command line": 15,
}

SIDE_BY_SIDE = (
    "tests/conformance", "tests/plans", "tests/concurrency", "tests/migration", "tests/model", "tests/unit",
    "tests/faults/test_statements_fail.py", "tests/faults/test_cancelled_awaits.py",
    "tests/faults/test_lost_replies.py", "tests/faults/test_lost_answers.py", "tests/faults/test_planted.py",
    "tests/faults/test_large_flows.py", "tests/faults/test_narrow_places.py",
    "tests/adversity/test_connecting.py", "tests/adversity/test_conflicts.py", "tests/adversity/test_many_signals.py",
    "tests/adversity/test_damaged_rows.py", "tests/adversity/test_following.py", "tests/adversity/test_neighbours.py",
    "tests/adversity/test_original_faults.py", "tests/adversity/test_original_faults_in_queue_and_reads.py",
    "tests/adversity/test_original_faults_in_flows.py", "tests/adversity/test_original_faults_in_waits.py",
    "tests/adversity/test_pool.py", "tests/adversity/test_pooler.py", "tests/adversity/test_postgres_outage.py",
    "tests/adversity/test_secrets_stay_secret.py", "tests/adversity/test_waits_in_conflict.py",
    "tests/adversity/test_sqlite_log.py",
    "tests/adversity/test_sqlite_processes.py", "tests/adversity/test_sqlite_storage.py",
    "tests/end_to_end/asgi", "tests/end_to_end/cli", "tests/end_to_end/client", "tests/end_to_end/durable",
    "tests/end_to_end/examples", "tests/end_to_end/kit", "tests/end_to_end/outcomes", "tests/end_to_end/programs",
    "tests/end_to_end/test_check_command.py", "tests/end_to_end/worker", "tests/types", "tests/docs",
    "tests/test_docs.py",
    "tests/test_postgres_server.py", "tests/test_public_api.py", "tests/test_tidy.py",
)  # fmt: skip

# What `dev.py faults` runs at full size: what kills, freezes and times goes alone.
FULL_SIZE = (
    "tests/faults/test_kills.py", "tests/faults/test_killed_flows.py", "tests/faults/test_killed_waits.py",
    "tests/faults/test_outages.py", "tests/faults/test_zombies.py",
    "tests/adversity/test_reconciler_processes.py",
    "tests/adversity/test_wakeups.py::test_sixteen_idle_workers_cost_next_to_nothing_and_start_at_once",
    "tests/test_installing.py",
)  # fmt: skip

# The same, for what only needs a store of its own.
FULL_SIZE_SIDE_BY_SIDE = (
    "tests/faults", "tests/concurrency/test_random_waits.py", "tests/unit/test_token_forgeries.py",
    "tests/adversity/test_secrets_stay_secret.py", "tests/concurrency/test_random_graphs.py",
    "tests/concurrency/test_random_flows.py", "tests/concurrency/test_flows_in_every_order.py",
    "tests/concurrency/test_unlocked.py", "tests/adversity/test_many_signals.py",
    "tests/concurrency/test_flows_race.py::test_their_join_is_decided_in_every_order_of_their_statements",
    "tests/concurrency/test_outbox.py", "tests/model",
    "tests/end_to_end/durable", "tests/end_to_end/examples", "tests/end_to_end/kit", "tests/end_to_end/outcomes",
    "tests/end_to_end/programs/test_programs.py",
    "tests/end_to_end/programs/test_killed.py::test_a_worker_killed_at_any_record_leaves_nothing_done_twice",
)  # fmt: skip

CHECKS = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
    ("lint-imports", "--no-logo"),
)


def main(arguments: list[str]) -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 - this line exists for the Pythons we do not support
        return complain(f"flowfabric needs Python 3.11 or newer, this is {sys.version.split()[0]}.")
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
    prepare()
    return run(PYTHON, ROOT / "tools" / "record_demo.py" if arguments else ROOT / "examples" / "demo.py")


def test(arguments: list[str]) -> int:
    prepare()
    began = time.monotonic()
    whole_suite = not set(arguments) - {"--all"}
    exit_code = test_everything(arguments) if whole_suite else run(PYTHON, "-m", "pytest", *arguments)
    report_test_time(time.monotonic() - began, whole_suite=not arguments)
    return exit_code


def test_everything(arguments: list[str]) -> int:
    """Tests that only need a store of their own go side by side; those that kill, freeze and time go alone after.

    Many wait for a server or for a lease to run out, so three at a time keep two cores busy, and whoever is done first
    takes over what others have left.
    """
    apart = [f"--ignore={folder}" for folder in SIDE_BY_SIDE]
    together = run(PYTHON, "-m", "pytest", "-q", "-n", "3", "--dist", "worksteal", *SIDE_BY_SIDE, *arguments)
    alone = run(PYTHON, "-m", "pytest", "-q", *apart, *arguments)
    return together or alone


def faults(arguments: list[str]) -> int:
    prepare()
    began = time.monotonic()
    apart = [f"--ignore={path}" for path in FULL_SIZE if "::" not in path]
    together = run(PYTHON, "-m", "pytest", "-q", "-n", "2", *FULL_SIZE_SIDE_BY_SIDE, *apart, "--full", *arguments)
    alone = run(PYTHON, "-m", "pytest", "-q", *FULL_SIZE, "--full", *arguments)
    report_test_time(time.monotonic() - began, whole_suite=False)
    return together or alone


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
    return run(PYTHON, "-m", "benchmarks.run", *arguments)


def lock(arguments: list[str]) -> int:
    prepare()
    options = ["--universal", "--python-version=3.11", "--generate-hashes", "--no-header", "--no-annotate", "--quiet"]
    compile_lock = (str(PYTHON.with_name("uv")), "pip", "compile", *options, *arguments)
    must(*compile_lock, "--all-extras", PROJECT.name, "-o", LOCK.name)
    must(*compile_lock, PEERS_LOCK.with_suffix(".in"), "-o", PEERS_LOCK)
    prepare()
    return 0


COMMANDS = {
    "setup": setup, "demo": demo, "test": test, "faults": faults, "check": check, "bench": bench, "lock": lock,
}  # fmt: skip


def report_test_time(took_s: float, *, whole_suite: bool) -> None:
    """Print how long the tests took; the budgets only say something about a plain run of all of them."""
    if not whole_suite:
        print(f"Test time: {took_s:.1f} s")
        return
    allowed_s = sum(TEST_BUDGETS_S.values())
    parts = ", ".join(f"{area} {budget_s} s" for area, budget_s in TEST_BUDGETS_S.items())
    verdict = "within" if took_s <= allowed_s else "OVER"
    print(f"Test time: {took_s:.1f} s, {verdict} the budget of {allowed_s} s ({parts})")


def prepare() -> None:
    """Bring .venv in line with the lock and the project file; free when nothing changed."""
    # Console scripts and the editable install hold absolute paths, so a moved checkout starts over.
    packages = fingerprint(f"{sys.version_info[:2]} {ROOT}".encode(), LOCK.read_bytes())
    if not is_done("packages", packages):
        create_venv(VENV)
        # The lock is complete, so there is nothing to resolve. A wheel whose hash differs is refused.
        pip(VENV, "install", "--require-hashes", "--no-deps", "--requirement", LOCK)
        mark_done("packages", packages)
    project = fingerprint(PROJECT.read_bytes())
    if not is_done("project", project):
        # The build backend is one of the locked packages: without isolation nothing unpinned is fetched.
        pip(VENV, "install", "--no-deps", "--no-build-isolation", "--editable", ROOT)
        mark_done("project", project)


def prepare_peers() -> None:
    """Bring .venv-peers in line with its lock. What cannot be installed is said; the benchmarks tell who is absent."""
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
    """Install every peer's package that can be installed."""
    requirement = PEERS / "one.txt"
    for text in re.split(r"\n(?=\S)", PEERS_LOCK.read_text()):
        requirement.write_text(text + "\n")
        try:
            pip(PEERS, "install", "--require-hashes", "--no-deps", "--requirement", requirement)
        except subprocess.CalledProcessError:
            print(f"dev.py: could not be installed: {text.split()[0]}", flush=True)


def unpack_redis(folder: Path) -> None:
    """Unpack Debian's Redis server with what it needs into a folder; nothing is installed in the system."""
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
        # Debian keeps ensurepip in a package of its own (python3-venv). The pip beside this Python can fill a venv too.
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
    """Run a command and raise when it fails."""
    subprocess.run([str(word) for word in words], check=True, cwd=ROOT)


def run(*words: str | Path) -> int:
    """Run a command, show it, and give its exit code. Ctrl-C reaches the command too, and it is left to clean up."""
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
