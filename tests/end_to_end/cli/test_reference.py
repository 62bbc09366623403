"""The command-line reference matches the command table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.cli.shell import ROOT
from tests.end_to_end.cli.test_command_table import all_commands
from tools import generate_cli_reference


def test_cli_reference_is_up_to_date() -> None:
    message = "run python tools/generate_cli_reference.py"
    assert generate_cli_reference.main(["--check"]) == 0, message


def test_cli_reference_has_every_command_and_option() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    for path, spec in all_commands():
        _, _, rest = page.partition(f"# `flowfabric {' '.join(path)}`\n")
        part = rest.partition("\n###")[0].partition("\n## ")[0]
        assert spec.description.split()[:3] == [] or spec.description.split()[0] in part
        for argument in spec.all_arguments:
            assert (argument.names[0] if argument.is_option else argument.label.replace("|", "\\|")) in part, (
                path,
                argument.names,
            )


def test_outdated_cli_reference_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "reference" / "cli.md"
    monkeypatch.setattr(generate_cli_reference, "PAGE", page)
    assert generate_cli_reference.main(["--check"]) == 1
    assert generate_cli_reference.main([]) == 0
    assert generate_cli_reference.main(["--check"]) == 0
    page.write_text(page.read_text(encoding="utf-8") + "x", encoding="utf-8")
    assert generate_cli_reference.main(["--check"]) == 1
