"""The report of a divergence is summarized by its first line and the first call that differs."""

from __future__ import annotations

import pytest

from flowfabric.core.executions.requests import StepStatus
from flowfabric.runtime.journal import Journal, Mismatch, Scope, first_difference

HEAD = "the code no longer matches the journal"
LONG = "a_function_with_a_name_of_forty_characters"


def make_journal(*names: str) -> Journal:
    journal, scope = Journal(), Scope()
    for name in names:
        journal.add(scope.next(name, "step", digest="before").record(StepStatus.OK))
    return journal


@pytest.mark.parametrize(
    ("recorded", "now", "expected"),
    [
        (["look_up", "sleep"], ["look_up", "audit"], f'{HEAD}; call 1 was "sleep" and is now "audit"'),
        ([LONG], ["audit"], f'{HEAD}; call 0 was "{LONG}" and is now "audit"'),
        (["audit"], [LONG], f'{HEAD}; call 0 was "audit" and is now "{LONG}"'),
    ],
)
def test_difference_names_the_recorded_and_the_current_call(recorded: list[str], now: list[str], expected: str) -> None:
    journal, scope = make_journal(*recorded), Scope()
    *matching, changed = [scope.next(name, "step", digest="before") for name in now]
    assert all(journal.expect(scope, call_id) for call_id in matching)
    with pytest.raises(Mismatch) as mismatch:
        journal.expect(scope, changed)
    assert first_difference(str(mismatch.value)) == expected


def test_difference_of_arguments_names_the_call() -> None:
    journal, scope = make_journal("pay"), Scope()
    with pytest.raises(Mismatch) as mismatch:
        journal.expect(scope, scope.next("pay", "step", digest="after"))
    assert first_difference(str(mismatch.value)) == (
        f'{HEAD}: its arguments differ from the recorded ones (call 0, "pay")'
    )


def test_difference_of_a_call_that_is_no_longer_made_names_that_call() -> None:
    report = make_journal("look_up", "sleep").report_unreached(Scope())
    assert report is not None
    assert first_difference(report) == (
        f'{HEAD}: it ended before calls that were recorded; call 0 was "look_up" and is no longer made'
    )


def test_other_reports_are_summarized_by_their_first_line() -> None:
    assert first_difference("the stored input does not fit refund\nmore") == "the stored input does not fit refund"
    assert first_difference("") == ""
