"""Exceptions whose attributes raise, as careless or unlucky classes have them."""

from __future__ import annotations

from typing import Any

from flowfabric import StepFailed


class Interruption(BaseException):
    """An error that `except Exception` does not catch."""


def _raise(*_: Any, **__: Any) -> Any:
    raise ValueError("an attribute raises")


def _interrupt(*_: Any, **__: Any) -> Any:
    raise Interruption("an attribute raises")


def _class(name: str, *bases: type, **members: Any) -> type[BaseException]:
    return type(name, bases or (Exception,), members)


class _Text(str):  # noqa: SLOT000
    def encode(self, *_: Any, **__: Any) -> Any:
        raise ValueError("not today")

    replace = splitlines = __format__ = __len__ = __getitem__ = encode


class _Unequal:
    def __eq__(self, other: object) -> bool:
        raise ValueError("not comparable")

    __hash__ = None  # type: ignore[assignment]


class _RaisingMeta(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__qualname__", "__module__", "__mro__"):
            raise ValueError("no names")
        return super().__getattribute__(name)

    def __eq__(cls, other: object) -> bool:
        raise ValueError("not comparable")

    __hash__ = type.__hash__


class ForgetfulStepFailed(StepFailed):
    """A subclass of ours that does not call our `__init__`."""

    def __init__(self) -> None:
        Exception.__init__(self)


class WithUnequalArgs(Exception):
    """An error whose argument cannot be compared."""

    def __init__(self) -> None:
        super().__init__(_Unequal())


class WithOddText(Exception):
    """An error whose text is a subclass of `str` that raises."""

    def __str__(self) -> str:
        return _Text("odd")


class RaisingMetaclass(Exception, metaclass=_RaisingMeta):
    """An error whose class has no readable name."""


_RAISING: dict[str, dict[str, Any]] = {
    "RaisingStr": {"__str__": _raise},
    "RaisingRepr": {"__repr__": _raise, "__str__": _raise},
    "RaisingClass": {"__class__": property(_raise)},
    "RaisingArgs": {"args": property(_raise)},
    "RaisingCause": {"__cause__": property(_raise)},
    "RaisingContext": {"__context__": property(_raise)},
    "RaisingTraceback": {"__traceback__": property(_raise)},
    "RaisingSuppress": {"__suppress_context__": property(_raise)},
    "RaisingNotes": {"__notes__": property(_raise)},
    "RaisingCategory": {"category": property(_raise)},
    "RaisingGetattr": {"__getattr__": _raise},
    "RaisingGetattribute": {"__getattribute__": _raise},
    "RaisingSetattr": {"__setattr__": _raise},
    "RaisingEq": {"__eq__": _raise, "__hash__": _raise},
    "RaisingBool": {"__bool__": _raise, "__len__": _raise},
    "RaisingDict": {"__dict__": property(_raise)},
    "RaisingReduce": {"__reduce__": _raise, "__reduce_ex__": _raise},
    "WrongStr": {"__str__": lambda self: 5},
    "WrongClass": {"__class__": KeyError},
    "WrongArgs": {"args": None},
    "WrongCategory": {"category": 5},
    "InterruptingStr": {"__str__": _interrupt},
    "InterruptingRepr": {"__repr__": _interrupt},
    "InterruptingClass": {"__class__": property(_interrupt)},
    "InterruptingCategory": {"category": property(_interrupt)},
    "InterruptingGetattribute": {"__getattribute__": _interrupt},
}
HOSTILE_ERRORS: dict[str, type[BaseException]] = {
    **{name: _class(name, **members) for name, members in _RAISING.items()},
    "RaisingGroup": _class(
        "RaisingGroup",
        ExceptionGroup,
        exceptions=property(_raise),
        __new__=lambda cls: ExceptionGroup.__new__(cls, "group", [ValueError("inner")]),
        __init__=lambda self: None,
    ),
    "ForgetfulStepFailed": ForgetfulStepFailed,
    "WithUnequalArgs": WithUnequalArgs,
    "WithOddText": WithOddText,
    "RaisingMetaclass": RaisingMetaclass,
}


def make_error(name: str) -> BaseException:
    """Return a new error of this kind."""
    return HOSTILE_ERRORS[name]()


def is_final_error(name: str) -> bool:
    """Return True if the error is never retried, because it is a recorded failure of a step."""
    return issubclass(HOSTILE_ERRORS[name], StepFailed)
