"""Tests that the rules of tests/tidy_tree.py and tools/tidy.py reject made-up source trees that break the rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests import tidy_limits as limits
from tests import tidy_tree
from tests.tidy_tree import Module, cycle_problems, cycles, fragment_problems, read_package, size_problems
from tools import tidy
from tools.tidy import Numbers

MARKED = "Whoever waits is told."
SKIP = "# fmt:" + " skip"


def tree(folder: Path, files: dict[str, str]) -> Path:
    """Write files below a folder and return the folder."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def package(folder: Path, files: dict[str, str]) -> dict[str, Module]:
    """Return the modules of a package called `flowfabric`."""
    return read_package(tree(folder / "flowfabric", files))


def chain(package: str, number: int) -> dict[str, str]:
    """Return modules that form a cycle: each imports the next inside a function, and the last imports the first."""
    names = [f"m{place}" for place in range(number)]
    targets = [*names[1:], names[0]]
    late = "def f():\n    from flowfabric.{} import {}\n"
    return {f"{package}/{name}.py": late.format(package, target) for name, target in zip(names, targets, strict=True)}


# --- Modules ----------------------------------------------------------------------------------------------------------


def test_too_many_modules_are_refused(tmp_path: Path) -> None:
    text = "pass\n" * limits.MEDIAN_LINES
    most = package(tmp_path, {f"m{number}.py": text for number in range(limits.MODULES)})
    assert size_problems(most) == []
    assert size_problems(most | {"one_more": most["m0"]}) == [f"{limits.MODULES + 1} modules, at most {limits.MODULES}"]


def test_modules_that_are_mostly_small_are_refused(tmp_path: Path) -> None:
    small, large = "pass\n" * 20, "pass\n" * 200
    assert size_problems(package(tmp_path, {"a.py": small, "b.py": large, "c.py": large})) == []
    [problem] = size_problems(package(tmp_path, {"a.py": small, "b.py": small, "c.py": large}))
    assert "median of the modules is 20 lines" in problem


# --- Fragments --------------------------------------------------------------------------------------------------------


def test_a_small_module_with_one_importer_is_refused(tmp_path: Path) -> None:
    modules = package(tmp_path, {"a.py": "from flowfabric.part import f\n", "part.py": "def f(): ...\n"})
    [problem] = fragment_problems(modules)
    assert problem.startswith("part has 1 lines and one importer, a;")


def test_a_type_only_import_makes_an_importer(tmp_path: Path) -> None:
    late = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from flowfabric.part import f\n"
    assert len(fragment_problems(package(tmp_path, {"a.py": late, "part.py": "def f(): ...\n"}))) == 1


@pytest.mark.parametrize(
    "files",
    [
        {"a.py": "from flowfabric.part import f\n", "part.py": "pass\n" * limits.FRAGMENT_LINES},
        {"a.py": "from flowfabric.part import f\n", "b.py": "import flowfabric.part\n", "part.py": "def f(): ...\n"},
        {"a.py": "pass\n", "part.py": "def f(): ...\n"},
        {"a.py": "from flowfabric.part import f\n", "part/__init__.py": "def f(): ...\n"},
        {"a.py": "from flowfabric.ops.hold import f\n", "ops/hold.py": "def f(): ...\n"},
        {"a.py": "from flowfabric.cli.commands import hold\n", "cli/commands/hold.py": "def f(): ...\n"},
        {"a.py": "from flowfabric.runtime.calls.sleep import f\n", "runtime/calls/sleep.py": "def f(): ...\n"},
    ],
    ids=["large", "two importers", "no importer", "package", "operation", "command", "durable call"],
)
def test_other_modules_may_stand_alone(tmp_path: Path, files: dict[str, str]) -> None:
    assert fragment_problems(package(tmp_path, files)) == []


# --- Cycles -----------------------------------------------------------------------------------------------------------


def test_cycles_are_found_largest_first() -> None:
    graph = {"a": {"b"}, "b": {"a"}, "c": {"d"}, "d": {"e", "a"}, "e": {"c"}, "f": {"a"}}
    assert cycles(graph) == [["c", "d", "e"], ["a", "b"]]


def test_a_large_cycle_is_allowed_in_the_runtime_only(tmp_path: Path) -> None:
    assert cycle_problems(package(tmp_path / "1", chain("runtime", limits.CYCLE_MODULES))) == []
    [problem] = cycle_problems(package(tmp_path / "2", chain("engine", limits.CYCLE_MODULES)))
    assert f"cycle of {limits.CYCLE_MODULES} modules in engine, at most {limits.SMALL_CYCLE_MODULES}" in problem


def test_a_cycle_that_grows_is_refused(tmp_path: Path) -> None:
    [problem] = cycle_problems(package(tmp_path, chain("runtime", limits.CYCLE_MODULES + 1)))
    assert f"cycle of {limits.CYCLE_MODULES + 1} modules in runtime" in problem


def test_a_cycle_across_packages_is_refused(tmp_path: Path) -> None:
    late = "def f():\n    from flowfabric.{} import m\n"
    modules = package(tmp_path, {"app/m.py": late.format("worker"), "worker/m.py": late.format("app")})
    [problem] = cycle_problems(modules)
    assert "cycle of 2 modules across packages (2 without type-only imports): app.m, worker.m" in problem


