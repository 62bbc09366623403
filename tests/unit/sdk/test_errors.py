"""The errors of durable functions keep to the convention: a code, a message that says what to do, and fields."""

from __future__ import annotations

import asyncio
import copy
import pickle

import pytest

from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.sdk import errors
from flowfabric.sdk.errors import (
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
from flowfabric.sdk.records import ErrorInfo

INFO = ErrorInfo("CardDeclined", "no money", ("shop.CardDeclined", "OSError", "Exception", "BaseException"))


class NoCar(PermanentError):
    """A user's class with a constructor of its own."""

    def __init__(self, car: str, days: int) -> None:
        super().__init__(f"no {car} for {days} days")
        self.car = car


MADE: list[FlowFabricError] = [
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


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_an_error_comes_through_pickling_as_it_was(error: FlowFabricError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert (again.args, again.__dict__) == (error.args, error.__dict__)
        assert str(again) == str(error)


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_an_error_has_a_code_that_is_a_word(error: FlowFabricError) -> None:
    assert error.code.replace("_", "a").isalpha() and error.code == error.code.lower()
    assert error.message


def test_codes_tell_the_errors_apart() -> None:
    codes = {type(error): error.code for error in MADE if not isinstance(error, NoCar)}
    assert len(set(codes.values())) == len(codes)


def test_the_module_draws_the_tree() -> None:
    drawing = errors.__doc__ or ""
    public = [name for name, value in vars(errors).items() if isinstance(value, type) and not name.startswith("_")]
    own = [name for name in public if getattr(errors, name).__module__ == errors.__name__]
    assert [name for name in own if name not in drawing] == []
    assert [name for name in own if not getattr(errors, name).__doc__] == []


def test_a_refused_value_is_an_invalid_request() -> None:
    assert isinstance(ValueRefused("no"), InvalidRequest)
    assert ValueRefused("no").code == "value_refused"


def test_a_permanent_error_says_what_its_user_said() -> None:
    assert str(PermanentError("no car left")) == "no car left"
    assert PermanentError("no car left").args == ("no car left",)
    assert str(PermanentError()) == ""


def test_a_failed_step_names_its_path_and_how_to_catch_it() -> None:
    error = StepFailed(INFO, "charge#2")
    assert (error.path, error.error) == ("charge#2", INFO)
    assert str(error).startswith("step_failed: charge#2 failed: CardDeclined: no money")
    assert str(error).endswith("declare raises=[CardDeclined] to catch it by class")


def test_a_declared_class_that_could_not_be_made_again_is_told_so() -> None:
    error = StepFailed(INFO, "charge", raises=[OSError])
    assert str(error).endswith(
        "CardDeclined is declared, but cannot be made again from its args: give it plain JSON args"
    )


def test_a_failure_that_no_code_raised_needs_no_advice() -> None:
    assert str(StepFailed(ErrorInfo("StepInterrupted", "the process died"), "charge")).endswith("the process died")
    refused = ErrorInfo("ValueRefused", "too large", ("flowfabric.sdk.errors.ValueRefused",))
    assert str(StepFailed(refused, "charge")).endswith("too large")


@pytest.mark.parametrize("error", [StepFailed(INFO, "charge"), ExecutionFailed(INFO)])
def test_a_failure_is_asked_for_the_classes_that_caused_it(error: StepFailed | ExecutionFailed) -> None:
    assert error.caused_by(OSError)
    assert not error.caused_by(ValueError)


def test_a_lost_race_keeps_every_failure_in_order() -> None:
    other = ErrorInfo("OSError", "gone")
    error = AllFailed([INFO, other])
    assert error.failures == (INFO, other)
    assert "CardDeclined: no money; OSError: gone" in str(error)


@pytest.mark.parametrize("kind", [ExecutionCancelled, ExecutionExpired, ExecutionSkipped])
def test_a_reason_is_optional(kind: type[ExecutionCancelled]) -> None:
    assert kind("why").reason == "why" and str(kind("why")).endswith(": why")
    assert kind().reason == "" and not str(kind()).endswith(":")


def test_no_handler_of_exceptions_sees_an_unwind_or_a_request_to_cancel() -> None:
    assert not issubclass(Unwind, Exception | asyncio.CancelledError)
    assert issubclass(LeaseLost, Unwind)
    assert issubclass(CancelRequested, asyncio.CancelledError)
    assert not issubclass(CancelRequested, Exception)
