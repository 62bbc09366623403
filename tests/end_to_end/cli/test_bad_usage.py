"""Every verb, used badly in every way: one line that helps, the right code, never a traceback."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from tests.end_to_end.cli.shell import Said, Shell
from tests.end_to_end.cli.test_registry import every
from tests.stores import TestStore, opened

ID = str(UUID(int=7))
NOWHERE = "postgresql://nobody:geheim@127.0.0.1:1/none"
SECRET = "ab" * 32

# Every verb as it is used well, but for ids: what has one of these is answered with "not found".
GOOD: dict[str, list[str]] = {
    "submit": ["kind", "{}"], "list": [], "show": [ID], "history": [ID], "explain": [ID], "events": [],
    "signal": [ID, "name", "1"], "approve": ["TOKEN"], "reject": ["TOKEN"], "cancel": [ID, "--yes"],
    "revoke": [ID, "--yes"], "replay": [ID, "--yes"], "resume": [ID, "--yes"], "priority": [ID, "5"], "hold": [ID],
    "unhold": [ID], "worker": ["no_such_module:app"], "lanes": [], "lanes list": [], "lanes pause": ["default"],
    "lanes resume": ["default"], "lanes drain": ["default"], "flows": [], "waitpoints": [], "keys": [],
    "keys list": [], "keys rotate": ["next", "--yes"], "keys seed": ["first", "--secret-file", "SECRET"],
    "workers": [], "workers list": [], "workers remove": ["gone", "--yes"], "stats": [], "doctor": [], "migrate": [],
    "check": ["no_such_file.py"], "bench": ["-n", "1"], "completion": ["bash"],
}  # fmt: skip
WITHOUT_STORE = {"worker", "check", "completion"}
WITH_ID = [path for path, words in GOOD.items() if ID in words]
POSITIONAL = {
    " ".join(path) for path, verb in every()
    if any(not item.is_option and item.settings.get("nargs") != "?" for item in verb.arguments)
}  # fmt: skip


def words_of(path: str, folder: Path) -> list[str]:
    file = folder / "secret"
    file.write_text(SECRET)
    return [*path.split(), *(str(file) if word == "SECRET" else word for word in GOOD[path])]


def assert_one_line(said: Said, code: int, *parts: str) -> None:
    assert said.code == code, said
    assert len(said.error.splitlines()) == 1 and said.error.startswith("flowfabric"), said.error
    assert "Traceback" not in said.error and "geheim" not in said.error
    assert all(part in said.error for part in parts), said.error


def test_the_list_of_good_uses_is_whole() -> None:
    assert set(GOOD) == {" ".join(path) for path, _ in every()}


@pytest.mark.parametrize("path", GOOD)
async def test_an_unknown_option_is_refused(path: str, bare: Shell, tmp_path: Path) -> None:
    said = await bare.run(*words_of(path, tmp_path), "--nonsense\x1b[2J")
    assert_one_line(said, 2, r"--nonsense\x1b[2J", "--help")
    assert said.lines == []


@pytest.mark.parametrize("path", sorted(POSITIONAL))
async def test_a_missing_argument_is_named(path: str, bare: Shell) -> None:
    said = await bare.run(*path.split())
    assert_one_line(said, 2, "required", f"flowfabric {path} --help")


@pytest.mark.parametrize("path", GOOD)
async def test_every_verb_has_help(path: str, bare: Shell) -> None:
    said = await bare.run(*path.split(), "--help")
    assert (said.code, said.error) == (0, "")
    assert said.lines[0].startswith(f"usage: flowfabric {path}")


async def test_what_cannot_be_an_id_is_bad_usage(store: TestStore, shell: Shell, tmp_path: Path) -> None:
    async with opened(store):
        pass
    for path in WITH_ID:
        said = await shell.run(*("not-an-id" if word == ID else word for word in words_of(path, tmp_path)))
        assert_one_line(said, 2, "invalid_id")
        assert said.lines == []


async def test_an_id_that_is_not_there_is_not_found(store: TestStore, shell: Shell, tmp_path: Path) -> None:
    async with opened(store):
        pass
    for path in WITH_ID:
        assert_one_line(await shell.run(*words_of(path, tmp_path)), 3, "_not_found")


@pytest.mark.parametrize("path", [path for path in GOOD if path not in WITHOUT_STORE])
async def test_a_store_that_cannot_be_used_is_told(path: str, bare: Shell, tmp_path: Path) -> None:
    words = [word if word != "TOKEN" else TOKEN for word in words_of(path, tmp_path)]
    text, foreign = tmp_path / "notes.txt", tmp_path / "foreign.db"
    text.write_text("not a database, but long enough to have a header\n" * 9)
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE mine (id INTEGER)")
    before = foreign.read_bytes()
    # A server is asked by few verbs, since all of them come to the store by the same way, and it takes longer.
    servers = [NOWHERE] if path in ("list", "submit", "doctor", "migrate") else []
    for address in (*servers, str(tmp_path / "none" / "x.db"), str(text)):
        assert_one_line(await bare.run("--store", address, *words), 5)
    if path != "migrate":
        assert_one_line(await bare.run("--store", str(foreign), *words), 5, "holds no store")
        assert foreign.read_bytes() == before
        missing = tmp_path / "missing.db"
        assert_one_line(await bare.run("--store", str(missing), *words), 5, "there is no store at")
        assert not missing.exists()


@pytest.mark.parametrize("path", [path for path in GOOD if path not in WITHOUT_STORE])
async def test_a_url_that_cannot_be_read_is_bad_usage(path: str, bare: Shell, tmp_path: Path) -> None:
    words = [word if word != "TOKEN" else TOKEN for word in words_of(path, tmp_path)]
    odd = ("mysql://x", "postgresql://[", "", "\udc80") if path == "list" else ("mysql://x",)
    for address in odd:
        assert_one_line(await bare.run("--store", address, *words), 2)


async def test_what_a_verb_alone_refuses(store: TestStore, shell: Shell, tmp_path: Path) -> None:
    async with opened(store):
        pass
    for words, code, part in (
        (["submit", "kind", "{"], 2, "invalid_json"),
        (["submit", "kind", "NaN"], 2, "invalid_json"),
        (["submit", "kind", '"\\ud800"'], 2, "invalid_json"),
        (["submit", "kind", "[" * 100_000], 2, "invalid_json"),
        (["submit", "kind", "@no/such/file"], 2, "invalid_file"),
        (["submit", "kind", "@" + str(tmp_path)], 2, "invalid_file"),
        (["submit", "", "{}"], 2, "kind"),
        (["submit", "kind", "{}", "--timeout", "1s"], 2, "--wait"),
        (["submit", "kind", "{}", "--priority", "high"], 2, "--priority"),
        (["submit", "kind", "{}", "--delay", "soon"], 2, "delay"),
        (["submit", "kind", "{}", "--tag", "x"], 2, "key=value"),
        (["submit", "kind", "{}", "--app", "no_such_module:app"], 2, "import_failed"),
        (["submit", "kind", "{}", "--app", "../x"], 2, "invalid_address"),
        (["signal", ID, "name", "{"], 2, "invalid_json"),
        (["signal", ID, "name", "--reason", "x"], 2, "--reason"),
        (["list", "--state", "complete"], 2, "did you mean 'completed'?"),
        (["list", "--since", "yesterday"], 2, "invalid_time"),
        (["list", "--cursor", "x"], 2, "cursor_invalid"),
        (["list", "--limit", "0"], 2, "limit"),
        (["list", "--all", "--limit", "1"], 2, "leave out --limit"),
        (["list", "--tag", "x"], 2, "key=value"),
        (["events", "--cursor", "x"], 2, "cursor_invalid"),
        (["events", "--family", "leases"], 2, "did you mean 'lease'?"),
        (["cancel", ID, "--policy", "flow_only", "--yes"], 2, "--flow"),
        (["cancel", ID, "--flow", "--grace", "1s", "--yes"], 2, "--flow"),
        (["cancel", ID, "--flow", "--yes"], 3, "flow_not_found"),
        (["unhold"], 2, "--all"),
        (["unhold", ID, "--all"], 2, "--all"),
        (["unhold", ID, "--kind", "x"], 2, "--all"),
        (["flows", ID], 3, "flow_not_found"),
        (["waitpoints", ID], 3, "execution_not_found"),
        (["workers", "remove", "gone", "--yes"], 3, "worker_not_found"),
        (["keys", "rotate", "not a kid", "--yes"], 2, "invalid_kid"),
        (["keys", "rotate", "--secret-file", "no/such/file", "--yes"], 2, "invalid_file"),
        (["lanes", "pause", " x"], 2, "lane"),
        (["lanes", "pauze"], 2, "did you mean 'pause'?"),
        (["approve", "ffw1.x.y.z"], 2, "invalid_token"),
        (["approve", "https://shop.example/ff/"], 2, "invalid_token"),
        (["approve", "https://["], 2, "invalid_token"),
        (["bench", "-n", "0"], 2, "--executions"),
        (["bench", "--batch", "5000"], 2, "--batch"),
        (["hold", ID, "--principal", ""], 2, "principal"),
        (["--namespace", "\n", "list"], 2, "namespace"),
        (["--schema", "x;y", "list"], 2, "schema"),
        (["nonsense"], 2, "invalid choice"),
        ([], 2, "COMMAND"),
        (["worker", "no_such_module:app"], 2, "import_failed"),
        (["check", "no_such_file.py"], 2, "target_not_found"),
        (["completion", "tcsh"], 2, "bash, zsh, fish"),
    ):
        assert_one_line(await shell.run(*words), code, part)


async def test_what_must_be_confirmed_is_refused_without_a_terminal(store: TestStore, shell: Shell) -> None:
    async with opened(store):
        pass
    asking = [" ".join(path) for path, verb in every() if verb.asks]
    assert {"cancel", "revoke", "replay", "resume", "keys rotate", "workers remove"} <= set(asking)
    for path in asking:
        words = [*path.split(), *(word for word in GOOD[path] if word != "--yes")]
        said = await shell.run(*(["unhold", "--all"] if path == "unhold" else words))
        assert_one_line(said, 4, "not_confirmed", "--yes")


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_what_writes_wants_a_durable_store_and_what_looks_does_not(
    store: TestStore, bare: Shell, tmp_path: Path
) -> None:
    """The test server does not wait for its disk."""
    async with opened(store):
        pass
    place = ["--store", store.url, "--schema", str(getattr(store, "schema", ""))]
    writes = {" ".join(path) for path, verb in every() if verb.operates} | {"submit", "bench", "migrate"}
    for path in set(GOOD) - WITHOUT_STORE:
        words = [word if word != "TOKEN" else TOKEN for word in words_of(path, tmp_path)]
        said = await bare.run(*place, *words)
        if path in writes:
            assert_one_line(said, 2, "unsafe_durability", "--not-durable")
        else:
            assert "unsafe_durability" not in said.error and said.code in (0, 1, 3), path


async def test_a_fault_of_the_program_itself_is_one_line_too(bare: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowfabric.cli.completion.script_of", lambda shell: 1 / 0)
    assert_one_line(await bare.run("completion", "bash"), 70, "ZeroDivisionError", "FLOWFABRIC_TRACEBACK=1")


@pytest.mark.parametrize(("left", "code", "told"), [(None, 0, ""), (3, 3, ""), ("no more", 1, "flowfabric: no more\n")])
async def test_whoever_leaves_the_program_is_understood(
    bare: Shell, monkeypatch: pytest.MonkeyPatch, left: object, code: int, told: str
) -> None:
    monkeypatch.setattr("flowfabric.cli.completion.script_of", lambda shell: sys.exit(left))  # type: ignore[arg-type]
    said = await bare.run("completion", "bash")
    assert (said.code, said.lines, said.error) == (code, [], told)


async def test_the_store_may_come_from_the_environment(
    store: TestStore, bare: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path / ".")
    monkeypatch.setenv("FLOWFABRIC_STORE", str(tmp_path / "elsewhere" / "a.db"))
    assert_one_line(await bare.run("list"), 5, "elsewhere")
    monkeypatch.setenv("FLOWFABRIC_STORE", "")
    assert_one_line(await bare.run("list"), 5, "flowfabric.db")
    async with opened(store):
        pass
    monkeypatch.setenv("FLOWFABRIC_STORE", store.url)
    schema = getattr(store, "schema", "flowfabric")
    said = await bare.run("--schema", schema, "list", "--json")
    assert (said.code, said.lines, said.error) == (0, [], "")


# A token that is well formed, and was signed by nobody.
TOKEN = f"ffw1.kid.{'A' * 60}.{'A' * 43}"
