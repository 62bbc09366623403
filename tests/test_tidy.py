"""Test the rules of the house style that a program can check.

Limits are in tests/tidy_limits.py and tests/tidy_ratchet.toml. `test_rule_rejects_its_example` and
tests/unit/test_tidy_rules.py show each rule an example that it must reject.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path, PurePath
from typing import Protocol

import pytest

from tests import tidy_limits as limits
from tests import tidy_rules as rules
from tests import tidy_tree
from tools import prose, tidy

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
OPERATIONS = SOURCE / "flowfabric" / "ops"
LOCK = ROOT / "requirements.lock"
LOCKS = (LOCK, ROOT / "requirements-base.lock", ROOT / "tools" / "docs.lock", ROOT / "benchmarks" / "peers.lock")
SKIP = "# fmt:" + " skip"
UNTRACKED_FOLDERS = frozenset(
    {".git", ".cache", ".venv", ".venv-demo", ".venv-docs", ".venv-peers", "__pycache__", "build", "dist"}
)


TreeRule = Callable[[Mapping[str, tidy_tree.Module]], list[str]]


class Rule(Protocol):
    """A rule: a function of tests/tidy_rules.py that takes a text and returns its problems."""

    __name__: str

    def __call__(self, text: str, /) -> list[str]: ...


def test_files_functions_and_signatures_are_not_too_long() -> None:
    assert _problems(rules.size_problems, SOURCE.rglob("*.py")) == []


@pytest.mark.parametrize("rule", [tidy_tree.size_problems, tidy_tree.fragment_problems, tidy_tree.cycle_problems])
def test_the_package_is_neither_fragmented_nor_tangled(rule: TreeRule) -> None:
    assert rule(tidy_tree.read_package(SOURCE / "flowfabric")) == []


def test_the_package_has_few_lines_of_code() -> None:
    assert sum(tidy.measure(ROOT).code.values()) <= limits.CODE_LINES


def test_package_sizes_match_the_ratchet() -> None:
    assert tidy.problems(tidy.measure(ROOT), tidy.read_ratchet(ROOT / tidy.RATCHET)) == []


def test_the_prose_of_every_package_is_plain() -> None:
    rates = tidy.measure(ROOT).markers
    assert {name: round(rate, 1) for name, rate in rates.items() if rate > limits.MARKERS} == {}


@pytest.mark.parametrize("kind", ["docstrings", "comments", "strings", "markdown"])
def test_every_kind_of_prose_is_plain(kind: str) -> None:
    texts = [text for texts in tidy.read_prose(ROOT).values() for text in texts if text.kind == kind]
    words, _, rate = prose.rate(texts)
    assert words > 1_000
    assert rate <= limits.MARKERS


def test_the_formatter_is_off_for_literal_tables_only() -> None:
    # The specification limits the lines of these programs, so they are laid out by hand.
    programs = ROOT / "tests" / "end_to_end" / "programs"
    files = [path for path in _project_files() if path.suffix == ".py" and path.parent != programs]
    assert _problems(rules.formatter_problems, files) == []


def test_module_names_are_specific() -> None:
    paths = [path.relative_to(SOURCE) for path in SOURCE.rglob("*.py")]
    assert [f"{path}:{problem}" for path in paths for problem in rules.name_problems(path)] == []


def test_no_todo_comments() -> None:
    assert _problems(rules.marker_problems, [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.sql")]) == []


def test_operations_await_nothing_but_their_transaction() -> None:
    assert _problems(rules.await_problems, OPERATIONS.rglob("*.py")) == []


def test_sql_is_upper_case_names_its_columns_and_orders_what_it_limits() -> None:
    assert _problems(rules.sql_problems, SOURCE.rglob("*.sql")) == []


def test_no_trace_of_a_machine_or_a_package_index() -> None:
    assert _problems(rules.foreign_problems, _project_files()) == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_names_no_address_and_pins_every_package_by_hash(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text and 0 < text.count("==") <= text.count("--hash=")


def test_the_lock_covers_every_declared_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    locked = set(re.findall(r"^([a-z0-9-]+)==", LOCK.read_text(), flags=re.MULTILINE))
    assert {_package(requirement) for requirement in declared} - {"flowfabric"} - locked == set()


def _function(lines: int) -> str:
    return "def f():\n" + "    pass\n" * (lines - 1)


BAD: list[tuple[Rule, str]] = [
    (rules.size_problems, "pass\n" * 501),
    (rules.size_problems, _function(lines=61)),
    (rules.size_problems, "async " + _function(lines=61)),
    (rules.size_problems, "def f(a, b, c, d, e, f, g): ..."),
    (rules.size_problems, "class C:\n    def f(self, a, b, c, /, d, e, f, g): ..."),
    (rules.formatter_problems, f"x = f(1, 2, 3)  {SKIP}"),
    (rules.formatter_problems, f"def f(\n    a, b, c\n) -> None:  {SKIP}\n    pass"),
    (rules.formatter_problems, f"def f():\n    return [\n        1, 2, 3, 4\n    ]  {SKIP}"),
    (rules.formatter_problems, f"def f():\n    x = Row(\n        1, 2, 3, 4\n    )  {SKIP}"),
    (rules.formatter_problems, f"x = [\n    1, 2\n]  {SKIP}"),
    (rules.formatter_problems, f"{SKIP.replace('skip', 'off')}\nx = f(1, 2, 3)"),
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
    (rules.size_problems, "pass\n" * 500),
    (rules.size_problems, "class C:\n" + "".join(f"    def m{number}(self): ...\n" for number in range(40))),
    (rules.size_problems, "def f(a, b, c, d, e, f, *, g, h): ..."),
    (rules.formatter_problems, f"x = [\n    1, 2, 3, 4\n]  {SKIP}\ny = 'fmt: skip'"),
    (rules.formatter_problems, f"x: dict = {{\n    'a': 1, 'b': 2, 'c': 3,\n}}  {SKIP}"),
    (rules.formatter_problems, f"X = Row(\n    name='a', parts=(part('b'), part('c')),\n)  {SKIP}"),
    (rules.formatter_problems, f"{SKIP.replace('skip', 'off')}\nx = frozenset({{'a', 'b', 'c'}})"),
    (rules.await_problems, "async def op(tx):\n    await tx.executions.lock(1)\n    await tx.commit()"),
    (rules.await_problems, "async def part(tx): ...\nasync def op(tx):\n    await part(tx, 1)"),
    (rules.await_problems, "from flowfabric.ops.part import part\nasync def op(tx):\n    await part(tx)"),
    (rules.await_problems, "from flowfabric.ops import part\nasync def op(tx):\n    await part.run(tx)"),
    (rules.await_problems, "class A:\n  async def part(self, tx): ...\n  async def op(self, tx): await self.part(tx)"),
    (rules.sql_problems, "-- isn't lower: select * from t limit 1\nSELECT id, key, count(*)\nFROM t"),
    (rules.sql_problems, "SELECT a * 2 FROM t WHERE b = 'select * from' AND \"order\" = $1 AND c = :limit::text"),
    (rules.sql_problems, "WITH locked AS (SELECT id FROM t ORDER BY id LIMIT :limit) SELECT id FROM locked"),
    (rules.foreign_problems, "see docs/work/flow.md"),
]


def _ids(cases: list[tuple[Rule, str]]) -> list[str]:
    return [f"{rule.__name__}-{number}" for number, (rule, _) in enumerate(cases)]


@pytest.mark.parametrize(("rule", "text"), BAD, ids=_ids(BAD))
def test_rule_rejects_its_example(rule: Rule, text: str) -> None:
    assert rule(text) != []


@pytest.mark.parametrize(("rule", "text"), GOOD, ids=_ids(GOOD))
def test_rule_accepts_a_similar_good_example(rule: Rule, text: str) -> None:
    assert rule(text) == []


@pytest.mark.parametrize("path", ["flowfabric/utils.py", "flowfabric/common/rows.py", "flowfabric/_helpers.py"])
def test_a_vague_name_is_refused(path: str) -> None:
    assert rules.name_problems(PurePath(path)) != []


def _problems(rule: Rule, paths: Iterable[Path]) -> list[str]:
    texts = ((path, _text(path)) for path in sorted(paths))
    return [f"{path.relative_to(ROOT)}:{problem}" for path, text in texts for problem in rule(text)]


def _text(path: Path) -> str:
    """Return the text of a file, or an empty string for a binary file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def _project_files() -> list[Path]:
    """Return the files that git tracks or would track. Without git, return all files outside ignored folders."""
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
    match = re.match(r"[A-Za-z0-9_.-]+", requirement)
    assert match is not None, "pip would reject a requirement without a name"
    return re.sub(r"[-_.]+", "-", match[0]).lower()
