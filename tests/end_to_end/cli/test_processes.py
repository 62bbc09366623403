"""The command as a process: quick help, terminals, pipes, signals, and a worker."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.cli.shell import Shell, command, environment, words_for
from tests.scenarios import leased
from tests.stores import TestStore, opened

# What does not depend on the store is tried on one.
SQLITE = pytest.mark.parametrize("store", ["sqlite"], indirect=True)
HEAVY = ("asyncio", "pydantic", "sqlite3", "asyncpg", "flowfabric.engine", "flowfabric.sdk", "flowfabric.face")
ENGINE = ("sqlite3", "asyncpg", "flowfabric.engine", "flowfabric.ops", "flowfabric.worker", "flowfabric.testing")
SHOP = """
from flowfabric import App, step
app = App()

@app.task
async def refund(order: int) -> str:
    return f"refunded {order}"
"""

CARELESS = """
import asyncio
from flowfabric import App
app = App()

@app.task
async def careless() -> str:
    asyncio.create_task(asyncio.Event().wait())
    return "done"
"""

INTERRUPT = "^C"
OWN = "from flowfabric import App\napp = App('own.db')"
SCHEMA = "from flowfabric import App\napp = App('own.db', options={'schema': 'jobs', 'pooler': False})"


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words), capture_output=True, text=True, check=False, timeout=120, env=environment(**variables),
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def spent_s() -> float:
    """How much of the processor the children of this process have had."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_is_quick_and_imports_nothing_heavy(scoreboard: Callable[[str], None]) -> None:
    code = "import sys; from flowfabric.cli.main import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, "list", "--help"], capture_output=True, text=True, check=True, env=environment()
    )
    assert [name for name in HEAVY if name in done.stderr.split()] == []
    took = []
    for _ in range(3):
        began = spent_s()
        assert run("--help").returncode == 0
        took.append(spent_s() - began)
    scoreboard(f"--help took {min(took):.3f} s of the processor at best")
    # The bar is for the time on the wall, which on a machine that has nothing else to do is this one.
    assert min(took) < 0.3


def test_the_package_has_its_names_when_they_are_asked_for() -> None:
    code = (
        "import sys, flowfabric; assert 'flowfabric.sdk' not in sys.modules; from flowfabric import App, sync; "
        "from flowfabric import *; assert step and App is flowfabric.App; "
        "assert set(flowfabric.__all__) <= set(dir(flowfabric)); assert not hasattr(flowfabric, 'nope')"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, env=environment()).returncode == 0


def test_tasks_are_declared_without_the_engine() -> None:
    code = (
        "import sys; from flowfabric import App, approval, gather, step; app = App('x.db'); "
        "app.task(lambda: None, name='nothing'); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert [name for name in ENGINE if name in done.stdout.split()] == []


async def test_a_reader_that_leaves_is_no_error(store: TestStore) -> None:
    async with opened(store) as engine:
        for number in range(300):
            await engine.lanes.pause(f"lane-{number}", "x" * 200)
    words = " ".join(f"'{word}'" for word in command(*words_for(store), "events", "--json"))
    done = await asyncio.to_thread(
        subprocess.run, ["bash", "-c", f"{words} | head -1; echo ${{PIPESTATUS[0]}}"], capture_output=True, text=True,
        check=True, timeout=120, env=environment(),
    )  # fmt: skip
    first, code = done.stdout.splitlines()
    assert json.loads(first)["family"] == "operator"
    assert (code, done.stderr) == ("141", "")


def test_output_that_cannot_be_written_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command("completion", "bash"),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=environment(),
        )
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and "No space left" in done.stderr


def test_closed_streams_and_poor_encodings_are_borne(tmp_path: Path) -> None:
    store = str(tmp_path / "x.db")
    assert run("--store", store, "migrate").returncode == 0
    words = " ".join(f"'{word}'" for word in command("--store", store, "submit", "größe…", '"ü"'))
    assert subprocess.run(["bash", "-c", f"{words} <&- >&- 2>&-"], check=False, env=environment()).returncode == 0
    done = run("--store", store, "list", PYTHONIOENCODING="ascii", COLUMNS="80")
    assert done.returncode == 0 and r"gr\xf6\xdfe" in done.stdout and done.stdout.isascii()


