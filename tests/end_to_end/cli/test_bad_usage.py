"""Bad usage of any command prints one helpful line, returns the documented exit code and shows no traceback."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from tests.end_to_end.cli.shell import CommandOutput, Shell
from tests.end_to_end.cli.test_command_table import all_commands
from tests.stores import TestStore, opened

ID = str(UUID(int=7))
UNREACHABLE_STORE = "postgresql://nobody:geheim@127.0.0.1:1/none"
SECRET = "ab" * 32

# Valid arguments for every command. The ids do not exist, so commands with an id report "not found".
VALID_ARGUMENTS: dict[str, list[str]] = {
    "submit": ["kind", "{}"], "list": [], "show": [ID], "history": [ID], "explain": [ID], "events": [],
    "signal": [ID, "name", "1"], "approve": ["TOKEN"], "reject": ["TOKEN"], "cancel": [ID, "--yes"],
    "revoke": [ID, "--yes"], "replay": [ID, "--yes"], "resume": [ID, "--yes"], "priority": [ID, "5"], "hold": [ID],
    "unhold": [ID], "worker": ["no_such_module:app"], "lanes": [], "lanes list": [], "lanes pause": ["default"],
    "lanes resume": ["default"], "lanes drain": ["default"], "flows": [], "waitpoints": [], "keys": [],
    "keys list": [], "keys rotate": ["next", "--yes"], "keys seed": ["first", "--secret-file", "SECRET"],
    "workers": [], "workers list": [], "workers remove": ["gone", "--yes"], "stats": [], "doctor": [], "migrate": [],
    "backup": ["BACKUP"], "restore": ["no_such_backup.db", "--yes"],
    "leases": [], "demo": [], "check": ["no_such_file.py"], "bench": ["-n", "1"], "completion": ["bash"],
}  # fmt: skip
WITHOUT_STORE = {"worker", "demo", "check", "completion"}
WITH_ID = [path for path, words in VALID_ARGUMENTS.items() if ID in words]
POSITIONAL = {
    " ".join(path)
    for path, spec in all_commands()
    if any(not argument.is_option and argument.settings.get("nargs") != "?" for argument in spec.arguments)
}


def arguments_for(path: str, folder: Path) -> list[str]:
    file = folder / "secret"
    file.write_text(SECRET)
    files = {"SECRET": str(file), "BACKUP": str(folder / "backup.db")}
    return [*path.split(), *(files.get(word, word) for word in VALID_ARGUMENTS[path])]


def assert_one_line(output: CommandOutput, code: int, *parts: str) -> None:
    assert output.code == code, output
    assert len(output.error.splitlines()) == 1 and output.error.startswith("flowfabric"), output.error
    assert "Traceback" not in output.error and "geheim" not in output.error
    assert all(part in output.error for part in parts), output.error


def test_every_command_has_valid_arguments() -> None:
    assert set(VALID_ARGUMENTS) == {" ".join(path) for path, _ in all_commands()}


@pytest.mark.parametrize("path", VALID_ARGUMENTS)
async def test_unknown_option_is_rejected(path: str, bare_shell: Shell, tmp_path: Path) -> None:
    output = await bare_shell.run(*arguments_for(path, tmp_path), "--nonsense\x1b[2J")
    assert_one_line(output, 2, r"--nonsense\x1b[2J", "--help")
    assert output.lines == []


@pytest.mark.parametrize("path", sorted(POSITIONAL))
async def test_missing_argument_is_named(path: str, bare_shell: Shell) -> None:
    output = await bare_shell.run(*path.split())
    assert_one_line(output, 2, "required", f"flowfabric {path} --help")


@pytest.mark.parametrize("path", VALID_ARGUMENTS)
async def test_every_command_has_help(path: str, bare_shell: Shell) -> None:
    output = await bare_shell.run(*path.split(), "--help")
    assert (output.code, output.error) == (0, "")
    assert output.lines[0].startswith(f"usage: flowfabric {path}")


async def test_malformed_id_is_bad_usage(store: TestStore, shell: Shell, tmp_path: Path) -> None:
    async with opened(store):
        pass
    for path in WITH_ID:
        output = await shell.run(*("not-an-id" if word == ID else word for word in arguments_for(path, tmp_path)))
        assert_one_line(output, 2, "invalid_id")
        assert output.lines == []


async def test_unknown_id_is_not_found(store: TestStore, shell: Shell, tmp_path: Path) -> None:
    async with opened(store):
        pass
    for path in WITH_ID:
        assert_one_line(await shell.run(*arguments_for(path, tmp_path)), 3, "_not_found")


# `restore` creates its store. test_backup.py tests it.
@pytest.mark.parametrize("path", [path for path in VALID_ARGUMENTS if path not in {*WITHOUT_STORE, "restore"}])
async def test_unusable_store_is_reported(path: str, bare_shell: Shell, tmp_path: Path) -> None:
    words = [word if word != "TOKEN" else TOKEN for word in arguments_for(path, tmp_path)]
    text, foreign = tmp_path / "notes.txt", tmp_path / "foreign.db"
    text.write_text("not a database, but long enough to have a header\n" * 9)
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE mine (id INTEGER)")
    before = foreign.read_bytes()
    # All commands open the store in the same way. A server is slower than a file, so only a few commands are tested
    # with a server.
    servers = [UNREACHABLE_STORE] if path in ("list", "submit", "doctor", "migrate") else []
    for address in (*servers, str(tmp_path / "none" / "x.db"), str(text)):
        assert_one_line(await bare_shell.run("--store", address, *words), 5)
    if path != "migrate":
        assert_one_line(await bare_shell.run("--store", str(foreign), *words), 5, "contains no store")
        assert foreign.read_bytes() == before
        missing = tmp_path / "missing.db"
        assert_one_line(await bare_shell.run("--store", str(missing), *words), 5, "there is no store at")
        assert not missing.exists()


@pytest.mark.parametrize("path", [path for path in VALID_ARGUMENTS if path not in WITHOUT_STORE])
async def test_malformed_store_url_is_bad_usage(path: str, bare_shell: Shell, tmp_path: Path) -> None:
    words = [word if word != "TOKEN" else TOKEN for word in arguments_for(path, tmp_path)]
    malformed_urls = ("mysql://x", "postgresql://[", "", "\udc80") if path == "list" else ("mysql://x",)
    for address in malformed_urls:
        assert_one_line(await bare_shell.run("--store", address, *words), 2)


async def test_invalid_arguments_of_single_commands_are_rejected(
    store: TestStore, shell: Shell, tmp_path: Path
) -> None:
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
        (["list", "--key", ""], 2, "key"),
        (["show"], 2, "give an ID or --key, one of the two"),
        (["show", ID, "--key", "refund-17"], 2, "give an ID or --key, one of the two"),
        (["show", "--key", "refund-17"], 3, "refund-17"),
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


async def test_commands_to_confirm_are_rejected_without_a_terminal(store: TestStore, shell: Shell) -> None:
    async with opened(store):
        pass
    confirmed_commands = [" ".join(path) for path, spec in all_commands() if spec.needs_confirmation]
    assert {"cancel", "revoke", "replay", "resume", "keys rotate", "workers remove"} <= set(confirmed_commands)
    if store.name == "postgres":
        confirmed_commands.remove("restore")  # It is refused before, because pg_restore does it.
    for path in confirmed_commands:
        words = [*path.split(), *(word for word in VALID_ARGUMENTS[path] if word != "--yes")]
        # For one execution, these commands ask for no confirmation.
        output = await shell.run(*([path, "--all"] if path in ("hold", "unhold") else words))
        assert_one_line(output, 4, "not_confirmed", "--yes")


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_writing_commands_require_a_durable_store_and_reading_ones_do_not(
    store: TestStore, bare_shell: Shell, tmp_path: Path
) -> None:
    """The test server does not flush to disk, so its store is not durable."""
    async with opened(store):
        pass
    store_arguments = ["--store", store.url, "--schema", str(getattr(store, "schema", ""))]
    writing_commands = {" ".join(path) for path, spec in all_commands() if spec.is_audited} | {
        "submit",
        "bench",
        "migrate",
    }
    for path in set(VALID_ARGUMENTS) - WITHOUT_STORE - {"backup", "restore"}:
        words = [word if word != "TOKEN" else TOKEN for word in arguments_for(path, tmp_path)]
        output = await bare_shell.run(*store_arguments, *words)
        if path in writing_commands:
            assert_one_line(output, 2, "unsafe_durability", "--not-durable")
        else:
            assert "unsafe_durability" not in output.error and output.code in (0, 1, 3), path


async def test_internal_error_is_reported_in_one_line(bare_shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowfabric.cli.commands.completion.read_script", lambda shell: 1 / 0)
    assert_one_line(await bare_shell.run("completion", "bash"), 70, "ZeroDivisionError", "FLOWFABRIC_TRACEBACK=1")


@pytest.mark.parametrize(
    ("exit_argument", "code", "error"), [(None, 0, ""), (3, 3, ""), ("no more", 1, "flowfabric: no more\n")]
)
async def test_sys_exit_in_a_command_sets_the_exit_code(
    bare_shell: Shell, monkeypatch: pytest.MonkeyPatch, exit_argument: object, code: int, error: str
) -> None:
    monkeypatch.setattr("flowfabric.cli.commands.completion.read_script", lambda shell: sys.exit(exit_argument))  # type: ignore[arg-type]
    output = await bare_shell.run("completion", "bash")
    assert (output.code, output.lines, output.error) == (code, [], error)


async def test_store_url_is_read_from_the_environment(
    store: TestStore, bare_shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path / ".")
    monkeypatch.setenv("FLOWFABRIC_STORE", str(tmp_path / "elsewhere" / "a.db"))
    assert_one_line(await bare_shell.run("list"), 5, "elsewhere")
    monkeypatch.setenv("FLOWFABRIC_STORE", "")
    assert_one_line(await bare_shell.run("list"), 5, "flowfabric.db")
    async with opened(store):
        pass
    monkeypatch.setenv("FLOWFABRIC_STORE", store.url)
    schema = getattr(store, "schema", "flowfabric")
    output = await bare_shell.run("--schema", schema, "list", "--json")
    assert (output.code, output.lines, output.error) == (0, [], "")


# A well-formed token with an invalid signature.
TOKEN = f"ffw1.kid.{'A' * 60}.{'A' * 43}"
