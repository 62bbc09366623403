"""Tests for the records of durable calls, which are frozen values."""

from __future__ import annotations

import dataclasses
import pickle
from datetime import UTC, datetime

import pytest

from flowfabric.core.waits.decisions import ApprovalDecision
from flowfabric.values import codec_for, records
from flowfabric.values.records import (
    Approved,
    Completed,
    ErrorInfo,
    RaceResult,
    Received,
    TimedOut,
    same_class,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
YES = ApprovalDecision("ops", approve=True, comment="", at=NOW)
RECORDS = [value for value in vars(records).values() if isinstance(value, type) and dataclasses.is_dataclass(value)]


@pytest.mark.parametrize("kind", [kind for kind in RECORDS if kind.__module__ == records.__name__])
def test_a_record_is_frozen_slotted_and_documented(kind: type) -> None:
    assert vars(kind)["__dataclass_params__"].frozen
    assert "__slots__" in vars(kind)
    assert kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}(")


def test_timeout_without_an_approval_has_no_decisions() -> None:
    assert TimedOut(NOW).decisions == ()


def test_outcomes_support_pattern_matching() -> None:
    match Approved(("ops",), (YES,)):
        case Approved(by=(who,), decisions=(ApprovalDecision(approve=True),)):
            assert who == "ops"
        case _:
            pytest.fail("not matched")


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Approved, Approved(("ops",), (YES,))),
        (Received[int], Received(3, "shop", NOW)),
        (RaceResult[str], RaceResult(1, "b")),
        (Completed[list[int]], Completed([1])),
        (ErrorInfo, ErrorInfo("ValueError", "no", ("ValueError", "Exception"))),
    ],
)
def test_record_may_be_a_stored_value(annotation: object, value: object) -> None:
    codec = codec_for(annotation, what="it")
    assert codec.restore(codec.store(value)) == value
    assert pickle.loads(pickle.dumps(value)) == value


class _Refused(OSError):
    pass


def test_caused_by_matches_the_class_and_its_bases() -> None:
    own = f"{__name__}._Refused"
    info = ErrorInfo("_Refused", "", bases=(own, "OSError", "Exception", "BaseException"))
    assert info.caused_by(_Refused)
    assert info.caused_by(OSError)
    assert not info.caused_by(ValueError)


def test_class_of_a_script_equals_the_imported_class() -> None:
    assert same_class("__main__.Declined", "shop.Declined")
    assert same_class("shop.pay.Outer.Declined", "__main__.Outer.Declined")
    assert not same_class("__main__.Declined", "shop.CardDeclined")
    assert not same_class("bank.Declined", "shop.Declined")
    assert not same_class("__main__.OSError", "OSError")
