"""Failures cross as records; only classes that the code declares come back as themselves."""

from __future__ import annotations

import asyncio
import json
import traceback
from pathlib import Path
from typing import Any

import pytest

import flowfabric
from flowfabric.core import limits
from flowfabric.sdk import failures
from flowfabric.sdk.errors import AllFailed, ExecutionFailed, PermanentError, StepFailed, ValueRefused, WaitOverridden
from flowfabric.sdk.failures import declared, error_info, from_json, is_final, rebuild, to_json
from flowfabric.sdk.records import ErrorInfo
from flowfabric.sdk.values import form_of


class Declined(Exception):
    """As most exceptions are: its args are what it was made with."""


class CardDeclined(Declined):
    def __init__(self, amount: int, currency: str = "EUR") -> None:
        self.amount = amount
        self.currency = currency
        super().__init__(amount, currency)


class Worded(Exception):
    """Made with a number, known by a text: cannot be made again from its args."""

    def __init__(self, amount: int) -> None:
        super().__init__(f"declined {amount}")


class Categorised(Exception):
    category = "rate_limit"


class NoCar(PermanentError):
    pass


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def _raised(exc: BaseException) -> BaseException:
    try:
        raise exc
    except BaseException as caught:
        return caught


def _again(exc: Exception, *raises: type[Exception]) -> Exception | None:
    """What a later run sees of an exception of a step."""
    data = declared(exc, raises)
    return None if data is None else rebuild(json.loads(json.dumps(data)), raises)


# --- Records


def test_a_failure_is_recorded_with_its_class_message_bases_and_traceback() -> None:
    info = error_info(_raised(CardDeclined(5)))
    assert (info.type, info.message) == ("CardDeclined", "(5, 'EUR')")
    own = [f"{__name__}.CardDeclined", f"{__name__}.Declined"]
    assert list(info.bases) == [*own, "Exception", "BaseException"]
    assert "in _raised" in info.traceback
    assert (info.category, info.permanent) == ("CardDeclined", False)


def test_a_record_is_asked_for_base_classes() -> None:
    info = error_info(ConnectionResetError("gone"))
    assert info.caused_by(OSError) and info.caused_by(ConnectionError)
    assert not info.caused_by(ValueError)


def test_a_record_comes_through_json_as_it_was() -> None:
    info = error_info(_raised(NoCar("no car left")))
    assert from_json(json.loads(json.dumps(to_json(info)))) == info


def test_missing_parts_of_a_record_are_empty() -> None:
    assert from_json({"type": "OSError"}) == ErrorInfo("OSError", "")


def test_a_cause_is_told_in_the_traceback() -> None:
    try:
        try:
            raise OSError("first")
        except OSError as first:
            raise ValueError("second") from first
    except ValueError as error:
        info = error_info(error)
    assert "OSError: first" in info.traceback and "direct cause" in info.traceback


def test_the_traceback_begins_where_our_own_code_ends() -> None:
    form = form_of(Exploding, what="it")
    with pytest.raises(ValueRefused) as caught:
        form.restore(b"1")
    inside = caught.value.__cause__
    assert inside is not None
    text = error_info(inside).traceback
    assert "in explode" in text
    assert str(Path(flowfabric.__file__).parent) not in text
    ours = traceback.format_exception(inside)
    assert any("forms.py" in line for line in ours)


class Exploding:
    @staticmethod
    def explode(value: object) -> object:
        raise RuntimeError("boom")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema as schema

        return schema.no_info_plain_validator_function(cls.explode)


def test_texts_are_cut_to_what_the_store_takes() -> None:
    info = error_info(ValueError("ü" * 100_000 + "end"))
    assert len(info.message) <= failures.MESSAGE_CHARACTERS
    assert info.message.startswith("üü") and info.message.endswith("end")
    assert limits.text(info.message, "message") == info.message


def test_a_deep_traceback_is_cut_in_the_middle() -> None:
    def deeper(n: int) -> None:
        if n:
            return deeper(n - 1) if n % 2 else even(n - 1)
        raise ValueError("at the bottom")

    def even(n: int) -> None:
        return deeper(n)

    with pytest.raises(ValueError, match="at the bottom") as caught:
        deeper(400)
    text = error_info(caught.value).traceback
    assert len(text) <= failures.TRACEBACK_CHARACTERS
    assert text.startswith("Traceback") and text.endswith("ValueError: at the bottom\n")


def test_a_message_that_cannot_be_stored_is_made_storable() -> None:
    info = error_info(ValueError("a\x00b\ud800"))
    assert info.message == "a\\x00b\\ud800"
    assert limits.text(info.message, "message") == info.message


def test_an_exception_without_a_text_is_recorded_all_the_same() -> None:
    info = error_info(_raised(Unprintable()))
    assert info.type == "Unprintable"
    assert "cannot be made" in info.message


