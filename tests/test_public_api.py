"""Test that the public names are sorted, documented, and match the recorded list."""

from __future__ import annotations

import inspect
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

SNAPSHOT = Path(__file__).with_name("public_api.txt")
FACES = ("flowfabric", "flowfabric.engine", "flowfabric.testing")
REGENERATE = "If the change is meant, mention it in the changelog and write the list: python -m tests.test_public_api"


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> ModuleType:
    """Return a module that users import from."""
    return import_module(request.param)


def test_all_is_sorted_and_without_repeats(face: ModuleType) -> None:
    assert list(face.__all__) == sorted(set(face.__all__))


def test_every_name_in_all_exists(face: ModuleType) -> None:
    assert [name for name in face.__all__ if not hasattr(face, name)] == []


def test_module_has_no_other_public_names(face: ModuleType) -> None:
    shown = {name for name, value in vars(face).items() if not name.startswith("_") and not _is_own_module(value)}
    assert sorted(shown - set(face.__all__)) == []


def test_every_public_class_and_function_has_a_docstring(face: ModuleType) -> None:
    public = {name: getattr(face, name) for name in face.__all__}
    documentable = {name: value for name, value in public.items() if inspect.isclass(value) or inspect.isroutine(value)}
    assert [name for name, value in documentable.items() if not _has_docstring(name, value)] == []


def test_public_names_match_the_recorded_list() -> None:
    assert public_names() == SNAPSHOT.read_text(encoding="utf-8").split(), REGENERATE


def test_dir_lists_the_public_names() -> None:
    import flowfabric

    assert {"__version__", *flowfabric.__all__} <= set(dir(flowfabric))
    assert [name for name in dir(flowfabric) if not name.startswith("__")] == flowfabric.__all__


def test_version_is_that_of_the_distribution() -> None:
    import flowfabric

    assert flowfabric.__version__ == version("flowfabric")


def public_names() -> list[str]:
    """Return all public names with their module."""
    return [f"{face}.{name}" for face in FACES for name in sorted(import_module(face).__all__)]


def _is_own_module(value: object) -> bool:
    return isinstance(value, ModuleType) and value.__name__.startswith("flowfabric.")


def _has_docstring(name: str, value: object) -> bool:
    # A dataclass without a docstring gets its signature as its docstring, which does not count.
    return bool(value.__doc__) and not str(value.__doc__).startswith(f"{name}(")


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(public_names()) + "\n", encoding="utf-8")
