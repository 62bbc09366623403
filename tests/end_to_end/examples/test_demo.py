"""The demo runs to its end without input, prints what its recording shows, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tools.record_demo import COMMAND, DEMO, RECORDING, ROOT, masked, narration

TIMEOUT_S = 120.0
EXPECTED_LINES = (
    "async def refund(order: str, euros: int) -> str:", 'Waiting for approval "refund": 0 of 2',
    "app.approve(token) -> Accepted",
    "404: That did not work - This link cannot be used.", "200: Approval: refund", "200: Thank you", "kill -9 worker 1",
    'Running on worker "', "Its lease lasts until",
    "result: 120 euros for order 17 are paid back", "worker 2 took over from worker 1",
    "payments recorded by the bank: 1; same key: True", "winner: bicycle, 7 euros", "cancelled calls: ship, truck",
    "executions: 2 cancelled, 1 completed", "sent: a box with a lamp and a bulb, by bicycle", "lease.suspended",
    "lifecycle.resumed", "lease.expired", "completion.completed", "Completed at", "flowfabric/demo/shop.py",
)  # fmt: skip


def demo_environment(folder: Path) -> dict[str, str]:
    """Return the environment variables of a demo. `find_leftovers` finds the demo's processes by its TMPDIR."""
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "TERM")}
    return kept | {"TMPDIR": str(folder), "TERM": "xterm", "PYTHONUNBUFFERED": "1"}


def find_leftovers(folder: Path) -> list[str]:
    """Return the files in the folder, and the processes that have the folder as their TMPDIR."""
    marker = f"TMPDIR={folder}\0".encode()
    return [path.name for path in folder.iterdir()] + [
        f"process {path.parent.name}" for path in Path("/proc").glob("[0-9]*/environ") if marker in _read(path)
    ]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@contextmanager
