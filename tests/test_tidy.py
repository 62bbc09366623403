"""The house style, as far as a machine can read it. Each rule is also shown something it must refuse."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path, PurePath
from typing import Protocol

import pytest

from tests import tidy_rules as rules

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
OPERATIONS = SOURCE / "flowfabric" / "ops"
LOCK = ROOT / "requirements.lock"
UNTRACKED_FOLDERS = frozenset({".git", ".venv", ".venv-peers", "__pycache__", "build", "dist"})


class Rule(Protocol):
    """A function of tests/tidy_rules.py that reads a text."""

    __name__: str

    def __call__(self, text: str, /) -> list[str]: ...


def test_files_functions_classes_and_signatures_fit_their_page() -> None:
    assert _problems(rules.size_problems, SOURCE.rglob("*.py")) == []


def test_module_names_say_what_they_hold() -> None:
    paths = [path.relative_to(SOURCE) for path in SOURCE.rglob("*.py")]
    assert [f"{path}:{problem}" for path in paths for problem in rules.name_problems(path)] == []


def test_no_notes_to_oneself() -> None:
    assert _problems(rules.marker_problems, [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.sql")]) == []


def test_operations_await_nothing_but_their_transaction() -> None:
    assert _problems(rules.await_problems, OPERATIONS.rglob("*.py")) == []


def test_sql_is_upper_case_names_its_columns_and_orders_what_it_limits() -> None:
    assert _problems(rules.sql_problems, SOURCE.rglob("*.sql")) == []


def test_no_trace_of_a_machine_or_a_package_index() -> None:
    assert _problems(rules.foreign_problems, _project_files()) == []


def test_the_lock_names_no_address() -> None:
    assert "://" not in LOCK.read_text()


def test_the_lock_covers_every_declared_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    locked = set(re.findall(r"^([a-z0-9-]+)==", LOCK.read_text(), flags=re.MULTILINE))
    assert {_package(requirement) for requirement in declared} - {"flowfabric"} - locked == set()


def _function(lines: int) -> str:
    return "def f():\n" + "    pass\n" * (lines - 1)


def _class(methods: int, extra: str = "") -> str:
    return "class C:\n" + "".join(f"    def m{number}(self): ...\n" for number in range(methods)) + extra


BAD: list[tuple[Rule, str]] = [
    (rules.size_problems, "pass\n" * 401),
    (rules.size_problems, _function(lines=61)),
    (rules.size_problems, "async " + _function(lines=61)),
    (rules.size_problems, _class(methods=16)),
    (rules.size_problems, "def f(a, b, c, d, e, f, g): ..."),
    (rules.size_problems, "class C:\n    def f(self, a, b, c, /, d, e, f, g): ..."),
    (rules.marker_problems, "x = 1  # TO" + "DO later"),
    (rules.marker_problems, "# XX" + "X"),
    (rules.await_problems, "async def op(tx, clock):\n    await clock.sleep(1)"),
    (rules.await_problems, "async def op(tx):\n    await asyncio.sleep(0)"),
    (rules.await_problems, "async def op(tx):\n    return [await x for x in await tx.all()]"),
    (rules.await_problems, "async def op(tx, pool):\n    async with pool.acquire(): ..."),
    (rules.await_problems, "async def op(tx, rows):\n    async for row in rows: ..."),
    (rules.await_problems, "async def op(tx, rows):\n    return [row async for row in rows]"),
    (rules.await_problems, "async def part(tx): ...\nasync def op(tx, other):\n    await part(other)"),
    (rules.await_problems, "from elsewhere import part\nasync def op(tx):\n    await part(tx)"),
    (rules.sql_problems, "select id FROM t"),
    (rules.sql_problems, "SELECT id\nFROM t\nwhere id = 1"),
    (rules.sql_problems, "INSERT INTO t (id) VALUES (1) on CONFLICT DO NOTHING"),
    (rules.sql_problems, "SELECT * FROM t"),
    (rules.sql_problems, "SELECT id, t.* FROM t"),
    (rules.sql_problems, "DELETE FROM t RETURNING *"),
    (rules.sql_problems, "SELECT id FROM t LIMIT 1"),
    (rules.sql_problems, "SELECT id FROM t ORDER BY id; SELECT id FROM t LIMIT 1"),
    (rules.sql_problems, "-- one\nSELECT id FROM t ORDER BY id\n-- two\nSELECT id FROM t LIMIT 1"),
    (rules.sql_problems, "SELECT id FROM (SELECT id FROM t LIMIT 1) AS u ORDER BY id"),
    (rules.sql_problems, "SELECT id, rank() OVER (ORDER BY id) FROM t LIMIT 1"),
    (rules.foreign_problems, "see " + "/work" + "/main"),
    (rules.foreign_problems, "--index-url https://py" + "pi.org/simple"),
]

GOOD: list[tuple[Rule, str]] = [
    (rules.size_problems, _function(lines=60)),
    (rules.size_problems, _class(methods=15, extra="    def __init__(self): ...\n")),
    (rules.size_problems, "def f(a, b, c, d, e, f, *, g, h): ..."),
    (rules.await_problems, "async def op(tx):\n    await tx.executions.lock(1)\n    await tx.commit()"),
    (rules.await_problems, "async def part(tx): ...\nasync def op(tx):\n    await part(tx, 1)"),
    (rules.await_problems, "from flowfabric.ops.part import part\nasync def op(tx):\n    await part(tx)"),
    (rules.await_problems, "from flowfabric.ops import part\nasync def op(tx):\n    await part.run(tx)"),
    (rules.sql_problems, "-- isn't lower: select * from t limit 1\nSELECT id, key, count(*)\nFROM t"),
    (rules.sql_problems, "SELECT a * 2 FROM t WHERE b = 'select * from' AND \"order\" = $1 AND c = :limit::text"),
    (rules.sql_problems, "WITH locked AS (SELECT id FROM t ORDER BY id LIMIT :limit) SELECT id FROM locked"),
    (rules.foreign_problems, "see docs/work/flow.md"),
]


def _ids(cases: list[tuple[Rule, str]]) -> list[str]:
    return [f"{rule.__name__}-{number}" for number, (rule, _) in enumerate(cases)]


@pytest.mark.parametrize(("rule", "text"), BAD, ids=_ids(BAD))
def test_a_rule_refuses_what_it_is_for(rule: Rule, text: str) -> None:
    assert rule(text) != []


@pytest.mark.parametrize(("rule", "text"), GOOD, ids=_ids(GOOD))
def test_a_rule_lets_pass_what_only_looks_alike(rule: Rule, text: str) -> None:
    assert rule(text) == []


@pytest.mark.parametrize("path", ["flowfabric/utils.py", "flowfabric/common/rows.py", "flowfabric/_helpers.py"])
def test_a_vague_name_is_refused(path: str) -> None:
    assert rules.name_problems(PurePath(path)) != []


def _problems(rule: Rule, paths: Iterable[Path]) -> list[str]:
    texts = ((path, _text(path)) for path in sorted(paths))
    return [f"{path.relative_to(ROOT)}:{problem}" for path, text in texts for problem in rule(text)]


def _text(path: Path) -> str:
    """The file's text; nothing for a binary file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def _project_files() -> list[Path]:
    """What git tracks or would track; without git, everything but the folders that it ignores."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return list(_walk())
    paths = {ROOT / name for name in listed.split("\0") if name}
    return [path for path in paths if path.is_file()]


def _walk() -> Iterator[Path]:
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in UNTRACKED_FOLDERS and not name.endswith("_cache")]
        yield from (Path(folder, name) for name in files)


def _package(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9_.-]+", requirement)
    assert found is not None, "pip would not have taken it"
    return re.sub(r"[-_.]+", "-", found[0]).lower()