def test_type_only_imports_are_counted_separately(tmp_path: Path) -> None:
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from flowfabric.worker import m\n"
    modules = package(tmp_path, {"app/m.py": typed, "worker/m.py": "def f():\n    from flowfabric.app import m\n"})
    assert modules["app.m"].type_only_imports == {"worker.m"}
    assert modules["app.m"].imports == frozenset()
    [problem] = cycle_problems(modules)
    assert "(0 without type-only imports)" in problem


def test_cycle_that_prevents_loading_is_rejected_at_any_size(tmp_path: Path) -> None:
    files = {"core/a.py": "from flowfabric.core import b\n", "core/b.py": "from flowfabric.core import a\n"}
    assert cycle_problems(package(tmp_path, files)) == ["modules import each other while they load: core.a, core.b"]


def test_module_and_name_in_it_are_distinguished(tmp_path: Path) -> None:
    files = {"__init__.py": "", "core/__init__.py": "", "core/a.py": "", "b.py": "from flowfabric.core import a, x\n"}
    assert package(tmp_path, files)["b"].imports == {"core.a", "core"}


# --- Lines of code and prose ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("x = 1\n\n\ny = 2\n", 2),
        ("# why\nx = 1  # why\n", 1),
        ('"""Module."""\n\nx = 1\n', 1),
        ('def f():\n    """One.\n\n    Two.\n    """\n    return 1\n', 2),
        ('class C:\n    """One."""\n\n    async def f(self):\n        """Two."""\n', 2),
        ("import os\nfrom a import (\n    b,\n    c,\n)\nx = 1\n", 1),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import os\nx = 1\n", 1),
        ("x = [\n    1,\n]\n", 3),
        ('x = """\ntwo\n"""\n', 3),
        ("", 0),
    ],
)
def test_code_is_counted_without_blanks_imports_docstrings_and_comments(source: str, lines: int) -> None:
    assert tidy.code_lines(source) == lines


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a small checkout with one package."""
    table = f"T = [\n    1, 2, 3, 4,\n]  {SKIP}\n"
    files = {
        "README.md": "Plain words. " * 100,
        "docs/page.md": f"{MARKED} " * 10,
        "tests/test_a.py": "x = 1\n",
        "src/flowfabric/__init__.py": "x = 1\n",
        "src/flowfabric/core/__init__.py": '"""Nothing."""\n',
        "src/flowfabric/core/a.py": f'"""{MARKED}"""\n' + "x = 1\n" * 97 + table,
    }
    return tree(tmp_path / "checkout", files)


def test_every_package_and_folder_is_measured(checkout: Path) -> None:
    measured = tidy.measure(checkout)
    assert measured.code == {"src/flowfabric/core": 100, "src/flowfabric": 1}
    assert set(measured.markers) == {"src/flowfabric/core", "src/flowfabric", "tests", "docs", "root"}
    assert measured.markers["root"] == 0
    assert measured.markers["docs"] == 10_000 * 2 / 4
    assert {name: count for name, count in measured.tables.items() if count} == {"src/flowfabric/core": 1}


def test_an_updated_ratchet_is_met(checkout: Path, tmp_path: Path) -> None:
    measured = tidy.measure(checkout)
    (tmp_path / "ratchet.toml").write_text(tidy.ratchet(measured))
    assert tidy.problems(measured, tidy.read_ratchet(tmp_path / "ratchet.toml")) == []


@pytest.mark.parametrize(
    ("allowed", "message"),
    [
        (Numbers(code={"core": 99}), "core: code 100, at most 99"),
        (Numbers(code={"core": 103}), "core: code may be 103 but is only 100; python tools/tidy.py --update"),
        (Numbers(), "core: no number of code (100 today); python tools/tidy.py --update"),
        (Numbers(code={"core": 100, "gone": 5}), "gone: code may be 5 but is only 0"),
    ],
)
def test_code_that_departs_from_the_ratchet_is_refused(allowed: Numbers, message: str) -> None:
    [problem] = tidy.problems(Numbers(code={"core": 100}), allowed)
    assert problem.startswith(message)


@pytest.mark.parametrize("allowed", [100, 102])
def test_code_may_be_2_percent_below_the_ratchet(allowed: int) -> None:
    assert tidy.problems(Numbers(code={"core": 100}), Numbers(code={"core": allowed})) == []


@pytest.mark.parametrize(("allowed", "is_met"), [(9.0, False), (10.0, True), (13.0, True), (14.0, False)])
def test_markers_are_ratcheted(allowed: float, is_met: bool) -> None:
    problems = tidy.problems(Numbers(markers={"docs": 10.0}), Numbers(markers={"docs": allowed}))
    assert (problems == []) is is_met


@pytest.mark.parametrize(("allowed", "is_met"), [(1, False), (2, True), (3, False)])
def test_a_table_that_is_not_listed_is_refused(allowed: int, is_met: bool) -> None:
    problems = tidy.problems(Numbers(tables={"core": 2}), Numbers(tables={"core": allowed}))
    assert (problems == []) is is_met


def test_a_module_is_below_its_package_only() -> None:
    module = Module("ops.hold", False, 1, frozenset(), frozenset(), frozenset())
    assert module.is_below("ops")
    assert not replace(module, name="opsx.hold").is_below("ops")
    assert tidy_tree.fragment_problems({"ops.hold": module}) == []
