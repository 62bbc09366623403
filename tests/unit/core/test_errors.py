"""Tests for the class tree of the errors, for their codes, messages and fields, and for pickling them."""

from __future__ import annotations

import copy
import pickle
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core import errors
from flowfabric.engine import Conflict, FlowFabricError, InvalidRequest, NotFound, Refused, Unavailable

KINDS = [InvalidRequest, Refused, NotFound, Conflict, Unavailable]


def test_errors_have_one_root_and_five_classes() -> None:
    engine_errors = {kind for kind in FlowFabricError.__subclasses__() if kind.__module__ == errors.__name__}
    assert engine_errors == set(KINDS)
    assert FlowFabricError.__bases__ == (Exception,)


def test_module_docstring_shows_every_error_class() -> None:
    docstring = errors.__doc__ or ""
    assert all(kind.__name__ in docstring for kind in (FlowFabricError, *KINDS))


@pytest.mark.parametrize("kind", KINDS)
def test_error_has_code_message_and_fields(kind: type[FlowFabricError]) -> None:
    error = kind("some_code", "do something else", limit=3, id=UUID(int=1))
    assert (error.code, error.message) == ("some_code", "do something else")
    assert str(error) == "some_code: do something else"
    assert dict(error.fields) == {"limit": 3, "id": UUID(int=1)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_error_survives_pickling_and_copying(kind: type[FlowFabricError], protocol: int) -> None:
    error = kind("some_code", "message", state="active", epoch=4, missing=("a", "b"))
    copied = pickle.loads(pickle.dumps(error, protocol))
    assert type(copied) is kind
    assert (copied.code, copied.message, copied.fields) == (error.code, error.message, error.fields)
    assert str(copied) == str(error)
    assert copy.copy(error).fields == copy.deepcopy(error).fields == error.fields


def test_error_fields_are_read_only() -> None:
    fields: Any = Refused("some_code", "message", epoch=4).fields
    with pytest.raises(TypeError):
        fields["epoch"] = 5


def test_error_without_values_has_empty_fields() -> None:
    assert Unavailable("some_code", "message").fields == {}
