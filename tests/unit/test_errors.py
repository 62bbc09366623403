"""Errors form one tree; each has a code, a message and fields, and comes through pickling as it was."""

from __future__ import annotations

import copy
import pickle
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core import errors
from flowfabric.engine import Conflict, FlowFabricError, InvalidRequest, NotFound, Refused, Unavailable

KINDS = [InvalidRequest, Refused, NotFound, Conflict, Unavailable]


def test_the_tree_has_one_root_and_five_branches() -> None:
    of_the_engine = {kind for kind in FlowFabricError.__subclasses__() if kind.__module__ == errors.__name__}
    assert of_the_engine == set(KINDS)
    assert FlowFabricError.__bases__ == (Exception,)


def test_the_module_draws_the_tree() -> None:
    drawing = errors.__doc__ or ""
    assert all(kind.__name__ in drawing for kind in (FlowFabricError, *KINDS))


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_has_a_code_a_message_and_its_values(kind: type[FlowFabricError]) -> None:
    error = kind("some_code", "do something else", limit=3, id=UUID(int=1))
    assert (error.code, error.message) == ("some_code", "do something else")
    assert str(error) == "some_code: do something else"
    assert dict(error.fields) == {"limit": 3, "id": UUID(int=1)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_comes_through_pickling_as_it_was(kind: type[FlowFabricError], protocol: int) -> None:
    error = kind("some_code", "message", state="active", epoch=4, missing=("a", "b"))
    copied = pickle.loads(pickle.dumps(error, protocol))
    assert type(copied) is kind
    assert (copied.code, copied.message, copied.fields) == (error.code, error.message, error.fields)
    assert str(copied) == str(error)
    assert copy.copy(error).fields == copy.deepcopy(error).fields == error.fields


def test_the_fields_of_an_error_cannot_be_changed() -> None:
    fields: Any = Refused("some_code", "message", epoch=4).fields
    with pytest.raises(TypeError):
        fields["epoch"] = 5


def test_an_error_without_values_has_empty_fields() -> None:
    assert Unavailable("some_code", "message").fields == {}