async def test_follow_shows_what_happens_until_it_is_interrupted(store: TestStore) -> None:
    async with opened(store) as engine:
        words = command(*words_for(store), "events", "--follow", "--from", "beginning")
        process = await asyncio.create_subprocess_exec(
            *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        )
        assert process.stdout is not None and process.stderr is not None
        lease = await leased(engine)
        await engine.leases.complete(lease.fence)
        lines = [(await asyncio.wait_for(process.stdout.readline(), 60)).decode() for _ in range(2)]
        assert [str(lease.execution_id) in line for line in lines] == [True, True]
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 30) == 130
        assert await process.stderr.read() == b""


def on_terminal(words: list[str], typed: str, told: Callable[[str], object] = str, **variables: str) -> tuple[int, str]:
    """Exit code and everything that a process shows on a terminal where somebody types; `told` hears it meanwhile."""
    ours, terminal = pty.openpty()
    process = subprocess.Popen(words, stdin=terminal, stdout=terminal, stderr=terminal, env=environment(**variables))
    os.close(terminal)
    shown = b""
    while True:
        if not select.select([ours], [], [], 60)[0]:
            process.kill()
            raise AssertionError(f"it waits for nobody after {shown!r}")
        try:
            piece = os.read(ours, 4096)
        except OSError:  # The other end is closed.
            break
        if not piece:
            break
        shown += piece
        told(shown.decode(errors="replace"))
        if typed and b"[y/N]" in shown:
            if typed == INTERRUPT:
                process.send_signal(signal.SIGINT)
            else:
                os.write(ours, typed.encode())
            typed = ""
    os.close(ours)
    return process.wait(timeout=60), shown.decode()


@SQLITE
async def test_what_cannot_be_taken_back_is_asked_for_on_a_terminal(store: TestStore) -> None:
    async with opened(store) as engine:
        id_ = str((await engine.executions.submit("refund")).id)
        words = command(*words_for(store), "cancel", id_)
        code, shown = await asyncio.to_thread(on_terminal, words, "n\n")
        assert code == 4 and f"Cancel refund {id_}, which is waiting? [y/N]" in shown and "nothing was done" in shown
        assert (await engine.executions.describe(id_)).state == "waiting"
        code, shown = await asyncio.to_thread(on_terminal, words, INTERRUPT)
        assert code == 130 and "Traceback" not in shown
        code, shown = await asyncio.to_thread(on_terminal, words, "y\n")
        assert code == 0 and "Cancelled." in shown
        assert (await engine.executions.describe(id_)).state == "cancelled"


@SQLITE
async def test_a_terminal_gets_colours_unless_it_wants_none(store: TestStore) -> None:
    async with opened(store) as engine:
        await engine.leases.complete((await leased(engine)).fence)
    words = command(*words_for(store), "list")
    _, coloured = await asyncio.to_thread(on_terminal, words, "")
    assert "\x1b[32mcompleted\x1b[0m" in coloured
    _, plain = await asyncio.to_thread(on_terminal, words, "", NO_COLOR="1")
    assert "\x1b" not in plain and "completed" in plain
    _, measured = await asyncio.to_thread(on_terminal, command(*words_for(store), "bench", "-n", "40"), "")
    assert "bench [" in measured and "100%" in measured


