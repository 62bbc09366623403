"""Tests that every limit holds at its bound and that invalid input is rejected with a code and the limit."""

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

from flowfabric.core import validation as limits
from flowfabric.engine import InvalidRequest

MIB = 1024 * 1024
NUL, SURROGATE, RIGHT_TO_LEFT, JOINER = "\x00", "\ud800", "\u202e", "\u200d"
OTHER_TYPES: list[Any] = [None, True, 1, 1.5, [], {}, object(), b"x"]
TICK = timedelta(microseconds=1)


def _format_case(value: object) -> str:
    """Return the name of a test case. It contains no memory address, so it is the same in every process."""
    return re.sub(" at 0x[0-9a-f]+", "", ascii(value))[:60]


def _catch_error(check: Callable[[Any], object], value: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        check(value)
    assert len(str(refused.value)) < 400, "error messages never repeat long input"
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


def _timestamp(value: Any) -> datetime:
    return limits.timestamp(value, "ready_at")


def _many_tags(count: int) -> dict[str, str]:
    return {f"t.k{number}": "v" for number in range(count)}


def _many_tokens(count: int) -> list[str]:
    return [f"t{number}" for number in range(count)]


# For each value: a function that builds it in size n, its check, its limit, and the error code above the limit.
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
def test_size_beyond_its_limit_is_rejected_with_the_limit(what: str) -> None:
    make, check, limit, code = SIZED[what]
    check(make(limit - 1))
    check(make(limit))
    refused = _catch_error(check, make(limit + 1))
    assert refused.code == code
    assert str(limit) in refused.message
    assert limit in refused.fields.values()


def test_limits_have_their_documented_values() -> None:
    assert limits.MAX_PAYLOAD_BYTES == MIB
    assert limits.MAX_STEPS == 10_000
    assert limits.MAX_NAME_CHARACTERS == 256
    assert (limits.MAX_TAGS, limits.MAX_TAG_VALUE_BYTES) == (64, 1024)
    assert limits.MAX_CAPABILITIES == 256
    assert limits.MAX_PRIORITY == 9000
    assert limits.MAX_BATCH == 1000
    assert timedelta(seconds=1) == limits.MIN_LEASE_TTL


def test_256_capabilities_of_ordinary_length_are_allowed() -> None:
    assert len(_tokens([f"region-{number:03d}" for number in range(256)])) == 256


@pytest.mark.parametrize(
    "good", ["x", "a b", "Grüße", "日本語", "\U0001f986", "e\u0301", "'; DROP TABLE x; --", "<b>", "%s\\"]
)
def test_printable_name_is_kept_unchanged(good: str) -> None:
    assert _name(good) == good


@pytest.mark.parametrize(
    "bad",
    [
        "",
        " ",
        " a",
        "a ",
        "a\n",
        "\ta",
        "a\tb",
        "a\r\nb",
        NUL,
        "a" + NUL + "b",
        SURROGATE,
        "a\udfff",
        RIGHT_TO_LEFT + "a",
        "a" + JOINER + "b",
        "\u00a0",
        "a\u2028b",
        "\x7f",
        "\ufeff",
        "\u00ad",
        "\U000e0001",
        "x" * 10**6,
    ],
    ids=_format_case,
)
def test_empty_padded_or_unprintable_name_is_rejected(bad: str) -> None:
    refused = _catch_error(_name, bad)
    assert refused.code == "invalid_name"
    assert refused.fields["field"] == "kind"


@pytest.mark.parametrize("odd", OTHER_TYPES, ids=_format_case)
def test_name_and_text_must_be_strings(odd: Any) -> None:
    for check in (_name, _text):
        assert _catch_error(check, odd).code == "invalid_type"
        assert _catch_error(check, odd).fields["got"] == type(odd).__name__


@pytest.mark.parametrize("good", ["", " ", "two\nlines", RIGHT_TO_LEFT, JOINER, "\x01", "\x7f", "\ufffe", "\U0010ffff"])
def test_text_may_contain_all_storable_characters(good: str) -> None:
    assert _text(good) == good


@pytest.mark.parametrize("bad", [NUL, "a" + NUL, SURROGATE, "a\udc00b", "\udcff" * 10**6], ids=_format_case)
def test_text_with_nul_or_lone_surrogate_is_rejected(bad: str) -> None:
    assert _catch_error(_text, bad).code == "invalid_text"


def test_text_is_limited_in_bytes() -> None:
    assert _text("x" * limits.MAX_TEXT_BYTES)
    assert _catch_error(_text, "ü" * limits.MAX_TEXT_BYTES).code == "payload_too_large"
    assert _catch_error(_text, "x" * (limits.MAX_TEXT_BYTES + 1)).fields["limit"] == limits.MAX_TEXT_BYTES


@pytest.mark.parametrize(
    "odd", [None, True, 1, 1.5, "text", [], {}, bytearray(b"x"), memoryview(b"x"), object()], ids=_format_case
)
def test_payload_must_be_bytes(odd: Any) -> None:
    assert _catch_error(_payload, odd).code == "invalid_type"


def test_tags_are_sorted_and_may_have_empty_values() -> None:
    assert list(limits.tags({"b.x": "2", "a.x": ""}).items()) == [("a.x", ""), ("b.x", "2")]
    assert limits.tags({}) == {}


@pytest.mark.parametrize(
    "good", ["a", "customer", "a_1", "a.b", "team.owner", "a_1.b_2", "a.0", "a._", "a.b.c", "a.b..c"]
)
def test_a_tag_key_is_a_word_or_has_a_namespace_and_a_name(good: str) -> None:
    assert limits.tag_key(good) == good


@pytest.mark.parametrize(
    "bad",
    [
        "",
        ".a",
        "A",
        "1a",
        "a-b",
        "a.",
        "a..b",
        "A.b",
        "a.B",
        "1.b",
        "_a.b",
        "a b.c",
        "a.b\n",
        "a.b" + NUL,
        "a.ü",
        "ü.a",
        "a-b.c",
        SURROGATE + ".a",
        "a.\u0661",
        None,
        1,
        True,
        1.5,
        b"a.b",
        (),
        "a." + "x" * 10**6,
    ],
    ids=_format_case,
)
def test_invalid_tag_key_is_rejected(bad: Any) -> None:
    assert _catch_error(limits.tag_key, bad).code == "invalid_tag_key"
    assert _catch_error(limits.tags, {bad: "v"}).code == "invalid_tag_key"


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (NUL, "invalid_text"),
        (SURROGATE, "invalid_text"),
        (None, "invalid_type"),
        (1, "invalid_type"),
        (True, "invalid_type"),
        (b"v", "invalid_type"),
        ([], "invalid_type"),
    ],
)
def test_tag_value_must_be_storable_text(bad: Any, code: str) -> None:
    assert _catch_error(limits.tags, {"a.b": bad}).code == code


