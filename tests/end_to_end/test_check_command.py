"""`flowfabric check` reads files, folders and modules without importing them; it imports only a named app."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flowfabric.cli.main import main

SOURCE_WITH_FINDING = (
    "import time\nfrom flowfabric import App\n{app}\n@app.task\nasync def nap(s: int) -> None:\n    time.sleep(s)\n"
)
SOURCE_THAT_FAILS_ON_IMPORT = SOURCE_WITH_FINDING.format(app="raise SystemExit('imported')")
# A stand-in for an app; the tests need only its `check` method and the errors that it raises.
APP_WITH_CHECK = """
from flowfabric.core.errors import InvalidRequest
class CheckedApp:
    def check(self):
        {body}
app = CheckedApp()
"""
APP_WITH_UNKNOWN_TYPE = """from __future__ import annotations
from flowfabric import App
app = App()
@app.task
async def job(order: Missing) -> None: ...
"""


class Shell:
    """Runs the command in a folder and captures its output."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capture = folder, capture

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def check(self, *words: str) -> tuple[int, list[str], str]:
        """Return the exit code, the output lines and the error output."""
        code = main(["check", *words])
        out, error = self._capture.readouterr()
        return code, out.splitlines(), error


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOWFABRIC_STORE", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return Shell(tmp_path, capsys)


def test_file_is_read_without_importing_it(shell: Shell) -> None:
    path = shell.write("shop.py", SOURCE_THAT_FAILS_ON_IMPORT)
    finding = "plain_sleep: time.sleep occupies the slot and starts over in each run; use flowfabric.sleep"
    assert shell.check(str(path)) == (1, [f"{path}:6:5: {finding}"], "")
    assert shell.check("shop.py") == (1, [f"shop.py:6:5: {finding}"], "")


def test_module_is_found_by_name_without_importing_it(shell: Shell) -> None:
    shell.write("explosive_shop/__init__.py", "raise SystemExit('imported')")
    shell.write("explosive_shop/tasks/__init__.py", "raise SystemExit('imported')")
    shell.write("explosive_shop/tasks/night.py", SOURCE_THAT_FAILS_ON_IMPORT)
    for target, finding_count in (
        ("explosive_shop.tasks.night", 1),
        ("explosive_shop.tasks", 1),
        ("explosive_shop", 1),
    ):
        code, lines, _ = shell.check(target)
        assert (code, len(lines)) == (1, finding_count), target
        assert "night.py:6:5: plain_sleep" in lines[0]
    assert "explosive_shop" not in sys.modules


def test_folder_is_searched_except_for_hidden_and_cache_folders(shell: Shell) -> None:
    for name in ("a.py", "in/b.py", ".venv/c.py", "in/__pycache__/d.py", "e.txt"):
        shell.write(f"project/{name}", SOURCE_THAT_FAILS_ON_IMPORT)
    code, lines, _ = shell.check("project")
    assert (code, [line.partition(":")[0] for line in lines]) == (1, ["project/a.py", "project/in/b.py"])


def test_file_without_findings_prints_nothing(shell: Shell) -> None:
    shell.write("fine.py", "x = 1")
    assert shell.check("fine.py", "fine.py") == (0, [], "")


def test_file_named_twice_is_reported_once(shell: Shell) -> None:
    shell.write("shop.py", SOURCE_THAT_FAILS_ON_IMPORT)
    assert len(shell.check("shop.py", "shop.py", ".")[1]) == 1


def test_json_output_is_one_document_per_line(shell: Shell) -> None:
    shell.write("shop.py", SOURCE_THAT_FAILS_ON_IMPORT)
    code, [line], _ = shell.check("shop.py", "--json")
    document = json.loads(line)
    assert code == 1
    assert {name: document[name] for name in ("path", "line", "column", "code")} == {
        "path": "shop.py",
        "line": 6,
        "column": 5,
        "code": "plain_sleep",
    }


def test_named_app_is_imported_and_checked(shell: Shell) -> None:
    for number, (body, expected) in enumerate(
        {
            "pass": [],
            "raise InvalidRequest('unknown_type', 'Order is not defined')": ["unknown_type: Order is not defined"],
            "raise NameError('Order')": ["NameError: Order"],
            "raise SystemExit('no settings')": ["SystemExit: no settings"],
        }.items()
    ):
        module = f"checked_app_{number}"
        shell.write(f"{module}.py", APP_WITH_CHECK.format(body=body))
        lines = [f"{module}:app:1:1: app_check: {words}" for words in expected]
        assert shell.check(f"{module}:app") == (1 if lines else 0, lines, "")


def test_unresolvable_annotation_is_found_only_by_importing_the_app(shell: Shell) -> None:
    shell.write("app_with_unknown_type.py", APP_WITH_UNKNOWN_TYPE)
    assert shell.check("app_with_unknown_type.py")[0] == 0
    code, [line], _ = shell.check("app_with_unknown_type:app")
    assert code == 1
    assert "app_check" in line and "Missing" in line


def test_app_that_cannot_be_imported_is_bad_usage(shell: Shell) -> None:
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
def test_missing_target_is_bad_usage(shell: Shell, target: str) -> None:
    if target == "..":
        target = "../missing"
    code, lines, error = shell.check(target)
    assert (code, lines) == (2, []) and error.startswith("flowfabric: target_not_found: ")


def test_control_characters_in_paths_are_escaped(shell: Shell) -> None:
    shell.write("a\x1b[2J.py", SOURCE_THAT_FAILS_ON_IMPORT)
    code, lines, _ = shell.check(".")
    assert code == 1 and "\x1b" not in lines[0]


def test_check_needs_no_store(shell: Shell) -> None:
    path = shell.write("shop.py", SOURCE_THAT_FAILS_ON_IMPORT)
    words = [sys.executable, "-m", "flowfabric", "check", str(path)]
    process = subprocess.run(words, check=False, capture_output=True, text=True)
    assert (process.returncode, process.stderr, "plain_sleep" in process.stdout) == (1, "", True)
