"""Tests for UUIDv7 ids: the layout of RFC 9562, strict order, placement keys and parsing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count, pairwise
from random import Random
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.ids import IdMinter, parse_id, parse_id_prefix, parse_new_id, placement_key
from flowfabric.engine import InvalidRequest

MS = 0x0123_4567_89AB
LARGEST_COUNTER = 2**42 - 1
TEXT = "01890a5d-ac96-774b-bcce-b302099a8057"


def _zeros(bits: int) -> int:
    return 0


def _ones(bits: int) -> int:
    return (1 << bits) - 1


def _make_minter(times: Iterable[int], random_bits: Callable[[int], int] = _zeros) -> IdMinter:
    clock = iter(times)
    return IdMinter(lambda: next(clock), random_bits)


def _read_time(id_: UUID) -> int:
    return id_.int >> 80


def _read_counter(id_: UUID) -> int:
    """Return the 12 bits after the version and the 30 bits after the variant."""
    return ((id_.int >> 64) & 0xFFF) << 30 | ((id_.int >> 32) & 0x3FFF_FFFF)


@pytest.mark.parametrize("bits", [_zeros, _ones])
def test_id_has_the_layout_of_rfc_9562(bits: Callable[[int], int]) -> None:
    id_ = _make_minter([MS], bits).mint()
    assert id_.bytes[:6] == MS.to_bytes(6, "big")
    assert id_.bytes[6] >> 4 == 7
    assert id_.bytes[8] >> 6 == 0b10
    assert (id_.version, id_.variant) == (7, RFC_4122)


def test_every_bit_without_a_fixed_value_is_used() -> None:
    low, high = _make_minter([MS]).mint(), _make_minter([MS], _ones).mint()
    differing = low.int ^ high.int
    fixed = (2**48 - 1) << 80 | 0xF << 76 | 0b11 << 62
    # The counter starts in the lower half of its range, so its highest bit (bit 75) is 0 in both ids.
    assert differing == (2**128 - 1) & ~fixed & ~(1 << 75)


def test_counter_restarts_every_millisecond_in_its_lower_half() -> None:
    minter = _make_minter([MS, MS, MS + 1], _ones)
    first, second, third = (minter.mint() for _ in range(3))
    assert [_read_counter(id_) for id_ in (first, second, third)] == [2**41 - 1, 2**41, 2**41 - 1]
    assert [_read_time(id_) for id_ in (first, second, third)] == [MS, MS, MS + 1]


@pytest.mark.parametrize("times", [[MS] * 50, list(range(MS + 50, MS, -1)), [MS, MS - 10_000_000, MS, MS + 1, MS]])
def test_ids_increase_while_the_clock_stops_or_goes_back(times: list[int]) -> None:
    minter = _make_minter(times)
    ids = [minter.mint() for _ in times]
    assert all(one < two for one, two in pairwise(ids))
    assert _read_time(ids[0]) == times[0], "the first id has the time of the clock"


@given(st.lists(st.integers(min_value=MS - 5, max_value=MS + 5), min_size=2, max_size=60), st.randoms())
def test_ids_increase_for_random_clocks_and_random_bits(times: list[int], rng: Random) -> None:
    minter = _make_minter(times, rng.getrandbits)
    ids = [minter.mint() for _ in times]
    assert all(one < two for one, two in pairwise(ids))
    assert all((id_.version, id_.variant) == (7, RFC_4122) for id_ in ids)


def test_a_full_counter_borrows_the_next_millisecond() -> None:
    def almost_full(bits: int) -> int:
        return LARGEST_COUNTER - 1 if bits > 32 else 0

    minter = _make_minter([MS] * 4 + [MS + 1], almost_full)
    ids = [minter.mint() for _ in range(5)]
    assert all(one < two for one, two in pairwise(ids))
    expected = [(MS, LARGEST_COUNTER - 1), (MS, LARGEST_COUNTER), (MS + 1, 0), (MS + 1, 1), (MS + 1, 2)]
    assert [(_read_time(id_), _read_counter(id_)) for id_ in ids] == expected


def test_threads_sharing_a_minter_get_distinct_ids(frequent_switching: None) -> None:
    inside: set[int] = set()
    overlaps: list[int] = []

    def random_bits(bits: int) -> int:
        """Record each time that another thread is also in this function. Loop for a while to make that likely."""
        if bits > 32:
            inside.add(threading.get_ident())
            for _ in range(200):
                overlaps.extend([len(inside)] if len(inside) > 1 else [])
            inside.discard(threading.get_ident())
        return 0

    minter = _make_minter(count(MS), random_bits)
    minted: list[list[UUID]] = [[] for _ in range(4)]
    _run_in_threads([partial(_mint_many, minter, into) for into in minted])
    assert overlaps == []
    assert len({id_ for into in minted for id_ in into}) == 4 * 500
    assert all(one < two for into in minted for one, two in pairwise(into))


@pytest.fixture
def frequent_switching() -> Iterator[None]:
    """Switch between threads as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def _mint_many(minter: IdMinter, into: list[UUID]) -> None:
    into.extend(minter.mint() for _ in range(500))


