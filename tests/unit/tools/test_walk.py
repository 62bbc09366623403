"""Tests that the recorder of tools/walk.py counts function entries of the right threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.walk import Recorder, Stop, Walk, page, shortest

PROGRAM = {
    "one.py": """
async def pause(sleep):
    await sleep(0)
    await sleep(0)
    return 1

def plain():
    return 1

def outer():
    def inner():
        return 1
    return inner()
""",
    "two.py": """
def call(function):
    return function()
""",
}


@pytest.fixture
def program(tmp_path: Path) -> dict[str, Any]:
    """Return the functions of two files below a folder, and a recorder for that folder."""
    names: dict[str, Any] = {"recorder": Recorder(source=f"{tmp_path}/")}
    for file, text in PROGRAM.items():
        exec(compile(text, str(tmp_path / file), "exec"), names)
    return names


def recorded(program: dict[str, Any], call: Callable[[], object]) -> Walk:
    recorder: Recorder = program["recorder"]
    with recorder.installed(), recorder.recording() as walks:
        call()
    [walk] = walks
    return walk


def test_an_entry_is_recorded_with_its_file(program: dict[str, Any]) -> None:
    assert recorded(program, program["plain"]).stops == (Stop("one.py", "plain"),)


def test_a_coroutine_that_resumes_is_entered_once(program: dict[str, Any]) -> None:
    walk = recorded(program, lambda: asyncio.run(program["pause"](asyncio.sleep)))
    assert walk.stops == (Stop("one.py", "pause"),)


def test_functions_of_other_folders_are_left_out(program: dict[str, Any]) -> None:
    assert recorded(program, lambda: Path("a").joinpath("b")).stops == ()


def test_an_inner_function_is_named_without_locals(program: dict[str, Any]) -> None:
    assert [stop.function for stop in recorded(program, program["outer"]).stops] == ["outer", "outer.inner"]


def test_a_thread_that_starts_during_the_call_is_recorded(program: dict[str, Any]) -> None:
    assert recorded(program, lambda: _in_thread(program["plain"])).stops == (Stop("one.py", "plain"),)


def test_a_background_thread_is_left_out(program: dict[str, Any]) -> None:
    recorder: Recorder = program["recorder"]
    begin, done = threading.Event(), threading.Event()

    def background() -> None:
        begin.wait(5)
        program["plain"]()
        done.set()

    with recorder.installed():
        thread = threading.Thread(target=background)
        thread.start()
        recorder.ignore_background()
        with recorder.recording() as walks:
            begin.set()
            assert done.wait(5)
        thread.join()
    assert [walk.stops for walk in walks] == [()]


def test_nothing_is_recorded_after_the_block(program: dict[str, Any]) -> None:
    walk = recorded(program, program["plain"])
    program["plain"]()
    assert len(walk.stops) == 1
    assert len(program["recorder"].stops) == 1


def test_files_and_changes_of_file_are_counted(program: dict[str, Any]) -> None:
    walk = recorded(program, lambda: (program["call"](program["plain"]), program["plain"](), program["call"](int)))
    assert [stop.file for stop in walk.stops] == ["two.py", "one.py", "one.py", "two.py"]
    assert (walk.files, walk.changes) == (2, 2)
    assert list(walk.lines()) == ["two.py: call", "one.py: plain x2", "two.py: call"]


def test_the_walk_with_the_fewest_changes_is_chosen() -> None:
    short, usual, long = (Walk(tuple(Stop(f"{n}.py", "f") for n in range(size))) for size in (1, 3, 5))
    assert shortest([long, usual, short, usual]) is short


def test_page_shows_the_numbers_and_the_files_in_order_of_first_entry() -> None:
    stops = [Stop("b.py", "g"), Stop("a.py", "f"), Stop("b.py", "h"), Stop("b.py", "h.<lambda>")]
    text = page({"hello": Walk(tuple(stops))})
    assert "**2 files**" in text and "**2 times**" in text
    assert "1. `b.py`: `g`, `h`\n2. `a.py`: `f`\n" in text


def _in_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
