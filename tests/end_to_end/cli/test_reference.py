"""The reference of the command line is what the registry says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.cli.shell import ROOT
from tests.end_to_end.cli.test_registry import every
from tools import generate_cli_reference


def test_the_reference_is_fresh() -> None:
    message = "python tools/generate_cli_reference.py writes it again"
    assert generate_cli_reference.main(["--check"]) == 0, message


def test_the_reference_has_every_verb_and_option() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    for path, verb in every():
        _, _, rest = page.partition(f"# `flowfabric {' '.join(path)}`\n")
        part = rest.partition("\n###")[0].partition("\n## ")[0]
        assert verb.about.split()[:3] == [] or verb.about.split()[0] in part
        for item in verb.all_arguments:
            assert (item.names[0] if item.is_option else item.label.replace("|", "\\|")) in part, (path, item.names)


def test_a_stale_page_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "reference" / "cli.md"
    monkeypatch.setattr(generate_cli_reference, "PAGE", page)
    assert generate_cli_reference.main(["--check"]) == 1
    assert generate_cli_reference.main([]) == 0
    assert generate_cli_reference.main(["--check"]) == 0
    page.write_text(page.read_text(encoding="utf-8") + "x", encoding="utf-8")
    assert generate_cli_reference.main(["--check"]) == 1
