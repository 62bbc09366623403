"""Markers for all tests of a folder."""

from __future__ import annotations

from pathlib import Path

import pytest


def mark_folder(items: list[pytest.Item], folder: Path, marker: pytest.MarkDecorator) -> None:
    """Add the marker to each test in the folder or below it."""
    for item in items:
        if item.path.is_relative_to(folder):
            item.add_marker(marker)