@SQLITE
async def test_whoever_waits_on_a_terminal_sees_the_progress(store: TestStore) -> None:
    is_shown = threading.Event()

    def look(shown: str) -> None:
        if "40% packing" in shown:
            is_shown.set()

    async with opened(store) as engine:
        words = command(*words_for(store), "submit", "mail", "--wait", "--timeout", "60s")
        waiting = asyncio.create_task(asyncio.to_thread(on_terminal, words, "", look, COLUMNS="100"))
        with engine.leases.watch(["default"]) as work:
            while not (leases := await engine.leases.claim(["default"], "w1")):
                await work.wait()
        await engine.leases.progress(leases[0].fence, percent=40, message="packing")
        assert await asyncio.to_thread(is_shown.wait, 60)
        await engine.leases.complete(leases[0].fence, b'"done"')
        code, shown = await waiting
    *bars, result = shown.replace("\r\n", "\n").split("\x1b[K")
    assert (code, result) == (0, '"done"\n'), "the bar is gone before the result is printed"
    assert f"{leases[0].execution_id} [##########..............]  40% packing" in "".join(bars)


async def test_a_worker_works_on_an_app_until_it_is_told_to_end(store: TestStore, tmp_path: Path) -> None:
    """Where the options for the store lead: the app has none of its own."""
    worker = await a_worker(store, tmp_path, SHOP)
    assert worker.stdout is not None and worker.stderr is not None
    begun = json.loads(await asyncio.wait_for(worker.stdout.readline(), 60))
    assert (begun["status"], begun["tasks"], begun["lanes"]) == ("working", ["refund"], ["default"])
    done = await asyncio.to_thread(
        run, *words_for(store), "submit", "refund", '{"order": 7}', "--wait", "--timeout", "60s"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, '"refunded 7"\n', "")
    async with opened(store) as engine:
        assert [item.id.instance for item in await engine.workers.list()] == [begun["instance"]]
        worker.send_signal(signal.SIGTERM)
        ended = json.loads(await asyncio.wait_for(worker.stdout.readline(), 60))
        assert (ended["status"], await asyncio.wait_for(worker.wait(), 30)) == ("stopped", 0)
        assert (await worker.stderr.read()).decode() == ""
        assert await engine.workers.list() == []


@SQLITE
async def test_a_worker_ends_what_a_task_leaves_running(store: TestStore, tmp_path: Path) -> None:
    worker = await a_worker(store, tmp_path, CARELESS)
    assert worker.stderr is not None
    done = await asyncio.to_thread(run, "--store", store.url, "submit", "careless", "{}", "--wait", "--timeout", "60s")
    assert done.stdout == '"done"\n'
    worker.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(worker.wait(), 30) == 0
    assert (
        "careless left tasks of asyncio behind, which are cancelled: Event.wait"
        in (await worker.stderr.read()).decode()
    )


async def a_worker(store: TestStore, folder: Path, app: str) -> asyncio.subprocess.Process:
    """A worker in a process of its own, on an app of this text."""
    (folder / "shop.py").write_text(app)
    async with opened(store):
        pass
    return await asyncio.create_subprocess_exec(
        *command(*words_for(store), "worker", "shop:app", "--json", "--concurrency", "2"), cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
    )  # fmt: skip


async def test_what_an_app_does_wrong_is_one_line(bare: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"broken": "1 / 0", "leaves": "raise SystemExit(3)", "empty": "", "own": OWN, "schema": SCHEMA}
    for name, text in texts.items():
        (tmp_path / f"cli_{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("FLOWFABRIC_STORE", "")
    for words, part in (
        (["worker", "cli_broken:app"], "ZeroDivisionError"),
        (["worker", "cli_leaves:app"], "SystemExit"),
        (["worker", "cli_empty:app"], "app_not_found"),
        (["worker", "cli_own:other"], "app_not_found"),
        (["--store", "x.db", "worker", "cli_own:app"], "own.db"),
        (["--namespace", "x", "worker", "cli_own:app"], "namespace"),
        (["--schema", "x", "worker", "cli_schema:app"], "schema='jobs'"),
        (["--pooler", "worker", "cli_schema:app"], "pooler=False"),
        (["worker", "cli_own:app", "--concurrency", "0"], "concurrency"),
        (["worker", "cli_own:app", "--lease", "soon"], "lease"),
        (["worker", "cli_own.py"], "invalid_address"),
    ):
        said = await bare.run(*words)
        assert (said.code, said.lines) == (2, []), (words, said)
        assert len(said.error.splitlines()) == 1 and part in said.error, said.error
