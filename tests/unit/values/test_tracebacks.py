"""Tests for tracebacks of thousands of linked exceptions, which are shortened without recursion."""

from __future__ import annotations

from typing import Any

import pytest

from flowfabric import Backoff, InvalidRequest, PermanentError
from flowfabric.runtime import run as ending
from flowfabric.values import failures
from flowfabric.values.failures import MAX_TRACEBACK_CHARACTERS, error_info

DEEP = 3_000


def nest_in_groups(error: Exception, depth: int = DEEP) -> Exception:
    """Wrap an error in `depth` exception groups."""
    for level in range(depth):
        error = ExceptionGroup(f"level {level}", [error])
    return error


def make_chain(length: int = DEEP) -> Exception:
    """Return the last of `length` exceptions that each have the previous one as their cause."""
    error = ValueError("the first")
    for number in range(length):
        following = ValueError(f"number {number}")
        following.__cause__ = error
        error = following
    return error


def test_traceback_of_a_deep_group_includes_the_innermost_error() -> None:
    info = error_info(nest_in_groups(ValueError("at the bottom")))

    assert (info.type, info.message) == ("ExceptionGroup", f"level {DEEP - 1} (1 sub-exception)")
    assert "ValueError: at the bottom" in info.traceback
    assert len(info.traceback) <= MAX_TRACEBACK_CHARACTERS


def test_traceback_of_a_long_chain_includes_both_ends() -> None:
    info = error_info(make_chain())

    assert info.traceback.startswith("ValueError: the first\n")
    assert info.traceback.endswith(f"ValueError: number {DEEP - 1}\n")
    assert f"[… {DEEP + 1 - 10} more]" in info.traceback


def test_traceback_of_a_circular_chain_terminates() -> None:
    one, two = nest_in_groups(ValueError("one")), nest_in_groups(ValueError("two"))
    one.__cause__, two.__cause__ = two, one

    assert "ValueError: two" in error_info(one).traceback


def test_traceback_of_a_wide_group_counts_the_omitted_errors() -> None:
    info = error_info(ExceptionGroup("many", [ValueError(str(number)) for number in range(DEEP)]))

    assert "ValueError: 0" in info.traceback
    assert f"[… {DEEP - 5} more]" in info.traceback


@pytest.mark.parametrize("depth", [1, DEEP])
def test_group_is_final_if_all_of_its_errors_are(depth: int) -> None:
    for judge in (failures.is_permanent, ending.is_final):
        assert judge(nest_in_groups(PermanentError("no"), depth))
        assert not judge(nest_in_groups(ExceptionGroup("mixed", [PermanentError("no"), ValueError("maybe")]), depth))


def test_traceback_of_a_short_chain_is_that_of_python() -> None:
    info = error_info(make_chain(2))

    assert info.traceback.count("The above exception was the direct cause of the following exception") == 2


def test_traceback_ends_before_generated_code_of_the_package() -> None:
    with pytest.raises(InvalidRequest) as refused:
        Backoff(initial="5s", max_delay="1s")
    text = error_info(refused.value).traceback

    assert f'File "{__file__}"' in text
    assert "__init__" not in text and "__post_init__" not in text


@pytest.mark.parametrize("module", ["flowfabric.demo.tasks", "flowfabric_extras", "orders", None, 5])
def test_traceback_keeps_generated_code_of_other_modules(module: object) -> None:
    names: dict[str, Any] = {"__name__": module}
    exec("def refuse():\n    raise ValueError('generated')", names)
    with pytest.raises(ValueError, match="generated") as refused:
        names["refuse"]()

    assert "in refuse" in error_info(refused.value).traceback
