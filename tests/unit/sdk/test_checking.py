"""What `flowfabric check` finds: every line marked `E code` is reported with that code, and nothing else is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.sdk.checking import CODES, check_file, check_text
from tests.unit.sdk.checked_programs import GOOD, MISTAKES

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
PLACE = Path("/nowhere/tasks.py")


def body(*lines: str, kind: str = "async def") -> str:
    """A module with one task that has these lines."""
    return HEAD + "\n".join(
        ["@app.task", f"{kind} job(order: str, names: set[str]) -> None:", *(f"    {x}" for x in lines)]
    )


def reported(source: str, path: Path = PLACE) -> list[tuple[int, str]]:
    return sorted({(finding.line, finding.code) for finding in check_text(source, path)})


def marked(source: str) -> list[tuple[int, str]]:
    found = (re.search(r"# E ([\w ]+)", line) for line in source.splitlines())
    return [(number, code) for number, mark in enumerate(found, 1) if mark for code in sorted(mark[1].split())]


@pytest.mark.parametrize("name", GOOD)
def test_nothing_is_found_in_programs_that_are_right(name: str) -> None:
    assert check_text(GOOD[name], PLACE) == []


@pytest.mark.parametrize("name", MISTAKES)
def test_every_marked_mistake_is_found_and_nothing_else(name: str) -> None:
    source = HEAD + MISTAKES[name]
    assert marked(source) != [], "a check of the test itself"
    assert reported(source) == marked(source)


@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_can_be_silenced_by_its_code_on_its_line(name: str) -> None:
    source = HEAD + MISTAKES[name]
    silenced = re.sub(r"# E ([\w ]+)", lambda mark: f"# flowfabric: ignore[{', '.join(mark[1].split())}]", source)
    assert reported(silenced) == []
    other = re.sub(r"# E ([\w ]+)", "# flowfabric: ignore[something_else]", source)
    assert reported(other) == marked(source)


def test_text_that_looks_like_a_comment_silences_nothing() -> None:
    assert reported(body("print('# flowfabric: ignore[clock]', time.time())")) == [(14, "clock")]


def test_a_call_over_several_lines_is_silenced_on_its_first_or_last() -> None:
    lines = ["time.time(  # flowfabric: ignore[clock]", ")", "time.time(", ")  # flowfabric: ignore[clock]"]
    assert reported(body(*lines)) == []


def test_all_codes_are_tried() -> None:
    tried = {code for name in MISTAKES for _, code in marked(MISTAKES[name])}
    assert tried == set(CODES) - {"syntax_error", "app_check"}


def test_what_is_no_task_is_not_looked_at() -> None:
    for head in ("", "@app.other\n", "@celery.task\n", "@queue.task(retries=1)\n"):
        source = (
            f"import time\nfrom celery import Celery\nimport celery\nqueue = Celery()\n{head}def job(x): time.sleep(1)"
        )
        assert reported(source) == []


def test_a_task_is_known_by_its_decorator_whatever_the_app_is() -> None:
    for head in ("@app.task", "@app.task(retries=1)", "@make().task", "@shop.app.task()"):
        source = f"import shop, time\nfrom shop import app, make\n{head}\ndef job() -> None: time.sleep(1)"
        assert [code for _, code in reported(source)] == ["plain_sleep"]


def test_functions_of_ones_own_package_may_be_durable(tmp_path: Path) -> None:
    (tmp_path / "src" / "shop").mkdir(parents=True)
    source = body("await two_person(order)")
    assert reported(source, tmp_path / "src" / "shop" / "tasks.py") == []
    assert reported(source, tmp_path / "tests" / "tasks.py") == []
    assert reported(source) == [(14, "not_durable")]


def test_a_finding_says_where_what_and_what_to_do() -> None:
    [finding] = check_text(body("time.sleep(1)"), Path("shop/tasks.py"))
    said = "time.sleep keeps its slot and starts anew in each run; use flowfabric.sleep"
    assert str(finding) == f"shop/tasks.py:14:5: plain_sleep: {said}"


def test_plain_functions_are_told_the_plain_words() -> None:
    [finding] = check_text(body("time.sleep(1)", kind="def"), PLACE)
    assert finding.message.endswith("use flowfabric.sync.sleep")


@pytest.mark.parametrize(
    "source", ["def", "\x00", "# coding: nonsense\n", "x = " + "(" * 5000, "x = " + "-" * 100_000 + "1", "é = '\ud800'"]
)
def test_what_python_cannot_read_is_one_finding(source: str, tmp_path: Path) -> None:
    path = tmp_path / "tasks.py"
    path.write_bytes(source.encode(errors="surrogatepass"))
    assert [finding.code for finding in check_file(path)] == ["syntax_error"]


def test_other_encodings_are_read(tmp_path: Path) -> None:
    path = tmp_path / "tasks.py"
    for head, encoding in (("# coding: latin-1\n", "latin-1"), ("", "utf-8-sig")):
        path.write_bytes((head + "import time\n@ä.task\ndef job() -> None: time.time()  # é").encode(encoding))
        assert [finding.code for finding in check_file(path)] == ["clock"]


NODES = [ast.unparse(node) for text in (*GOOD.values(), *MISTAKES.values()) for node in ast.parse(text).body]


@given(st.lists(st.sampled_from(NODES), max_size=8))
def test_whatever_the_module_holds_looking_at_it_ends_well(parts: list[str]) -> None:
    source = "\n".join(parts)
    assert [finding for finding in check_text(source, PLACE) if finding.code == "syntax_error"] == []


def test_names_that_are_made_of_themselves_are_not_followed_for_ever() -> None:
    lines = [
        "a = b",
        "b = a",
        "a = a | b",
        "client = client.other()",
        "await client.get()",
        "for x in a | b: await step(pay, x)",
    ]
    assert reported(body(*lines)) == []