def run_demo(
    env: dict[str, str], *options: str, stdin: int = subprocess.DEVNULL, output: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a demo; kill it at the end of the block if it still runs."""
    process = subprocess.Popen((*DEMO, *options), env=env, stdin=stdin, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_demo_prints_the_expected_lines_and_matches_its_recording(tmp_path: Path) -> None:
    process = subprocess.run(
        DEMO,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=demo_environment(tmp_path),
        timeout=TIMEOUT_S,
    )
    assert (process.returncode, process.stderr) == (0, "")
    places = [process.stdout.find(fact) for fact in EXPECTED_LINES]
    assert -1 not in places and places == sorted(places), process.stdout
    assert "\x1b" not in process.stdout, "a pipe must get no colours"
    assert find_leftovers(tmp_path) == []
    recording = RECORDING.read_text(encoding="utf-8")
    assert narration(recording) == narration(process.stdout), "record it again: python3 dev.py demo --record"


@pytest.mark.long
def test_demo_prints_json_documents_if_asked(tmp_path: Path) -> None:
    with run_demo(demo_environment(tmp_path), "--json") as demo:
        out, errors = demo.communicate(timeout=TIMEOUT_S)
    assert (demo.returncode, errors) == (0, b"")
    documents = [json.loads(line) for line in out.splitlines()]
    assert {kind for document in documents for kind in document} == {"heading", "sentence", "fact", "code"}
    assert {"fact": "result: 120 euros for order 17 are paid back"} in documents


def test_recording_contains_nothing_that_differs_between_runs() -> None:
    recording = RECORDING.read_text(encoding="utf-8")
    assert recording.startswith(COMMAND)
    assert masked(recording) == recording
    places = [recording.find(fact) for fact in EXPECTED_LINES]
    assert -1 not in places and places == sorted(places)


def test_narration_ignores_times_but_not_sentences() -> None:
    output = "== 1. A heading ==\n\nA sentence.\n    + 0.1 s  lease.acquired\n"
    assert narration(output) == narration(output.replace("0.1", "3.4"))
    assert narration(output) != narration(output.replace("A sentence", "Another sentence"))


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_interrupted_demo_ends_quietly_and_leaves_nothing(tmp_path: Path, number: int) -> None:
    with run_demo(demo_environment(tmp_path)) as demo:
        assert demo.stdout is not None, "stdout is a pipe"
        for line in demo.stdout:
            if b"app.approve(token)" in line:
                break
        demo.send_signal(number)
        out, errors = demo.communicate(timeout=TIMEOUT_S)
    assert (demo.returncode, errors) == (130, b"")
    assert out.endswith(b"Interrupted. Nothing is left behind.\n")
    assert find_leftovers(tmp_path) == []


@pytest.mark.long
def test_demo_with_a_closed_pipe_prints_no_error(tmp_path: Path) -> None:
    with run_demo(demo_environment(tmp_path)) as demo:
        assert demo.stdout is not None and demo.stderr is not None, "stdout and stderr are pipes"
        demo.stdout.readline()
        demo.stdout.close()
        assert (demo.wait(TIMEOUT_S), demo.stderr.read()) == (141, b"")
    assert find_leftovers(tmp_path) == []


@pytest.mark.long
def test_killed_demo_leaves_no_worker(tmp_path: Path) -> None:
    with run_demo(demo_environment(tmp_path)) as demo:
        assert demo.stdout is not None, "stdout is a pipe"
        for line in demo.stdout:
            if b"app.approve(token)" in line:
                break
        demo.kill()
    deadline = time.monotonic() + TIMEOUT_S
    while any(leftover.startswith("process") for leftover in find_leftovers(tmp_path)):
        assert time.monotonic() < deadline, find_leftovers(tmp_path)
        time.sleep(0.05)


@pytest.mark.long
@pytest.mark.parametrize("is_coloured", [True, False])
def test_user_of_the_demo_can_refuse_in_a_terminal(tmp_path: Path, is_coloured: bool) -> None:
    """After a refusal the demo prints that nothing was paid and continues."""
    env = demo_environment(tmp_path) | ({} if is_coloured else {"NO_COLOR": "1"})
    output = converse(env, {r"n refuses\.": lambda _: b"n\n"})
    assert "not paid back, finance refused" in output
    assert "result: 120 euros for order 17 are paid back" in output
    assert ("\x1b[1m== 1." in output, "\x1b[" in output) == (is_coloured, is_coloured)
    assert find_leftovers(tmp_path) == []


@pytest.mark.long
def test_user_of_the_demo_can_follow_the_link_instead(tmp_path: Path) -> None:
    def post_decision(link: re.Match[str]) -> bytes:
        with urllib.request.urlopen(link[0].strip(), b"decision=approve") as response:
            assert response.status == 200
        return b""

    output = converse(demo_environment(tmp_path) | {"NO_COLOR": "1"}, {r"http://\S+\s": post_decision})
    assert "result: 120 euros for order 17 are paid back" in output
    assert find_leftovers(tmp_path) == []


def converse(env: dict[str, str], replies: dict[str, Callable[[re.Match[str]], bytes]]) -> str:
    """Run a demo on a terminal, send the reply to each prompt and Enter at each page, and return the output."""
    replies = {**replies, r"\[Enter\]": lambda _: b"\n"}
    controller, terminal = pty.openpty()
    with run_demo(env, stdin=terminal, output=terminal) as demo:
        os.close(terminal)
        output, position = "", 0
        while piece := _read_terminal(controller):
            output += piece
            for prompt, reply in replies.items():
                if match := re.compile(prompt).search(output, position):
                    position = match.end()
                    os.write(controller, reply(match))
        os.close(controller)
        assert demo.wait(TIMEOUT_S) == 0, output
    assert "Traceback" not in output
    return output


def _read_terminal(terminal: int) -> str:
    ready, _, _ = select.select([terminal], [], [], TIMEOUT_S)
    assert ready, "the demo shows nothing new"
    try:
        return os.read(terminal, 4096).decode()
    except OSError:  # Linux raises OSError when the other end is closed.
        return ""


def test_interrupted_dev_command_can_clean_up() -> None:
    """Ctrl-C reaches the whole process group; dev.py waits for its command, then exits as interrupted."""
    cleaning = "import time\ntry: print('begun', flush=True); time.sleep(60)\nfinally: time.sleep(1); print('cleaned')"
    running = "import dev, sys; dev.COMMANDS['x'] = lambda _: dev.run(sys.executable, '-c', sys.argv[1]); "
    process = subprocess.Popen(
        [sys.executable, "-c", running + "sys.exit(dev.main(['x']))", cleaning], cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None, "stdout is a pipe"
        while process.stdout.readline() != b"begun\n":
            pass
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.read() == b"cleaned\n"
        assert process.wait(TIMEOUT_S) == 130
