"""The sync face is written from the async one, and says what is there."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import flowfabric
from flowfabric import sync

ROOT = Path(__file__).parents[3]

# Words that only the async face has: `.sync` leads from them, or they are the same in both.
ASYNC_ONLY = {"Delivery", "Durable", "Duration", "connect", "logger"}


def test_the_generated_files_are_fresh() -> None:
    found = subprocess.run(
        [sys.executable, ROOT / "tools" / "generate_sync.py", "--check"], capture_output=True, text=True, check=False
    )
    assert found.stdout == ""
    assert found.returncode == 0, found.stderr


def test_every_durable_call_has_a_sync_form() -> None:
    words = {name for name in flowfabric.__all__ if not inspect.isclass(getattr(flowfabric, name))}
    assert words - ASYNC_ONLY - set(sync.__all__) == set()


def test_the_names_of_the_face_are_there() -> None:
    module = importlib.import_module("flowfabric.sync")
    assert [name for name in sync.__all__ if not hasattr(module, name)] == []
