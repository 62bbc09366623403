"""Tests of the functions that convert rows to records and back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from uuid import UUID

from flowfabric.store.rows import parameters_of, row_reader


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    id: UUID
    seen_at: datetime | None
    colour: Colour
    other_colour: Colour | None
    names: tuple[str, ...]
    is_new: bool
    ttl: timedelta
    size: int


@dataclass(frozen=True)
class Unslotted:
    id: UUID
    name: str


ID = UUID(int=1)
NOW = datetime(2024, 5, 6, tzinfo=UTC)
THING = Thing(
    id=ID,
    seen_at=NOW,
    colour=Colour.RED,
    other_colour=None,
    names=("a", "b"),
    is_new=True,
    ttl=timedelta(seconds=2),
    size=3,
)


def read_thing(row: dict[str, object]) -> Thing:
    return row_reader(Thing, ttl="ttl_us", size=lambda row: len(row["letters"]))(row)


def test_columns_are_converted_to_the_types_of_the_fields() -> None:
    row: dict[str, object] = {
        "id": str(ID),
        "seen_at": NOW.isoformat(),
        "colour": "red",
        "other_colour": None,
        "names": '["a", "b"]',
        "is_new": 1,
        "ttl_us": 2_000_000,
        "letters": "xyz",
    }
    assert read_thing(row) == THING


def test_values_of_the_right_type_stay_as_they_are() -> None:
    row: dict[str, object] = {
        "id": ID,
        "seen_at": None,
        "colour": Colour.RED,
        "other_colour": "red",
        "names": ["a", "b"],
        "is_new": False,
        "ttl_us": 0,
        "letters": "",
    }
    thing = read_thing(row)
    assert (thing.id, thing.seen_at, thing.is_new, thing.names) == (ID, None, False, ("a", "b"))
    assert thing.other_colour is Colour.RED


def test_record_without_slots_is_read_too() -> None:
    assert row_reader(Unslotted, name="title")({"id": str(ID), "title": "t"}) == Unslotted(ID, "t")


def test_parameters_are_the_fields_of_a_record() -> None:
    assert parameters_of(Unslotted)(Unslotted(ID, "t")) == {"id": ID, "name": "t"}
    parameters = parameters_of(Thing, without=["names", "ttl", "size"])(THING)
    assert parameters == {"id": ID, "seen_at": NOW, "colour": "red", "other_colour": None, "is_new": True}
