"""`flowfabric backup`, `restore` and `doctor --deep`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.end_to_end.cli.shell import Shell
from tests.scenarios import submitted
from tests.stores import SqliteTestStore, TestStore, opened


async def test_backup_is_restored_into_a_new_store(store: TestStore, shell: Shell, tmp_path: Path) -> None:
    backup = str(tmp_path / "backup.db")
    async with opened(store) as engine:
        id_ = await submitted(engine)
        output = await shell.run("backup", backup)
        if store.name == "postgres":
            assert (output.code, "pg_dump" in output.error) == (2, True)
            assert "pg_restore" in (await shell.run("restore", backup)).error
            return
    assert output.lines == [f"Wrote a checked backup to {backup}."]
    assert (await shell.run("backup", backup)).code == 4
    target = str(tmp_path / "restored.db")
    output = await shell.run("restore", backup, "--store", target, "--json")
    assert json.loads(output.lines[0]) == {"file": backup, "kept": None}
    output = await shell.run("list", "--store", target)
    assert str(id_) in "\n".join(output.lines)


async def test_restore_over_a_store_asks_and_keeps_the_former_one(
    store: TestStore, shell: Shell, tmp_path: Path
) -> None:
    if store.name == "postgres":
        assert (await shell.run("restore", str(tmp_path / "backup.db"), "--yes")).code == 2
        return
    backup = str(tmp_path / "backup.db")
    async with opened(store):
        await shell.run("backup", backup)
    output = await shell.run("restore", backup)
    assert (output.code, "not_confirmed" in output.error) == (4, True)
    output = await shell.run("restore", backup, "--yes")
    assert output.code == 0 and "The former store is" in " ".join(output.lines)


async def test_doctor_reads_all_data_only_with_deep(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        await submitted(engine)
    assert not any("stored data" in line for line in (await shell.run("doctor")).lines)
    assert any("no damage was found" in line for line in (await shell.run("doctor", "--deep")).lines)
    await store.query("UPDATE ff.execution SET version = 7")
    output = await shell.run("doctor", "--deep", "--json")
    [finding] = [json.loads(line) for line in output.lines if json.loads(line)["subject"] == "data"]
    assert (output.code, finding["verdict"]) == (1, "wrong")


async def test_doctor_warns_about_files_that_others_can_read(
    store: TestStore, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(store):
        pass
    key_file = tmp_path / "keys"
    key_file.write_text("k1=" + "ab" * 32)
    key_file.chmod(0o644)
    monkeypatch.setenv("FLOWFABRIC_KEY_FILE", str(key_file))
    if isinstance(store, SqliteTestStore):
        store.path.chmod(0o644)
    output = await shell.run("doctor", "--json")
    texts = [json.loads(line)["text"] for line in output.lines if json.loads(line)["subject"] == "permissions"]
    assert len(texts) == (2 if store.name == "sqlite" else 1)
