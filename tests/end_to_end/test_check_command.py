"""`flowfabric check`: files, folders and modules are read and not imported; an app is, when it is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flowfabric.cli.main import main

WRONG = "import time\nfrom flowfabric import App\n{app}\n@app.task\nasync def nap(s: int) -> None:\n    time.sleep(s)\n"
EXPLOSIVE = WRONG.format(app="raise SystemExit('imported')")
# Stands in for an app: what matters here is only that its own check is called, and what becomes of its words.
CHECKED = """
from flowfabric.core.errors import InvalidRequest
class Checked:
    def check(self):
        {does}
app = Checked()
"""
HOLE = """from __future__ import annotations
from flowfabric import App
app = App()
@app.task
async def job(order: Missing) -> None: ...
"""


class Shell:
    """Runs the command in a folder, and reads what it prints."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capture = folder, capture

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def check(self, *words: str) -> tuple[int, list[str], str]:
        """Exit code, lines and errors."""
        code = main(["check", *words])
        out, error = self._capture.readouterr()
        return code, out.splitlines(), error


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOWFABRIC_STORE", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return Shell(tmp_path, capsys)


def test_a_file_is_read_and_not_imported(shell: Shell) -> None:
    path = shell.write("shop.py", EXPLOSIVE)
    said = "plain_sleep: time.sleep keeps its slot and starts anew in each run; use flowfabric.sleep"
    assert shell.check(str(path)) == (1, [f"{path}:6:5: {said}"], "")
    assert shell.check("shop.py") == (1, [f"shop.py:6:5: {said}"], "")


def test_a_module_is_found_by_its_name_and_not_imported(shell: Shell) -> None:
    shell.write("explosive_shop/__init__.py", "raise SystemExit('imported')")
    shell.write("explosive_shop/tasks/__init__.py", "raise SystemExit('imported')")
    shell.write("explosive_shop/tasks/night.py", EXPLOSIVE)
    for target, found in (("explosive_shop.tasks.night", 1), ("explosive_shop.tasks", 1), ("explosive_shop", 1)):
        code, lines, _ = shell.check(target)
        assert (code, len(lines)) == (1, found), target
        assert "night.py:6:5: plain_sleep" in lines[0]
    assert "explosive_shop" not in sys.modules


def test_a_folder_is_searched_but_not_what_is_hidden_in_it(shell: Shell) -> None:
    for name in ("a.py", "in/b.py", ".venv/c.py", "in/__pycache__/d.py", "e.txt"):
        shell.write(f"project/{name}", EXPLOSIVE)
    code, lines, _ = shell.check("project")
    assert (code, [line.partition(":")[0] for line in lines]) == (1, ["project/a.py", "project/in/b.py"])


def test_nothing_found_is_no_news(shell: Shell) -> None:
    shell.write("fine.py", "x = 1")
    assert shell.check("fine.py", "fine.py") == (0, [], "")


def test_what_is_named_twice_is_told_once(shell: Shell) -> None:
    shell.write("shop.py", EXPLOSIVE)
    assert len(shell.check("shop.py", "shop.py", ".")[1]) == 1


def test_programs_get_one_document_a_line(shell: Shell) -> None:
    shell.write("shop.py", EXPLOSIVE)
    code, [line], _ = shell.check("shop.py", "--json")
    document = json.loads(line)
    assert code == 1
    assert {name: document[name] for name in ("path", "line", "column", "code")} == {
        "path": "shop.py", "line": 6, "column": 5, "code": "plain_sleep",
    }  # fmt: skip


def test_a_named_app_is_imported_and_asked(shell: Shell) -> None:
    for number, (does, expected) in enumerate(
        {
            "pass": [],
            "raise InvalidRequest('unknown_type', 'Order is not defined')": ["unknown_type: Order is not defined"],
            "raise NameError('Order')": ["NameError: Order"],
            "raise SystemExit('no settings')": ["SystemExit: no settings"],
        }.items()
    ):
        module = f"checked_app_{number}"
        shell.write(f"{module}.py", CHECKED.format(does=does))
        lines = [f"{module}:app:1:1: app_check: {words}" for words in expected]
        assert shell.check(f"{module}:app") == (1 if lines else 0, lines, "")


def test_an_annotation_that_cannot_be_resolved_is_found_by_the_app_itself(shell: Shell) -> None:
    shell.write("app_with_a_hole.py", HOLE)
    assert shell.check("app_with_a_hole.py")[0] == 0
    code, [line], _ = shell.check("app_with_a_hole:app")
    assert code == 1
    assert "app_check" in line and "Missing" in line


def test_an_app_that_cannot_be_imported_is_a_wrong_call(shell: Shell) -> None:
    shell.write("broken_app.py", "raise ValueError('not today')")
    shell.write("empty_app.py", "")
    shell.write("leaving_app.py", "import sys\nsys.exit('no settings')")
    shell.write("ending_app.py", "raise SystemExit(3)")
    for target, words in (
        ("leaving_app:app", "import_failed: leaving_app:app cannot be imported: SystemExit: no settings"),
        ("ending_app:app", "import_failed: ending_app:app cannot be imported: SystemExit: 3"),
        ("broken_app:app", "import_failed: broken_app:app cannot be imported: ValueError: not today"),
        ("empty_app:app", "import_failed: empty_app:app cannot be imported: AttributeError"),
    ):
        code, lines, error = shell.check(target)
        assert (code, lines) == (2, []) and error.startswith(f"flowfabric: {words}")


@pytest.mark.parametrize(
    "target", ["missing.py", "missing", "no.such.module", "json.missing", "a b", "..", "itertools"]
)
def test_what_is_not_there_is_a_wrong_call(shell: Shell, target: str) -> None:
    if target == "..":
        target = "../missing"
    code, lines, error = shell.check(target)
    assert (code, lines) == (2, []) and error.startswith("flowfabric: target_not_found: ")


def test_what_is_printed_does_not_steer_the_terminal(shell: Shell) -> None:
    shell.write("a\x1b[2J.py", EXPLOSIVE)
    code, lines, _ = shell.check(".")
    assert code == 1 and "\x1b" not in lines[0]


def test_no_store_is_needed(shell: Shell) -> None:
    path = shell.write("shop.py", EXPLOSIVE)
    words = [sys.executable, "-m", "flowfabric", "check", str(path)]
    ran = subprocess.run(words, check=False, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr, "plain_sleep" in ran.stdout) == (1, "", True)
