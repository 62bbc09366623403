"""The demo plays to its end by itself, tells what its recording tells, and leaves nothing, however it ends."""

from __future__ import annotations

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

from tools.record_demo import COMMAND, DEMO, RECORDING, masked, narration

ENDS_WITHIN_S = 120.0
FACTS = (
    "async def refund(order: str, euros: int) -> str:", "It waits since", "app.approve(token) -> Accepted",
    "404: That did not work - This link cannot be used.", "200: Approval: refund", "200: Thank you", "kill -9 worker 1",
    "works on it, with a lease until",
    "result: 120 euros for order 17 are paid back", "worker 2 took over from worker 1",
    "payments in the books of the bank: 1; same key: True", "winner: bicycle, 7 euros", "hung up: ship, truck",
    "executions: 2 cancelled, 1 completed", "sent: a box with a lamp and a bulb, by bicycle", "lease.suspended",
    "lifecycle.resumed", "lease.expired", "completion.completed", "It has ended: completed", "docs/examples/index.md",
)  # fmt: skip


def surroundings(folder: Path) -> dict[str, str]:
    """Where a demo finds its folder for temporary files, by which its processes are found too."""
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "TERM")}
    return kept | {"TMPDIR": str(folder), "TERM": "xterm", "PYTHONUNBUFFERED": "1"}