def _run_in_threads(calls: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@given(st.integers(min_value=0, max_value=0xFFFF))
def test_the_last_two_bytes_are_the_placement_key(key: int) -> None:
    minter = _make_minter([MS, MS])
    one, two = minter.mint(key), minter.mint(key)
    assert placement_key(one) == placement_key(two) == key
    assert one.bytes[14:] == key.to_bytes(2, "big")
    assert one < two


def test_placement_key_is_random_by_default() -> None:
    assert placement_key(_make_minter([MS], _ones).mint()) == 0xFFFF
    assert placement_key(_make_minter([MS], _zeros).mint()) == 0


@pytest.mark.parametrize("value", [UUID(TEXT), TEXT, TEXT.upper()])
def test_parse_id_accepts_a_uuid_or_its_text_in_either_case(value: object) -> None:
    assert parse_id(value) == UUID(TEXT)


INVALID_IDS = [
    None, True, 7, 1.5, [], {}, object(), b"", UUID(TEXT).bytes, "", "a" * 65, "../x", "%2e%2e", "a\x00b",
    TEXT[:-1], TEXT + "0", TEXT.replace("-", ""), "{" + TEXT + "}", "urn:uuid:" + TEXT, "{fp:70000}:" + TEXT,
    " " + TEXT[1:], TEXT[:-1] + "\n", TEXT[:-1] + "g", TEXT[:-1] + "\ud800", TEXT[:-1] + "\u202e",
    "'; DROP TABLE x; --", "<script>alert(1)</script>", "x" * 36, "x" * 1_000_000,
    # The constructor of UUID accepts these texts, but none of them is the text of an id.
    "urn:" + UUID(TEXT).hex, "{{" + UUID(TEXT).hex + "}}", "----" + UUID(TEXT).hex, TEXT[:-4] + "_" + TEXT[-3:],
    TEXT[:-1] + "\u0667", TEXT[:8] + TEXT[9:13] + "-" + TEXT[13:], "+" + TEXT[1:], "0x" + TEXT[2:],
]  # fmt: skip


@pytest.mark.parametrize("value", INVALID_IDS, ids=lambda value: ascii(value)[:40].split(" at 0x")[0])
def test_parse_id_rejects_anything_else(value: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_id(value, "execution")
    assert refused.value.code == "invalid_id"
    assert refused.value.fields["name"] == "execution"
    assert len(str(refused.value)) < 200


@given(st.uuids())
def test_parse_id_reads_the_text_of_every_uuid(id_: UUID) -> None:
    assert parse_id(str(id_)) == id_


@given(st.uuids(), st.integers(4, 36), st.booleans())
def test_start_of_an_id_gives_the_range_of_ids_that_start_so(id_: UUID, length: int, is_upper: bool) -> None:
    text = str(id_)[:length].upper() if is_upper else str(id_)[:length]
    first, last = parse_id_prefix(text)
    assert first <= id_ <= last
    assert str(first).startswith(text.lower()) and str(last).startswith(text.lower())
    for neighbour in (first.int - 1, last.int + 1):
        if 0 <= neighbour < 2**128:
            assert not str(UUID(int=neighbour)).startswith(text.lower())


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        b"019a",
        "",
        "019",
        "019g",
        "0-1-9-a",
        "019a_",
        "019a3f5c019a3f5c019a3f5c019a3f5c0",
        "-019a",
        "019a\u0667",
    ],
    ids=ascii,
)
def test_parse_id_prefix_rejects_anything_else(value: object) -> None:
    with pytest.raises(InvalidRequest, match="id must be an id, or the start of one") as refused:
        parse_id_prefix(value)
    assert refused.value.code == "invalid_id"


@pytest.mark.parametrize("id_", [UUID(int=0), UUID(int=2**128 - 1), str(UUID(int=0))])
def test_parse_new_id_rejects_the_nil_and_the_max_uuid(id_: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_new_id(id_)
    assert refused.value.code == "invalid_id"
    assert parse_new_id(TEXT) == UUID(TEXT)
