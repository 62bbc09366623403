"""Collect everything that an error or a record could reveal, to look for a secret in it."""

from __future__ import annotations

import logging
import pickle
import pprint
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

SOURCE = "/flowfabric/core/"


def render_value(value: object) -> str:
    """Return every text that printing, formatting, logging or pickling produces of a value."""
    record = logging.LogRecord("test", logging.INFO, __file__, 1, "%s %r", (value, value), None)
    return "\n".join(
        [
            str(value),
            repr(value),
            f"{value}",
            f"{value!r}",
            f"{value!s:>40}",
            pprint.pformat(value),
            ascii([value]),
            record.getMessage(),
            _pickle_value(value),
        ]
    )


def render_error(error: BaseException) -> str:
    """Return every text that an error reveals, including local variables of our frames and its causes."""
    texts = []
    for cause in _iterate_causes(error):
        texts += [render_value(cause), *map(render_value, cause.args), render_value(getattr(cause, "fields", {}))]
        texts += traceback.format_exception_only(cause)
        texts += [render_value(dict(frame.f_locals)) for frame in _iterate_own_frames(cause)]
    return "\n".join(texts)


def _pickle_value(value: object) -> str:
    texts = []
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        try:
            texts.append(pickle.dumps(value, protocol).decode("latin-1"))
        except (TypeError, pickle.PicklingError, AttributeError) as error:
            texts.append(str(error))
    return "\n".join(texts)


def _iterate_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _iterate_own_frames(error: BaseException) -> Iterator[FrameType]:
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if SOURCE in frame.f_code.co_filename:
            yield frame


def catch_error(call: Any) -> Exception:
    """Return the error that a call raises."""
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("the call raised no error")
