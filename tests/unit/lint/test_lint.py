"""Tests that `flowfabric check` reports every line marked `E code` with that code, and no other line."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.lint import CODES, check_file, check_text
from tests.unit.lint.checked_programs import GOOD, MISTAKES

HEAD = """\
import asyncio, contextlib, os, random, time, uuid
from datetime import UTC, date, datetime
import httpx
import flowfabric as ff
from flowfabric import *
from flowfabric import App, approval, callback, gather, poll, race, saga, settle, sleep, step, sync, wait_signal
from shop.flows import two_person
app = App()
def pay(order: str) -> str: return order
async def ask(order: str) -> str: return order
async def branch(n: int) -> None: await sleep("1s")
"""
PATH = Path("/nowhere/tasks.py")


def make_module(*lines: str, kind: str = "async def") -> str:
    """Return a module with one task that has these lines."""
    return HEAD + "\n".join(
        ["@app.task", f"{kind} job(order: str, names: set[str]) -> None:", *(f"    {x}" for x in lines)]
    )


def find_reported_codes(source: str, path: Path = PATH) -> list[tuple[int, str]]:
    return sorted({(finding.line, finding.code) for finding in check_text(source, path)})


def find_marked_codes(source: str) -> list[tuple[int, str]]:
    marks = (re.search(r"# E ([\w ]+)", line) for line in source.splitlines())
    return [(number, code) for number, mark in enumerate(marks, 1) if mark for code in sorted(mark[1].split())]


@pytest.mark.parametrize("name", GOOD)
def test_correct_program_has_no_findings(name: str) -> None:
    assert check_text(GOOD[name], PATH) == []


@pytest.mark.parametrize("name", MISTAKES)
def test_linter_reports_exactly_the_marked_mistakes(name: str) -> None:
    source = HEAD + MISTAKES[name]
    assert find_marked_codes(source) != [], "the program has no marked mistake"
    assert find_reported_codes(source) == find_marked_codes(source)


@pytest.mark.parametrize("name", MISTAKES)
def test_ignore_comment_silences_its_own_code_only(name: str) -> None:
    source = HEAD + MISTAKES[name]
    silenced = re.sub(r"# E ([\w ]+)", lambda mark: f"# flowfabric: ignore[{', '.join(mark[1].split())}]", source)
    assert find_reported_codes(silenced) == []
    other = re.sub(r"# E ([\w ]+)", "# flowfabric: ignore[something_else]", source)
    assert find_reported_codes(other) == find_marked_codes(source)


def test_ignore_comment_inside_a_string_is_not_a_comment() -> None:
    assert find_reported_codes(make_module("print('# flowfabric: ignore[clock]', time.time())")) == [(14, "clock")]


def test_multi_line_call_is_silenced_on_its_first_or_last_line() -> None:
    lines = ["time.time(  # flowfabric: ignore[clock]", ")", "time.time(", ")  # flowfabric: ignore[clock]"]
    assert find_reported_codes(make_module(*lines)) == []


def test_every_code_has_a_marked_mistake() -> None:
    marked_codes = {code for name in MISTAKES for _, code in find_marked_codes(MISTAKES[name])}
    assert marked_codes == set(CODES) - {"syntax_error", "app_check"}


def test_linter_skips_functions_that_are_not_tasks() -> None:
    for head in ("", "@app.other\n", "@celery.task\n", "@queue.task(retries=1)\n"):
        source = (
            f"import time\nfrom celery import Celery\nimport celery\nqueue = Celery()\n{head}def job(x): time.sleep(1)"
        )
        assert find_reported_codes(source) == []


def test_linter_recognizes_tasks_of_any_app() -> None:
    for decorator in ("@app.task", "@app.task(retries=1)", "@make().task", "@shop.app.task()"):
        source = f"import shop, time\nfrom shop import app, make\n{decorator}\ndef job() -> None: time.sleep(1)"
        assert [code for _, code in find_reported_codes(source)] == ["plain_sleep"]


def test_functions_of_the_same_package_may_be_durable(tmp_path: Path) -> None:
    (tmp_path / "src" / "shop").mkdir(parents=True)
    source = make_module("await two_person(order)")
    assert find_reported_codes(source, tmp_path / "src" / "shop" / "tasks.py") == []
    assert find_reported_codes(source, tmp_path / "tests" / "tasks.py") == []
    assert find_reported_codes(source) == [(14, "not_durable")]


def test_finding_names_place_code_and_next_action() -> None:
    [finding] = check_text(make_module("time.sleep(1)"), Path("shop/tasks.py"))
    message = "time.sleep occupies the slot and starts over in each run; use flowfabric.sleep"
    assert str(finding) == f"shop/tasks.py:14:5: plain_sleep: {message}"


def test_finding_in_a_plain_function_suggests_the_sync_call() -> None:
    [finding] = check_text(make_module("time.sleep(1)", kind="def"), PATH)
    assert finding.message.endswith("use flowfabric.sync.sleep")


@pytest.mark.parametrize(
    "source", ["def", "\x00", "# coding: nonsense\n", "x = " + "(" * 5000, "x = " + "-" * 100_000 + "1", "é = '\ud800'"]
)
def test_unreadable_file_is_one_finding(source: str, tmp_path: Path) -> None:
    path = tmp_path / "tasks.py"
    path.write_bytes(source.encode(errors="surrogatepass"))
    assert [finding.code for finding in check_file(path)] == ["syntax_error"]


def test_other_encodings_are_read(tmp_path: Path) -> None:
    path = tmp_path / "tasks.py"
    for decorator, encoding in (("# coding: latin-1\n", "latin-1"), ("", "utf-8-sig")):
        path.write_bytes((decorator + "import time\n@ä.task\ndef job() -> None: time.time()  # é").encode(encoding))
        assert [finding.code for finding in check_file(path)] == ["clock"]


NODES = [ast.unparse(node) for text in (*GOOD.values(), *MISTAKES.values()) for node in ast.parse(text).body]


@given(st.lists(st.sampled_from(NODES), max_size=8))
def test_linter_handles_every_combination_of_statements(parts: list[str]) -> None:
    source = "\n".join(parts)
    assert [finding for finding in check_text(source, PATH) if finding.code == "syntax_error"] == []


def test_linter_terminates_on_circular_assignments() -> None:
    lines = [
        "a = b",
        "b = a",
        "a = a | b",
        "client = client.other()",
        "await client.get()",
        "for x in a | b: await step(pay, x)",
    ]
    assert find_reported_codes(make_module(*lines)) == []
