"""Tests for recorded failures, of which only declared classes are rebuilt."""

from __future__ import annotations

import asyncio
import json
import traceback
from pathlib import Path
from typing import Any

import pytest

import flowfabric
from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.values import codec_for, failures
from flowfabric.values.errors import (
    AllFailed,
    ExecutionFailed,
    PermanentError,
    StepFailed,
    ValueRefused,
    WaitOverridden,
)
from flowfabric.values.failures import encode_declared, error_info, from_json, is_permanent, rebuild, to_json
from flowfabric.values.records import ErrorInfo


class Declined(Exception):
    """A typical exception whose args are its constructor arguments."""


class CardDeclined(Declined):
    def __init__(self, amount: int, currency: str = "EUR") -> None:
        self.amount = amount
        self.currency = currency
        super().__init__(amount, currency)


class ArgsDiffer(Exception):
    """An exception that cannot be rebuilt, because its args differ from its constructor arguments."""

    def __init__(self, amount: int) -> None:
        super().__init__(f"declined {amount}")


class Categorized(Exception):
    category = "rate_limit"


class NoCar(PermanentError):
    pass


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def _raise_and_catch(exc: BaseException) -> BaseException:
    try:
        raise exc
    except BaseException as caught:
        return caught


def _rebuild_in_later_run(exc: Exception, *raises: type[Exception]) -> Exception | None:
    """Return the exception that a later run raises in place of the exception that a step raised, or None."""
    data = encode_declared(exc, raises)
    return None if data is None else rebuild(json.loads(json.dumps(data)), raises)


# --- Records


def test_record_has_class_message_bases_and_traceback() -> None:
    info = error_info(_raise_and_catch(CardDeclined(5)))
    assert (info.type, info.message) == ("CardDeclined", "(5, 'EUR')")
    own = [f"{__name__}.CardDeclined", f"{__name__}.Declined"]
    assert list(info.bases) == [*own, "Exception", "BaseException"]
    assert "in _raise_and_catch" in info.traceback
    assert (info.category, info.permanent) == ("CardDeclined", False)


def test_caused_by_matches_recorded_base_classes() -> None:
    info = error_info(ConnectionResetError("gone"))
    assert info.caused_by(OSError) and info.caused_by(ConnectionError)
    assert not info.caused_by(ValueError)


def test_record_survives_json() -> None:
    info = error_info(_raise_and_catch(NoCar("no car left")))
    assert from_json(json.loads(json.dumps(to_json(info)))) == info


def test_missing_fields_of_a_record_are_empty() -> None:
    assert from_json({"type": "OSError"}) == ErrorInfo("OSError", "")


def test_traceback_includes_the_cause() -> None:
    try:
        try:
            raise OSError("first")
        except OSError as first:
            raise ValueError("second") from first
    except ValueError as error:
        info = error_info(error)
    assert "OSError: first" in info.traceback and "direct cause" in info.traceback


def test_traceback_omits_frames_of_flowfabric() -> None:
    codec = codec_for(Exploding, what="it")
    with pytest.raises(ValueRefused) as caught:
        codec.restore(b"1")
    cause = caught.value.__cause__
    assert cause is not None
    assert "codecs.py" in "".join(traceback.format_exception(cause))
    text = error_info(cause).traceback
    assert "in explode" in text
    assert str(Path(flowfabric.__file__).parent) not in text
    assert "codecs.py" not in "".join(traceback.format_exception(cause))


def test_traceback_without_code_of_the_user_stays_complete() -> None:
    with pytest.raises(InvalidRequest) as caught:
        validation.name("", "name")
    error = caught.value.with_traceback(caught.tb.tb_next)
    assert "validation.py" in error_info(error).traceback


def test_package_whose_name_begins_like_ours_is_code_of_the_user() -> None:
    name = f"{Path(flowfabric.__file__).parent}_shop/orders.py"
    with pytest.raises(KeyError) as caught:
        exec(compile("{}['missing']", name, "exec"))
    assert name in error_info(caught.value).traceback


class Exploding:
    @staticmethod
    def explode(value: object) -> object:
        raise RuntimeError("boom")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema as schema

        return schema.no_info_plain_validator_function(cls.explode)


def test_long_message_is_truncated_to_the_limit() -> None:
    info = error_info(ValueError("ü" * 100_000 + "end"))
    assert len(info.message) <= failures.MAX_MESSAGE_CHARACTERS
    assert info.message.startswith("üü") and info.message.endswith("end")
    assert validation.text(info.message, "message") == info.message


def test_long_traceback_is_truncated_in_the_middle() -> None:
    def recurse(n: int) -> None:
        if n:
            return recurse(n - 1) if n % 2 else recurse_once(n - 1)
        raise ValueError("at the bottom")

    def recurse_once(n: int) -> None:
        return recurse(n)

    with pytest.raises(ValueError, match="at the bottom") as caught:
        recurse(400)
    text = error_info(caught.value).traceback
    assert len(text) <= failures.MAX_TRACEBACK_CHARACTERS
    assert text.startswith("Traceback") and text.endswith("ValueError: at the bottom\n")


