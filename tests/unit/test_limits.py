"""Every limit holds at its edge, and whatever cannot be stored is refused with a code and the limit in the message."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core import limits
from flowfabric.engine import InvalidRequest

MIB = 1024 * 1024
NUL, SURROGATE, RIGHT_TO_LEFT, JOINER = "\x00", "\ud800", "\u202e", "\u200d"
ODD: list[Any] = [None, True, 1, 1.5, [], {}, object(), b"x"]
TICK = timedelta(microseconds=1)


def _shown(value: object) -> str:
    """The name of a case, the same in every process."""
    return re.sub(" at 0x[0-9a-f]+", "", ascii(value))[:60]


def _refused(check: Callable[[Any], object], value: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        check(value)
    assert len(str(refused.value)) < 400, "bad input is never echoed at length"
    assert str(refused.value).isprintable()
    return refused.value


def _name(value: Any) -> str:
    return limits.name(value, "kind")


def _text(value: Any) -> str:
    return limits.text(value, "reason")


def _payload(value: Any) -> bytes:
    return limits.payload(value, "payload")


def _tokens(value: Any) -> tuple[str, ...]:
    return limits.capabilities(value, "requires")


def _span(value: Any) -> timedelta:
    return limits.duration(value, "delay")


def _moment(value: Any) -> datetime:
    return limits.moment(value, "ready_at")


def _many_tags(count: int) -> dict[str, str]:
    return {f"t.k{number}": "v" for number in range(count)}


def _many_tokens(count: int) -> list[str]:
    return [f"t{number}" for number in range(count)]


# What has the size n, the check, the limit, and the code beyond it.
SIZED: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any], int, str]] = {
    "payload": (bytes, _payload, MIB, "payload_too_large"),
    "name": (lambda n: "x" * n, _name, 256, "invalid_name"),
    "name of wide characters": (lambda n: "\U0001f986" * n, _name, 256, "invalid_name"),
    "tags": (_many_tags, limits.tags, 64, "too_many_tags"),
    "tag value": (lambda n: {"t.k": "x" * n}, limits.tags, 1024, "payload_too_large"),
    "tag value in bytes": (lambda n: {"t.k": "ü" * (n // 2) + "x" * (n % 2)}, limits.tags, 1024, "payload_too_large"),
    "tag key": (lambda n: "t." + "x" * (n - 2), limits.tag_key, 256, "invalid_tag_key"),
    "capabilities": (_many_tokens, _tokens, 256, "invalid_capabilities"),
    "names": (_many_tokens, lambda value: limits.names(value, "lanes"), 1000, "out_of_range"),
}


@pytest.mark.parametrize("what", SIZED)
def test_a_size_is_allowed_up_to_its_limit_and_refused_beyond_with_the_limit_in_the_message(what: str) -> None:
    make, check, limit, code = SIZED[what]
    check(make(limit - 1))
    check(make(limit))
    refused = _refused(check, make(limit + 1))
    assert refused.code == code
    assert str(limit) in refused.message
    assert limit in refused.fields.values()


def test_the_published_limits_are_the_documented_ones() -> None:
    assert limits.PAYLOAD_BYTES == MIB
    assert limits.STEPS_PER_EXECUTION == 10_000
    assert limits.NAME_CHARACTERS == 256
    assert (limits.TAGS, limits.TAG_VALUE_BYTES) == (64, 1024)
    assert limits.CAPABILITIES == 256
    assert limits.PRIORITY_MOST == 9000
    assert limits.BATCH == 1000
    assert timedelta(seconds=1) == limits.LEASE_TTL_LEAST


def test_256_capabilities_of_ordinary_length_are_allowed() -> None:
    assert len(_tokens([f"region-{number:03d}" for number in range(256)])) == 256


@pytest.mark.parametrize(
    "good", ["x", "a b", "Grüße", "日本語", "\U0001f986", "e\u0301", "'; DROP TABLE x; --", "<b>", "%s\\"]
)
def test_a_name_is_printable_text_and_kept_as_it_is(good: str) -> None:
    assert _name(good) == good


@pytest.mark.parametrize(
    "bad",
    ["", " ", " a", "a ", "a\n", "\ta", "a\tb", "a\r\nb", NUL, "a" + NUL + "b", SURROGATE, "a\udfff",
     RIGHT_TO_LEFT + "a", "a" + JOINER + "b", "\u00a0", "a\u2028b", "\x7f", "\ufeff", "\u00ad", "\U000e0001",
     "x" * 10**6],
    ids=_shown,
)  # fmt: skip
def test_a_name_that_is_empty_padded_or_cannot_be_printed_is_refused(bad: str) -> None:
    refused = _refused(_name, bad)
    assert refused.code == "invalid_name"
    assert refused.fields["field"] == "kind"


@pytest.mark.parametrize("odd", ODD, ids=_shown)
def test_a_name_and_a_text_are_text(odd: Any) -> None:
    for check in (_name, _text):
        assert _refused(check, odd).code == "invalid_type"
        assert _refused(check, odd).fields["got"] == type(odd).__name__


@pytest.mark.parametrize("good", ["", " ", "two\nlines", RIGHT_TO_LEFT, JOINER, "\x01", "\x7f", "\ufffe", "\U0010ffff"])
def test_free_text_may_hold_anything_that_can_be_stored(good: str) -> None:
    assert _text(good) == good


@pytest.mark.parametrize("bad", [NUL, "a" + NUL, SURROGATE, "a\udc00b", "\udcff" * 10**6], ids=_shown)
def test_free_text_holds_neither_nul_nor_lone_surrogate(bad: str) -> None:
    assert _refused(_text, bad).code == "invalid_text"


def test_free_text_has_a_limit_of_bytes() -> None:
    assert _text("x" * limits.TEXT_BYTES)
    assert _refused(_text, "ü" * limits.TEXT_BYTES).code == "payload_too_large"
    assert _refused(_text, "x" * (limits.TEXT_BYTES + 1)).fields["limit"] == limits.TEXT_BYTES


@pytest.mark.parametrize(
    "odd", [None, True, 1, 1.5, "text", [], {}, bytearray(b"x"), memoryview(b"x"), object()], ids=_shown
)
def test_a_payload_is_bytes(odd: Any) -> None:
    assert _refused(_payload, odd).code == "invalid_type"


def test_tags_are_sorted_and_empty_values_are_values() -> None:
    assert list(limits.tags({"b.x": "2", "a.x": ""}).items()) == [("a.x", ""), ("b.x", "2")]
    assert limits.tags({}) == {}


@pytest.mark.parametrize("good", ["a.b", "team.owner", "a_1.b_2", "a.0", "a._", "a.b.c", "a.b..c"])
def test_a_tag_key_has_a_namespace_and_a_name(good: str) -> None:
    assert limits.tag_key(good) == good


@pytest.mark.parametrize(
    "bad",
    ["", "a", ".a", "a.", "a..b", "A.b", "a.B", "1.b", "_a.b", "a b.c", "a.b\n", "a.b" + NUL, "a.ü", "ü.a", "a-b.c",
     SURROGATE + ".a", "a.\u0661", None, 1, True, 1.5, b"a.b", (), "a." + "x" * 10**6],
    ids=_shown,
)  # fmt: skip
def test_any_other_tag_key_is_refused(bad: Any) -> None:
    assert _refused(limits.tag_key, bad).code == "invalid_tag_key"
    assert _refused(limits.tags, {bad: "v"}).code == "invalid_tag_key"


@pytest.mark.parametrize(
    ("bad", "code"),
    [(NUL, "invalid_text"), (SURROGATE, "invalid_text"), (None, "invalid_type"), (1, "invalid_type"),
     (True, "invalid_type"), (b"v", "invalid_type"), ([], "invalid_type")],
)  # fmt: skip
def test_a_tag_value_is_text_that_can_be_stored(bad: Any, code: str) -> None:
    assert _refused(limits.tags, {"a.b": bad}).code == code


@pytest.mark.parametrize("odd", [None, True, 1, 1.5, "a.b", [], [("a.b", "c")], object()], ids=_shown)
def test_tags_are_a_mapping(odd: Any) -> None:
    assert _refused(limits.tags, odd).code == "invalid_type"


def test_capabilities_are_a_sorted_set_of_tokens() -> None:
    assert _tokens(["gpu", "arm", "gpu"]) == ("arm", "gpu")
    assert _tokens({"gpu"}) == _tokens(("gpu",)) == _tokens(frozenset({"gpu"})) == ("gpu",)
    assert _tokens([]) == ()
    assert _tokens(["cuda>=12", "région:ü", "\U0001f986"]) == ("cuda>=12", "région:ü", "\U0001f986")


@pytest.mark.parametrize(
    "token",
    ["", " ", "a b", "a,b", "a\n", NUL, SURROGATE, RIGHT_TO_LEFT, "a" + JOINER, "\x7f", "\u00a0", None, 1, True,
     b"a", [], "x" * 10**6],
    ids=_shown,
)  # fmt: skip
def test_a_capability_is_printable_without_spaces_and_commas(token: Any) -> None:
    assert _refused(_tokens, ["ok", token]).code == "invalid_capabilities"


@pytest.mark.parametrize("odd", [None, True, 1, 1.5, "gpu", b"arm", object(), iter(["gpu"])], ids=_shown)
def test_capabilities_are_a_collection(odd: Any) -> None:
    assert _refused(_tokens, odd).code == "invalid_type"


@pytest.mark.parametrize(
    ("given_", "kept"),
    [(-1, 0), (0, 0), (1, 1), (8999, 8999), (9000, 9000), (9001, 9000), (2**64, 9000), (-(2**64), 0), (10**400, 9000)],
)
def test_a_priority_is_clamped(given_: int, kept: int) -> None:
    assert limits.priority(given_) == kept


@pytest.mark.parametrize("odd", [None, True, False, 1.0, 1.5, math.nan, "1", b"1", [], {}, object()], ids=_shown)
def test_a_priority_and_a_count_are_whole_numbers(odd: Any) -> None:
    assert _refused(limits.priority, odd).code == "invalid_type"
    assert _refused(lambda value: limits.whole(value, "limit", 0, 9), odd).code == "invalid_type"


def test_a_whole_number_has_both_bounds() -> None:
    assert [limits.whole(number, "n", 2, 4) for number in (2, 3, 4)] == [2, 3, 4]
    for bad in (1, 5, -1, 2**63, -(2**63) - 1, 10**5000):
        refused = _refused(lambda value: limits.whole(value, "n", 2, 4), bad)
        assert (refused.code, refused.fields["least"], refused.fields["most"]) == ("out_of_range", 2, 4)


@pytest.mark.parametrize(
    ("given_", "seconds"),
    [("30s", 30), ("15m", 900), ("2h", 7200), ("1d", 86400), ("500ms", 0.5), ("1.5h", 5400), ("0s", 0),
     ("0.000001s", 1e-6), (30, 30), (0.25, 0.25), (0, 0), (timedelta(minutes=1), 60), (1e-6, 1e-6),
     ("3650d", 3650 * 86400)],
)  # fmt: skip
def test_a_duration_is_a_timedelta_seconds_or_text(given_: Any, seconds: float) -> None:
    assert _span(given_) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "bad",
    ["", " ", "30", "s", "-5s", "+5s", "30 s", " 30s", "30s ", "30s\n", "30S", "1y", "1w", "1e3s", "nans", "infs",
     "1,5s", ".5s", "5.s", "1h30m", "0x1s", "1_0s", "\uff13\uff10s", "\u0663s", "30" + NUL + "s", SURROGATE,
     "9" * 13 + "s", "9" * 10**6 + "s", math.nan, math.inf, -math.inf],
    ids=_shown,
)  # fmt: skip
def test_any_other_duration_is_refused(bad: Any) -> None:
    assert _refused(_span, bad).code == "invalid_duration"


@pytest.mark.parametrize(
    "bad", [-1, -1e-6, -0.001, -TICK, timedelta(days=3650) + TICK, timedelta.max, timedelta.min, "3651d"], ids=_shown
)
def test_a_negative_or_absurd_duration_is_out_of_range(bad: Any) -> None:
    assert _refused(_span, bad).code == "out_of_range"


@pytest.mark.parametrize("bad", [1e13, 1e308, 2**63, 2**64, 10**400, -(10**400)], ids=_shown)
def test_a_number_of_seconds_beyond_reach_is_refused(bad: Any) -> None:
    assert _refused(_span, bad).code in ("invalid_duration", "out_of_range")


@pytest.mark.parametrize(
    "odd", [None, True, False, b"30s", [], {}, object(), datetime(2030, 1, 1, tzinfo=UTC)], ids=_shown
)
def test_a_duration_of_another_type_is_refused(odd: Any) -> None:
    assert _refused(_span, odd).code == "invalid_type"


@given(st.timedeltas(timedelta(0), timedelta(days=3650)))
def test_a_duration_survives_as_seconds(span: timedelta) -> None:
    assert _span(span) == span
    assert _span(span.total_seconds()) == span


def test_a_moment_is_an_aware_datetime_as_utc() -> None:
    berlin = datetime(2030, 7, 1, 14, tzinfo=ZoneInfo("Europe/Berlin"))
    assert _moment(berlin) == berlin
    assert _moment(berlin).tzinfo is UTC
    # The hour that happens twice, and the one that does not happen at all, each mean one moment.
    assert _moment(datetime(2030, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)).hour == 1
    assert _moment(datetime(2030, 3, 31, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))).hour == 1


def test_a_naive_datetime_is_refused() -> None:
    refused = _refused(_moment, datetime(2030, 1, 1))  # noqa: DTZ001
    assert refused.code == "naive_datetime"
    assert "UTC" in refused.message


def test_a_moment_lies_between_1970_and_9000() -> None:
    first, last = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
    assert _moment(first) == first
    assert _moment(last) == last
    far_east, far_west = timezone(timedelta(hours=14)), timezone(timedelta(hours=-14))
    for bad in (
        first - TICK, last + TICK, datetime(9999, 12, 31, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC),
        datetime(1, 1, 1, tzinfo=far_east), datetime(9999, 12, 31, 23, tzinfo=far_west),
    ):  # fmt: skip
        assert _refused(_moment, bad).code == "time_out_of_range"


@pytest.mark.parametrize(
    "odd", [None, True, 0, 1.5, 1893456000, "2030-01-01T00:00:00Z", [], {}, object(), timedelta(1)], ids=_shown
)
def test_a_moment_of_another_type_is_refused(odd: Any) -> None:
    assert _refused(_moment, odd).code == "invalid_type"


def test_names_are_distinct_and_in_order() -> None:
    assert limits.names(["b", "a", "b"], "lanes") == ("b", "a")
    assert _refused(lambda value: limits.names(value, "lanes"), []).code == "out_of_range"
    assert _refused(lambda value: limits.names(value, "lanes"), ["a", ""]).code == "invalid_name"


@pytest.mark.parametrize("odd", [None, True, 1, 1.5, "lane", b"bytes", object(), [None], [1], [[]]], ids=_shown)
def test_names_are_a_list_of_text(odd: Any) -> None:
    assert _refused(lambda value: limits.names(value, "lanes"), odd).code == "invalid_type"


@pytest.mark.parametrize(("value", "view"), [("a\x00b", r"'a\x00b'"), ("ü", r"'\xfc'"), (b"x", "b'x'"), (3, "int")])
def test_bad_input_is_shown_escaped(value: object, view: str) -> None:
    assert limits.shown(value) == view
    assert len(limits.shown("x" * 10**6)) == 62
