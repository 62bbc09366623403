"""The fault tests find faults that were planted on purpose."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.planted import PLANTED, ROOT, run_with_fault, run_without_fault
from tests.faults.planted_fault import PlantedFault


@pytest.mark.long(sample=8)
@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.name)
def test_planted_fault_is_caught(fault: PlantedFault, scoreboard: Callable[[str], None]) -> None:
    verdict = run_with_fault(fault)
    scoreboard(f"{verdict.took_s:.1f} s: {verdict.reason[:100]}")
    assert verdict.caught, verdict.output


@pytest.mark.long
def test_suites_pass_without_a_planted_fault(scoreboard: Callable[[str], None]) -> None:
    verdict = run_without_fault()
    scoreboard(f"{verdict.took_s:.1f} s: {verdict.output.splitlines()[-1]}")
    assert verdict.passed, verdict.output


@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.name)
def test_source_text_of_every_planted_fault_exists(fault: PlantedFault, tmp_path: Path) -> None:
    for file in {f"flowfabric/{edit.file}" for edit in fault.edits}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "src" / file, tmp_path / file)
    for edit in fault.edits:
        edit.apply(tmp_path)