@pytest.mark.parametrize("odd", [None, True, 1, 1.5, "a.b", [], [("a.b", "c")], object()], ids=_format_case)
def test_tags_must_be_a_mapping(odd: Any) -> None:
    assert _catch_error(limits.tags, odd).code == "invalid_type"


def test_capabilities_are_sorted_and_distinct() -> None:
    assert _tokens(["gpu", "arm", "gpu"]) == ("arm", "gpu")
    assert _tokens({"gpu"}) == _tokens(("gpu",)) == _tokens(frozenset({"gpu"})) == ("gpu",)
    assert _tokens([]) == ()
    assert _tokens(["cuda>=12", "région:ü", "\U0001f986"]) == ("cuda>=12", "région:ü", "\U0001f986")


@pytest.mark.parametrize(
    "token",
    [
        "",
        " ",
        "a b",
        "a,b",
        "a\n",
        NUL,
        SURROGATE,
        RIGHT_TO_LEFT,
        "a" + JOINER,
        "\x7f",
        "\u00a0",
        None,
        1,
        True,
        b"a",
        [],
        "x" * 10**6,
    ],
    ids=_format_case,
)
def test_invalid_capability_is_rejected(token: Any) -> None:
    assert _catch_error(_tokens, ["ok", token]).code == "invalid_capabilities"


@pytest.mark.parametrize("odd", [None, True, 1, 1.5, "gpu", b"arm", object(), iter(["gpu"])], ids=_format_case)
def test_capabilities_must_be_a_collection(odd: Any) -> None:
    assert _catch_error(_tokens, odd).code == "invalid_type"


@pytest.mark.parametrize(
    ("value", "priority"),
    [(-1, 0), (0, 0), (1, 1), (8999, 8999), (9000, 9000), (9001, 9000), (2**64, 9000), (-(2**64), 0), (10**400, 9000)],
)
def test_a_priority_is_clamped(value: int, priority: int) -> None:
    assert limits.priority(value) == priority


@pytest.mark.parametrize("odd", [None, True, False, 1.0, 1.5, math.nan, "1", b"1", [], {}, object()], ids=_format_case)
def test_priority_and_count_must_be_integers(odd: Any) -> None:
    assert _catch_error(limits.priority, odd).code == "invalid_type"
    assert _catch_error(lambda value: limits.integer(value, "limit", 0, 9), odd).code == "invalid_type"


