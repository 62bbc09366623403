"""Tests that the generated sync layer is current and complete."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import flowfabric
from flowfabric import sync

ROOT = Path(__file__).parents[3]

# Public names that `flowfabric.sync` does not need.
ASYNC_ONLY = {"Delivery", "Durable", "Duration", "connect", "logger"}


def test_generated_files_are_current() -> None:
    check = subprocess.run(
        [sys.executable, ROOT / "tools" / "generate_sync.py", "--check"], capture_output=True, text=True, check=False
    )
    assert check.stdout == ""
    assert check.returncode == 0, check.stderr


def test_every_durable_call_has_a_sync_version() -> None:
    names = {name for name in flowfabric.__all__ if not inspect.isclass(getattr(flowfabric, name))}
    assert names - ASYNC_ONLY - set(sync.__all__) == set()


def test_every_exported_sync_name_exists() -> None:
    module = importlib.import_module("flowfabric.sync")
    assert [name for name in sync.__all__ if not hasattr(module, name)] == []
