"""Looks for a secret in everything that an error or a record could show."""

from __future__ import annotations

import logging
import pickle
import pprint
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

SOURCE = "/flowfabric/core/"


def shown(value: object) -> str:
    """Everything that printing, formatting, logging or pickling a value makes of it."""
    record = logging.LogRecord("test", logging.INFO, __file__, 1, "%s %r", (value, value), None)
    return "\n".join(
        [str(value), repr(value), f"{value}", f"{value!r}", f"{value!s:>40}", pprint.pformat(value),
         ascii([value]), record.getMessage(), _pickled(value)]
    )  # fmt: skip


def told(error: BaseException) -> str:
    """Everything that an error can tell, down to the variables of our own frames and of the errors behind it."""
    texts = []
    for one in _with_causes(error):
        texts += [shown(one), *map(shown, one.args), shown(getattr(one, "fields", {}))]
        texts += traceback.format_exception_only(one)
        texts += [shown(dict(frame.f_locals)) for frame in _own_frames(one)]
    return "\n".join(texts)


def _pickled(value: object) -> str:
    texts = []
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        try:
            texts.append(pickle.dumps(value, protocol).decode("latin-1"))
        except (TypeError, pickle.PicklingError, AttributeError) as refused:
            texts.append(str(refused))
    return "\n".join(texts)


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _own_frames(error: BaseException) -> Iterator[FrameType]:
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if SOURCE in frame.f_code.co_filename:
            yield frame


def refusal_of(call: Any) -> Exception:
    """The error that a call raises."""
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was refused")
