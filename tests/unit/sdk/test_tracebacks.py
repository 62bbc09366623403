"""Failures that hang together of thousands of exceptions are told shortened, and never by recursion."""

from __future__ import annotations

import pytest

from flowfabric import PermanentError
from flowfabric.sdk import ending, failures
from flowfabric.sdk.failures import TRACEBACK_CHARACTERS, error_info

DEEP = 3_000


def nested(error: Exception, depth: int = DEEP) -> Exception:
    """A group in a group in a group …"""
    for level in range(depth):
        error = ExceptionGroup(f"level {level}", [error])
    return error


def chained(length: int = DEEP) -> Exception:
    """An exception raised from another, raised from another …"""
    error = ValueError("the first")
    for number in range(length):
        after = ValueError(f"number {number}")
        after.__cause__ = error
        error = after
    return error


def test_a_deep_group_is_told_by_what_is_in_it() -> None:
    info = error_info(nested(ValueError("at the bottom")))

    assert (info.type, info.message) == ("ExceptionGroup", f"level {DEEP - 1} (1 sub-exception)")
    assert "ValueError: at the bottom" in info.traceback
    assert len(info.traceback) <= TRACEBACK_CHARACTERS


def test_a_long_chain_is_told_by_its_ends() -> None:
    info = error_info(chained())

    assert info.traceback.startswith("ValueError: the first\n")
    assert info.traceback.endswith(f"ValueError: number {DEEP - 1}\n")
    assert f"[… {DEEP + 1 - 10} more]" in info.traceback


def test_a_chain_that_leads_back_to_itself_ends() -> None:
    one, two = nested(ValueError("one")), nested(ValueError("two"))
    one.__cause__, two.__cause__ = two, one

    assert "ValueError: two" in error_info(one).traceback


def test_a_wide_group_tells_how_many_there_are() -> None:
    info = error_info(ExceptionGroup("many", [ValueError(str(number)) for number in range(DEEP)]))

    assert "ValueError: 0" in info.traceback
    assert f"[… {DEEP - 5} more]" in info.traceback


@pytest.mark.parametrize("depth", [1, DEEP])
def test_a_group_is_final_if_nothing_in_it_may_pass(depth: int) -> None:
    for judge in (failures.is_final, ending.is_final):
        assert judge(nested(PermanentError("no"), depth))
        assert not judge(nested(ExceptionGroup("mixed", [PermanentError("no"), ValueError("maybe")]), depth))


def test_a_short_chain_is_told_as_python_prints_it() -> None:
    info = error_info(chained(2))

    assert info.traceback.count("The above exception was the direct cause of the following exception") == 2
