"""The harness finds faults that were planted on purpose."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.planted import PLANTED, ROOT, control, hunt
from tests.faults.plants import Planted


@pytest.mark.long
@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.name)
def test_a_planted_fault_is_caught(fault: Planted, scoreboard: Callable[[str], None]) -> None:
    verdict = hunt(fault)
    scoreboard(f"{verdict.took_s:.1f} s: {verdict.reason[:100]}")
    assert verdict.caught, verdict.output


@pytest.mark.long
def test_where_nothing_is_planted_nothing_is_found(scoreboard: Callable[[str], None]) -> None:
    verdict = control()
    scoreboard(f"{verdict.took_s:.1f} s: {verdict.output.splitlines()[-1]}")
    assert verdict.passed, verdict.output


@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.name)
def test_the_place_of_a_planted_fault_is_still_there(fault: Planted, tmp_path: Path) -> None:
    for file in {f"flowfabric/{edit.file}" for edit in fault.edits}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "src" / file, tmp_path / file)
    for edit in fault.edits:
        edit.apply(tmp_path)