def left_behind(folder: Path) -> list[str]:
    """Files in the folder, and processes that were started with it."""
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
def playing(
    env: dict[str, str], *, stdin: int = subprocess.DEVNULL, output: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[bytes]]:
    """A demo that is under way; killed if the test leaves it there."""
    process = subprocess.Popen([sys.executable, DEMO], env=env, stdin=stdin, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_it_tells_its_facts_in_order_and_what_the_recording_tells(tmp_path: Path) -> None:
    played = subprocess.run(
        [sys.executable, DEMO], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        env=surroundings(tmp_path), timeout=ENDS_WITHIN_S,
    )  # fmt: skip
    assert (played.returncode, played.stderr) == (0, "")
    places = [played.stdout.find(fact) for fact in FACTS]
    assert -1 not in places and places == sorted(places), played.stdout
    assert "\x1b" not in played.stdout, "no colours for a pipe"
    assert left_behind(tmp_path) == []
    recording = RECORDING.read_text(encoding="utf-8")
    assert narration(recording) == narration(played.stdout), "record it again: python3 dev.py demo --record"


def test_the_recording_has_nothing_of_one_run() -> None:
    recording = RECORDING.read_text(encoding="utf-8")
    assert recording.startswith(COMMAND)
    assert masked(recording) == recording
    places = [recording.find(fact) for fact in FACTS]
    assert -1 not in places and places == sorted(places)


def test_another_sentence_is_another_narration_and_another_time_is_not() -> None:
    told = "== 1. A heading ==\n\nA sentence.\n    + 0.1 s  lease.acquired\n"
    assert narration(told) == narration(told.replace("0.1", "3.4"))
    assert narration(told) != narration(told.replace("A sentence", "Another sentence"))


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_interrupted_it_ends_quietly_and_leaves_nothing(tmp_path: Path, number: int) -> None:
    with playing(surroundings(tmp_path)) as demo:
        assert demo.stdout is not None, "asked for as a pipe"
        for line in demo.stdout:
            if b"app.approve(token)" in line:
                break
        demo.send_signal(number)
        out, errors = demo.communicate(timeout=ENDS_WITHIN_S)
    assert (demo.returncode, errors) == (130, b"")
    assert out.endswith(b"Interrupted. Nothing is left behind.\n")
    assert left_behind(tmp_path) == []


@pytest.mark.long
def test_whoever_stops_reading_hears_no_complaint(tmp_path: Path) -> None:
    with playing(surroundings(tmp_path)) as demo:
        assert demo.stdout is not None and demo.stderr is not None, "asked for as pipes"
        demo.stdout.readline()
        demo.stdout.close()
        assert (demo.wait(ENDS_WITHIN_S), demo.stderr.read()) == (141, b"")
    assert left_behind(tmp_path) == []


@pytest.mark.long
def test_killed_it_leaves_no_worker(tmp_path: Path) -> None:
    with playing(surroundings(tmp_path)) as demo:
        assert demo.stdout is not None, "asked for as a pipe"
        for line in demo.stdout:
            if b"app.approve(token)" in line:
                break
        demo.kill()
    ends = time.monotonic() + ENDS_WITHIN_S
    while any(item.startswith("process") for item in left_behind(tmp_path)):
        assert time.monotonic() < ends, left_behind(tmp_path)
        time.sleep(0.05)


@pytest.mark.long
@pytest.mark.parametrize("is_coloured", [True, False])
def test_in_a_terminal_one_is_asked_and_may_refuse(tmp_path: Path, is_coloured: bool) -> None:
    """Whoever says no hears that nothing was paid, and sees the rest all the same."""
    env = surroundings(tmp_path) | ({} if is_coloured else {"NO_COLOR": "1"})
    told = conversation(env, {r"n refuses\.": lambda _: b"n\n"})
    assert "not paid back, finance refused" in told
    assert "result: 120 euros for order 17 are paid back" in told
    assert ("\x1b[1m== 1." in told, "\x1b[" in told) == (is_coloured, is_coloured)
    assert left_behind(tmp_path) == []


@pytest.mark.long
def test_in_a_terminal_one_may_follow_the_link_instead(tmp_path: Path) -> None:
    def press_the_button(link: re.Match[str]) -> bytes:
        with urllib.request.urlopen(link[0].strip(), b"decision=approve") as answered:
            assert answered.status == 200
        return b""

    told = conversation(surroundings(tmp_path) | {"NO_COLOR": "1"}, {r"http://\S+\s": press_the_button})
    assert "result: 120 euros for order 17 are paid back" in told
    assert left_behind(tmp_path) == []


def conversation(env: dict[str, str], answers: dict[str, Callable[[re.Match[str]], bytes]]) -> str:
    """All that a demo shows in a terminal whose user answers so, and turns the pages."""
    answers = {**answers, r"\[Enter\]": lambda _: b"\n"}
    ours, theirs = pty.openpty()
    with playing(env, stdin=theirs, output=theirs) as demo:
        os.close(theirs)
        shown, answered = "", 0
        while more := _shown(ours):
            shown += more
            for question, answer in answers.items():
                if found := re.compile(question).search(shown, answered):
                    answered = found.end()
                    os.write(ours, answer(found))
        os.close(ours)
        assert demo.wait(ENDS_WITHIN_S) == 0, shown
    assert "Traceback" not in shown
    return shown


def _shown(terminal: int) -> str:
    ready, _, _ = select.select([terminal], [], [], ENDS_WITHIN_S)
    assert ready, "nothing is shown any more"
    try:
        return os.read(terminal, 4096).decode()
    except OSError:  # How Linux says that the other end is closed.
        return ""


def test_a_task_of_the_project_that_is_interrupted_is_left_to_clean_up() -> None:
    """Ctrl-C reaches the whole group; dev.py ends when its command has ended, and then as interrupted."""
    cleaning = "import time\ntry: print('begun', flush=True); time.sleep(60)\nfinally: time.sleep(1); print('cleaned')"
    running = "import dev, sys; dev.COMMANDS['x'] = lambda _: dev.run(sys.executable, '-c', sys.argv[1]); "
    process = subprocess.Popen(
        [sys.executable, "-c", running + "sys.exit(dev.main(['x']))", cleaning], cwd=DEMO.parent.parent,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None, "asked for as a pipe"
        while process.stdout.readline() != b"begun\n":
            pass
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.read() == b"cleaned\n"
        assert process.wait(ENDS_WITHIN_S) == 130