def test_message_with_invalid_characters_is_escaped() -> None:
    info = error_info(ValueError("a\x00b\ud800"))
    assert info.message == "a\\x00b\\ud800"
    assert validation.text(info.message, "message") == info.message


def test_exception_whose_str_fails_is_recorded() -> None:
    info = error_info(_raise_and_catch(Unprintable()))
    assert info.type == "Unprintable"
    assert "whose __str__ failed" in info.message


def test_exception_may_define_its_category() -> None:
    assert error_info(Categorized()).category == "rate_limit"


def test_category_that_raises_is_ignored() -> None:
    class RaisingCategory(Exception):
        @property
        def category(self) -> str:
            raise RuntimeError

    assert error_info(RaisingCategory()).category == "RaisingCategory"


@pytest.mark.parametrize("category", [5, "", " x", "x" * 300, None])
def test_invalid_category_is_ignored(category: object) -> None:
    error = ValueError()
    error.category = category  # type: ignore[attr-defined]
    assert error_info(error).category == "ValueError"


@pytest.mark.parametrize("name", ["404 Not Found ", " bad", "two\nlines", "", "\x1b[31m"])
def test_class_name_that_is_no_valid_category_is_ignored(name: str) -> None:
    info = error_info(type(name, (Exception,), {})("boom"))
    assert (info.category, info.type) == ("error", name)


def test_long_class_name_is_shortened_to_a_category() -> None:
    assert error_info(type("x" * 5_000, (Exception,), {})()).category == "x" * validation.MAX_NAME_CHARACTERS


def test_failed_execution_keeps_the_failure_of_its_step() -> None:
    inner = error_info(_raise_and_catch(ConnectionResetError("gone")))
    outer = error_info(_raise_and_catch(StepFailed(inner, "charge")))
    assert outer.type == "StepFailed"
    assert outer.caused_by(OSError) and outer.caused_by(StepFailed)
    assert ExecutionFailed(outer).caused_by(OSError)


# --- Final failures


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
def test_permanent_failure_is_final(exc: BaseException) -> None:
    assert is_permanent(exc)
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
def test_other_failures_may_be_retried(exc: BaseException) -> None:
    assert not is_permanent(exc)
    assert not error_info(exc).permanent


def test_declared_class_is_final() -> None:
    assert is_permanent(CardDeclined(5), [Declined])
    assert is_permanent(ExceptionGroup("", [CardDeclined(5), StepFailed(FINAL, "a")]), [CardDeclined])
    assert not is_permanent(Declined("x"), [CardDeclined])


# --- Declared classes


def test_declared_class_is_rebuilt() -> None:
    rebuilt = _rebuild_in_later_run(CardDeclined(5, "USD"), CardDeclined)
    assert type(rebuilt) is CardDeclined
    assert (rebuilt.amount, rebuilt.currency, rebuilt.args) == (5, "USD", (5, "USD"))


def test_undeclared_class_is_not_rebuilt() -> None:
    assert encode_declared(Declined("x"), [CardDeclined]) is None
    assert encode_declared(Declined("x"), []) is None


def test_subclass_is_rebuilt_as_the_nearest_declared_class() -> None:
    class Soft(Declined):
        pass

    assert type(_rebuild_in_later_run(Soft("x"), Exception, Declined)) is Declined
    assert type(_rebuild_in_later_run(Soft("x"), Exception, Declined, Soft)) is Soft


def test_permanent_error_may_be_declared() -> None:
    rebuilt = _rebuild_in_later_run(NoCar("no car left"), NoCar)
    assert type(rebuilt) is NoCar and str(rebuilt) == "no car left"


@pytest.mark.parametrize("arg", [object(), (1, 2), b"x", {1: 2}, float("nan"), "\ud800"], ids=map(str, range(6)))
def test_exception_whose_args_are_not_plain_json_is_not_rebuilt(arg: object) -> None:
    assert encode_declared(Declined(arg), [Declined]) is None


def test_exception_that_its_args_cannot_rebuild_is_not_rebuilt() -> None:
    assert encode_declared(ArgsDiffer(5), [ArgsDiffer]) is None


def test_a_builtin_class_may_be_declared() -> None:
    rebuilt = _rebuild_in_later_run(FileNotFoundError(2, "no such file"), OSError)
    assert isinstance(rebuilt, OSError)
    assert rebuilt.args == (2, "no such file")


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
def test_rebuild_creates_declared_classes_only(data: dict[str, Any], raises: list[type[Exception]]) -> None:
    assert rebuild(data, raises) is None


def test_worker_rebuilds_a_class_of_a_script() -> None:
    assert type(rebuild({"class": "__main__.Declined", "args": ["x"]}, [Declined])) is Declined
