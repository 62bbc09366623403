"""The tests of the kit run at full size in `dev.py faults`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.marks import mark_folder


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, so that `dev.py faults` runs it at full size."""
    mark_folder(items, Path(__file__).parent, pytest.mark.full)