def test_an_exception_may_name_its_own_category() -> None:
    assert error_info(Categorised()).category == "rate_limit"


def test_a_category_that_fails_to_tell_itself_is_not_used() -> None:
    class Odd(Exception):
        @property
        def category(self) -> str:
            raise RuntimeError

    assert error_info(Odd()).category == "Odd"


@pytest.mark.parametrize("odd", [5, "", " x", "x" * 300, None])
def test_a_category_that_the_engine_would_refuse_is_not_used(odd: object) -> None:
    error = ValueError()
    error.category = odd  # type: ignore[attr-defined]
    assert error_info(error).category == "ValueError"


def test_the_failure_of_a_step_is_still_known_when_it_fails_the_execution() -> None:
    inner = error_info(_raised(ConnectionResetError("gone")))
    outer = error_info(_raised(StepFailed(inner, "charge")))
    assert outer.type == "StepFailed"
    assert outer.caused_by(OSError) and outer.caused_by(StepFailed)
    assert "ConnectionResetError: gone" in outer.traceback
    assert ExecutionFailed(outer).caused_by(OSError)


# --- What is final


FINAL = ErrorInfo("OSError", "gone")


@pytest.mark.parametrize(
    "exc",
    [
        PermanentError("no"),
        NoCar("no"),
        StepFailed(FINAL, "charge"),
        ExecutionFailed(FINAL),
        AllFailed([FINAL]),
        WaitOverridden("ann"),
        ValueRefused("too large"),
        SystemExit(1),
        ExceptionGroup("both", [StepFailed(FINAL, "a"), ExceptionGroup("inner", [PermanentError("no")])]),
    ],
    ids=map(str, range(9)),
)
def test_a_failure_that_trying_again_would_not_help_is_final(exc: BaseException) -> None:
    assert is_final(exc)
    assert error_info(exc).permanent


@pytest.mark.parametrize(
    "exc",
    [
        ValueError(),
        TimeoutError(),
        asyncio.CancelledError(),
        ExceptionGroup("mixed", [StepFailed(FINAL, "a"), ValueError()]),
    ],
    ids=map(str, range(4)),
)
def test_other_failures_may_be_tried_again(exc: BaseException) -> None:
    assert not is_final(exc)
    assert not error_info(exc).permanent


def test_a_declared_class_is_an_answer_and_not_an_accident() -> None:
    assert is_final(CardDeclined(5), [Declined])
    assert is_final(ExceptionGroup("", [CardDeclined(5), StepFailed(FINAL, "a")]), [CardDeclined])
    assert not is_final(Declined("x"), [CardDeclined])


# --- Declared classes


def test_a_declared_class_comes_back_as_itself() -> None:
    again = _again(CardDeclined(5, "USD"), CardDeclined)
    assert type(again) is CardDeclined
    assert (again.amount, again.currency, again.args) == (5, "USD", (5, "USD"))


def test_a_class_that_is_not_declared_does_not_come_back() -> None:
    assert declared(Declined("x"), [CardDeclined]) is None
    assert declared(Declined("x"), []) is None


def test_a_subclass_comes_back_as_the_nearest_class_that_is_declared() -> None:
    class Soft(Declined):
        pass

    assert type(_again(Soft("x"), Exception, Declined)) is Declined
    assert type(_again(Soft("x"), Exception, Declined, Soft)) is Soft


def test_a_permanent_error_can_be_declared_too() -> None:
    again = _again(NoCar("no car left"), NoCar)
    assert type(again) is NoCar and str(again) == "no car left"


@pytest.mark.parametrize("arg", [object(), (1, 2), b"x", {1: 2}, float("nan"), "\ud800"], ids=map(str, range(6)))
def test_args_that_are_not_plain_json_do_not_come_back(arg: object) -> None:
    assert declared(Declined(arg), [Declined]) is None


def test_a_class_that_its_args_do_not_make_again_does_not_come_back() -> None:
    assert declared(Worded(5), [Worded]) is None


def test_a_builtin_class_may_be_declared() -> None:
    again = _again(FileNotFoundError(2, "no such file"), OSError)
    assert isinstance(again, OSError)
    assert again.args == (2, "no such file")


@pytest.mark.parametrize(
    ("data", "raises"),
    [
        ({}, [Declined]),
        ({"class": "os.system", "args": ["true"]}, [Declined]),
        ({"class": f"{__name__}.Declined", "args": ["x"]}, []),
        ({"class": f"{__name__}.CardDeclined", "args": [1, 2, 3, 4]}, [CardDeclined]),
    ],
    ids=map(str, range(4)),
)
def test_nothing_is_made_that_the_code_does_not_declare(data: dict[str, Any], raises: list[type[Exception]]) -> None:
    assert rebuild(data, raises) is None


def test_a_class_of_a_script_is_found_by_the_worker_that_imports_it() -> None:
    assert type(rebuild({"class": "__main__.Declined", "args": ["x"]}, [Declined])) is Declined
