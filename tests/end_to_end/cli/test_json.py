"""With `--json` every command prints one JSON document per line and nothing else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowfabric.engine import Engine
from tests.end_to_end.cli.shell import CommandOutput, Shell
from tests.end_to_end.cli.test_audit import (
    OPERATOR_CALLS,
    SECRET_FILE,
    Prepare,
    fixed_arguments,
    prepare_completed,
    prepare_flow,
    prepare_suspended,
    prepare_waiting,
    prepare_worker,
)
from tests.end_to_end.cli.test_command_table import all_commands
from tests.end_to_end.cli.test_processes import SQLITE
from tests.end_to_end.worker.scripted_runs import until
from tests.scenarios import leased
from tests.stores import TestStore, opened

SOURCE_WITH_FINDING = (
    "import time\nfrom flowfabric import App\napp = App()\n@app.task\nasync def nap() -> None:\n    time.sleep(1)\n"
)
SOURCE_FILE = "nap.py"


async def prepare_flow_id(engine: Engine) -> list[str]:
    return (await prepare_flow(engine))[:1]


async def prepare_paused_lane(engine: Engine) -> list[str]:
    await engine.lanes.pause("post")
    return []


async def prepare_signing_key(engine: Engine) -> list[str]:
    await prepare_suspended(engine)
    return []


async def prepare_registered_worker(engine: Engine) -> list[str]:
    await prepare_worker(engine)
    return []


async def prepare_expired_lease(engine: Engine) -> list[str]:
    await leased(engine, lease_ttl="1s")

    async def is_expired() -> bool:
        return (await engine.leases.expired()).items != ()

    await until(is_expired)
    return []


OTHER_CALLS: list[tuple[str, Prepare]] = [
    ("submit", fixed_arguments("mail", "{}")),
    ("submit", fixed_arguments("mail", "--wait", "--timeout", "1ms")),
    ("list", prepare_paused_lane),
    ("show", prepare_completed),
    ("show", prepare_waiting),
    ("history", prepare_completed),
    ("explain", prepare_waiting),
    ("events", prepare_paused_lane),
    ("lanes", prepare_paused_lane),
    ("lanes list", prepare_paused_lane),
    ("flows", prepare_paused_lane),
    ("flows", prepare_flow_id),
    ("waitpoints", prepare_signing_key),
    ("waitpoints", prepare_suspended),
    ("keys", prepare_signing_key),
    ("keys list", prepare_signing_key),
    ("leases", prepare_expired_lease),
    ("workers", prepare_registered_worker),
    ("workers list", prepare_registered_worker),
    ("stats", prepare_paused_lane),
    ("doctor", prepare_paused_lane),
    ("migrate", prepare_paused_lane),
    ("migrate", fixed_arguments("--check")),
    ("check", fixed_arguments(SOURCE_FILE)),
    ("bench", fixed_arguments("-n", "3")),
    ("completion", fixed_arguments("bash")),
]
# A worker runs until it receives a signal, so test_processes.py tests it.
# test_backup.py tests backups, and test_demo.py the demo.
EXCLUDED_COMMANDS = {"worker", "backup", "restore", "demo"}


def test_every_command_is_called() -> None:
    assert {path for path, _ in OTHER_CALLS + OPERATOR_CALLS} | EXCLUDED_COMMANDS == {
        " ".join(path) for path, _ in all_commands()
    }


@SQLITE
async def test_every_command_prints_json_documents(
    store: TestStore, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    async for path, words in command_calls(store):
        assert_documents(path, await shell.run(*words, "--json"))


def write_files(folder: Path) -> None:
    """Write the files that some calls read."""
    (folder / SECRET_FILE).write_text("ab" * 32)
    (folder / SOURCE_FILE).write_text(SOURCE_WITH_FINDING)


async def command_calls(store: TestStore) -> AsyncIterator[tuple[str, list[str]]]:
    """Yield every command with valid arguments for an execution that was prepared just before."""
    confirmed_commands = {" ".join(path) for path, spec in all_commands() if spec.needs_confirmation}
    # Yield `keys seed` first, because a command that creates a token would otherwise create the first key.
    for path, prepare in sorted(OPERATOR_CALLS + OTHER_CALLS, key=lambda call: call[0] != "keys seed"):
        async with opened(store) as engine:
            words = await prepare(engine)
        yield path, [*path.split(), *words, *(["--yes"] if path in confirmed_commands else [])]


def assert_documents(path: str, output: CommandOutput) -> None:
    assert output.lines != [] and output.code in (0, 1, 6), (path, output)
    assert all(isinstance(json.loads(line), dict) for line in output.lines), (path, output.lines)
    assert "flowfabric:" not in output.error, (path, output)
