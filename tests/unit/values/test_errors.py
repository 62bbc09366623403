"""Tests for the errors of durable functions: code, message with the next action, and fields."""

from __future__ import annotations

import asyncio
import copy
import pickle

import pytest

from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.values import errors
from flowfabric.values.errors import (
    AllFailed,
    CancelRequested,
    Diverged,
    ExecutionCancelled,
    ExecutionExpired,
    ExecutionFailed,
    ExecutionSkipped,
    InputMismatch,
    LeaseLost,
    PermanentError,
    StepFailed,
    Unwind,
    ValueRefused,
    WaitOverridden,
)
from flowfabric.values.records import ErrorInfo

INFO = ErrorInfo("CardDeclined", "no money", ("shop.CardDeclined", "OSError", "Exception", "BaseException"))


class NoCar(PermanentError):
    """A user's class with its own constructor."""

    def __init__(self, car: str, days: int) -> None:
        super().__init__(f"no {car} for {days} days")
        self.car = car


ERRORS: list[FlowFabricError] = [
    PermanentError("no car left", car="red"),
    NoCar("red", 3),
    ValueRefused("no", what="it"),
    InputMismatch("no", function="f"),
    StepFailed(INFO, "charge#2"),
    ExecutionFailed(INFO),
    ExecutionCancelled("bored"),
    ExecutionExpired("deadline"),
    ExecutionSkipped("upstream"),
    AllFailed([INFO, INFO]),
    WaitOverridden("ann", "holiday"),
    Diverged("two columns"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_error_survives_pickling_and_copying(error: FlowFabricError) -> None:
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(copied) is type(error)
        assert (copied.args, copied.__dict__) == (error.args, error.__dict__)
        assert str(copied) == str(error)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_error_code_is_a_lower_case_word(error: FlowFabricError) -> None:
    assert error.code.replace("_", "a").isalpha() and error.code == error.code.lower()
    assert error.message


def test_error_codes_are_unique() -> None:
    codes = {type(error): error.code for error in ERRORS if not isinstance(error, NoCar)}
    assert len(set(codes.values())) == len(codes)


def test_module_docstring_shows_every_error_class() -> None:
    docstring = errors.__doc__ or ""
    public = [name for name, value in vars(errors).items() if isinstance(value, type) and not name.startswith("_")]
    own = [name for name in public if getattr(errors, name).__module__ == errors.__name__]
    assert [name for name in own if name not in docstring] == []
    assert [name for name in own if not getattr(errors, name).__doc__] == []


def test_value_refused_is_an_invalid_request() -> None:
    assert isinstance(ValueRefused("no"), InvalidRequest)
    assert ValueRefused("no").code == "value_refused"


def test_permanent_error_keeps_the_message_of_its_user() -> None:
    assert str(PermanentError("no car left")) == "no car left"
    assert PermanentError("no car left").args == ("no car left",)
    assert str(PermanentError()) == ""


def test_step_failed_names_the_path_and_how_to_catch_it() -> None:
    error = StepFailed(INFO, "charge#2")
    assert (error.path, error.error) == ("charge#2", INFO)
    assert str(error).startswith("step_failed: charge#2 failed: CardDeclined: no money")
    assert str(error).endswith("declare raises=[CardDeclined] to catch it by class")


def test_step_failed_explains_why_a_declared_class_was_not_rebuilt() -> None:
    error = StepFailed(INFO, "charge", raises=[OSError])
    assert str(error).endswith("CardDeclined is declared but cannot be rebuilt from its args; give it plain JSON args")


def test_step_failed_gives_no_advice_for_engine_failures() -> None:
    assert str(StepFailed(ErrorInfo("StepInterrupted", "the process died"), "charge")).endswith("the process died")
    refused = ErrorInfo("ValueRefused", "too large", ("flowfabric.values.errors.ValueRefused",))
    assert str(StepFailed(refused, "charge")).endswith("too large")


@pytest.mark.parametrize("error", [StepFailed(INFO, "charge"), ExecutionFailed(INFO)])
def test_caused_by_matches_base_classes(error: StepFailed | ExecutionFailed) -> None:
    assert error.caused_by(OSError)
    assert not error.caused_by(ValueError)


def test_all_failed_keeps_every_failure_in_order() -> None:
    other = ErrorInfo("OSError", "gone")
    error = AllFailed([INFO, other])
    assert error.failures == (INFO, other)
    assert "CardDeclined: no money; OSError: gone" in str(error)


@pytest.mark.parametrize("kind", [ExecutionCancelled, ExecutionExpired, ExecutionSkipped])
def test_a_reason_is_optional(kind: type[ExecutionCancelled]) -> None:
    assert kind("why").reason == "why" and str(kind("why")).endswith(": why")
    assert kind().reason == "" and not str(kind()).endswith(":")


def test_except_exception_does_not_catch_unwind_or_cancel_requested() -> None:
    assert not issubclass(Unwind, Exception | asyncio.CancelledError)
    assert issubclass(LeaseLost, Unwind)
    assert issubclass(CancelRequested, asyncio.CancelledError)
    assert not issubclass(CancelRequested, Exception)
