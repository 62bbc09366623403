"""The public names: sorted, documented, and changed on purpose only."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType

import flowfabric

SNAPSHOT = Path(__file__).with_name("public_api.txt")
REGENERATE = (
    "If the change is meant, write the list again and mention it in the changelog:\n"
    """  .venv/bin/python -c "import flowfabric; print(*flowfabric.__all__, sep='\\n')" > tests/public_api.txt"""
)


def test_all_is_sorted_and_without_repeats() -> None:
    assert list(flowfabric.__all__) == sorted(set(flowfabric.__all__))


def test_every_name_in_all_exists() -> None:
    assert [name for name in flowfabric.__all__ if not hasattr(flowfabric, name)] == []


def test_the_package_shows_no_other_public_names() -> None:
    shown = {name for name, value in vars(flowfabric).items() if not name.startswith("_") and not _is_own_module(value)}
    assert sorted(shown - set(flowfabric.__all__)) == []


def test_every_public_class_and_function_has_a_docstring() -> None:
    public = {name: getattr(flowfabric, name) for name in flowfabric.__all__}
    documentable = {name: value for name, value in public.items() if inspect.isclass(value) or inspect.isroutine(value)}
    assert [name for name, value in documentable.items() if not _has_docstring(name, value)] == []


def test_public_names_are_the_ones_on_record() -> None:
    assert sorted(flowfabric.__all__) == SNAPSHOT.read_text().split(), REGENERATE


def _is_own_module(value: object) -> bool:
    return isinstance(value, ModuleType) and value.__name__.startswith("flowfabric.")


def _has_docstring(name: str, value: object) -> bool:
    # A dataclass without a docstring gets its signature for one.
    return bool(value.__doc__) and not str(value.__doc__).startswith(f"{name}(")