def test_integer_is_checked_against_both_bounds() -> None:
    assert [limits.integer(number, "n", 2, 4) for number in (2, 3, 4)] == [2, 3, 4]
    for bad in (1, 5, -1, 2**63, -(2**63) - 1, 10**5000):
        refused = _catch_error(lambda value: limits.integer(value, "n", 2, 4), bad)
        assert (refused.code, refused.fields["minimum"], refused.fields["maximum"]) == ("out_of_range", 2, 4)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("30s", 30),
        ("15m", 900),
        ("2h", 7200),
        ("1d", 86400),
        ("1w", 7 * 86400),
        ("1h30m", 5400),
        ("1w2d3h4m5s6ms", 9 * 86400 + 3 * 3600 + 4 * 60 + 5.006),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("0s", 0),
        ("0.000001s", 1e-6),
        (30, 30),
        (0.25, 0.25),
        (0, 0),
        (timedelta(minutes=1), 60),
        (1e-6, 1e-6),
        ("3650d", 3650 * 86400),
    ],
)
def test_a_duration_is_a_timedelta_seconds_or_text(value: Any, seconds: float) -> None:
    assert _span(value) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        " ",
        "30",
        "s",
        "-5s",
        "+5s",
        "30 s",
        " 30s",
        "30s ",
        "30s\n",
        "30S",
        "1y",
        "1W",
        "30m1h",
        "1h1h",
        "1h 30m",
        "1h30",
        "1e3s",
        "nans",
        "infs",
        "1,5s",
        ".5s",
        "5.s",
        "0x1s",
        "1_0s",
        "\uff13\uff10s",
        "\u0663s",
        "30" + NUL + "s",
        SURROGATE,
        "9" * 13 + "s",
        "9" * 10**6 + "s",
        math.nan,
        math.inf,
        -math.inf,
    ],
    ids=_format_case,
)
def test_invalid_duration_is_rejected(bad: Any) -> None:
    assert _catch_error(_span, bad).code == "invalid_duration"


@pytest.mark.parametrize(
    "bad",
    [-1, -1e-6, -0.001, -TICK, timedelta(days=3650) + TICK, timedelta.max, timedelta.min, "3651d"],
    ids=_format_case,
)
def test_negative_or_too_long_duration_is_out_of_range(bad: Any) -> None:
    assert _catch_error(_span, bad).code == "out_of_range"


@pytest.mark.parametrize("bad", [1e13, 1e308, 2**63, 2**64, 10**400, -(10**400)], ids=_format_case)
def test_huge_number_of_seconds_is_rejected(bad: Any) -> None:
    assert _catch_error(_span, bad).code in ("invalid_duration", "out_of_range")


@pytest.mark.parametrize(
    "odd", [None, True, False, b"30s", [], {}, object(), datetime(2030, 1, 1, tzinfo=UTC)], ids=_format_case
)
def test_duration_of_another_type_is_rejected(odd: Any) -> None:
    assert _catch_error(_span, odd).code == "invalid_type"


@given(st.timedeltas(timedelta(0), timedelta(days=3650)))
def test_duration_survives_conversion_to_seconds(span: timedelta) -> None:
    assert _span(span) == span
    assert _span(span.total_seconds()) == span


def test_timestamp_is_converted_to_utc() -> None:
    berlin = datetime(2030, 7, 1, 14, tzinfo=ZoneInfo("Europe/Berlin"))
    assert _timestamp(berlin) == berlin
    assert _timestamp(berlin).tzinfo is UTC
    # The hour that occurs twice in autumn and the hour that is skipped in spring are converted too.
    assert _timestamp(datetime(2030, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)).hour == 1
    assert _timestamp(datetime(2030, 3, 31, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))).hour == 1


def test_naive_datetime_is_rejected() -> None:
    refused = _catch_error(_timestamp, datetime(2030, 1, 1))  # noqa: DTZ001
    assert refused.code == "naive_datetime"
    assert "UTC" in refused.message


def test_timestamp_is_between_1970_and_9000() -> None:
    first, last = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
    assert _timestamp(first) == first
    assert _timestamp(last) == last
    far_east, far_west = timezone(timedelta(hours=14)), timezone(timedelta(hours=-14))
    for bad in (
        first - TICK,
        last + TICK,
        datetime(9999, 12, 31, tzinfo=UTC),
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1, 1, 1, tzinfo=far_east),
        datetime(9999, 12, 31, 23, tzinfo=far_west),
    ):
        assert _catch_error(_timestamp, bad).code == "time_out_of_range"


@pytest.mark.parametrize(
    "odd", [None, True, 0, 1.5, 1893456000, "2030-01-01T00:00:00Z", [], {}, object(), timedelta(1)], ids=_format_case
)
def test_timestamp_of_another_type_is_rejected(odd: Any) -> None:
    assert _catch_error(_timestamp, odd).code == "invalid_type"


def test_names_are_distinct_and_keep_their_order() -> None:
    assert limits.names(["b", "a", "b"], "lanes") == ("b", "a")
    assert _catch_error(lambda value: limits.names(value, "lanes"), []).code == "out_of_range"
    assert _catch_error(lambda value: limits.names(value, "lanes"), ["a", ""]).code == "invalid_name"


@pytest.mark.parametrize("odd", [None, True, 1, 1.5, "lane", b"bytes", object(), [None], [1], [[]]], ids=_format_case)
def test_names_must_be_a_list_of_strings(odd: Any) -> None:
    assert _catch_error(lambda value: limits.names(value, "lanes"), odd).code == "invalid_type"


@pytest.mark.parametrize(("value", "preview"), [("a\x00b", r"'a\x00b'"), ("ü", r"'\xfc'"), (b"x", "b'x'"), (3, "int")])
def test_preview_escapes_and_shortens_input(value: object, preview: str) -> None:
    assert limits.preview(value) == preview
    assert len(limits.preview("x" * 10**6)) == 62
