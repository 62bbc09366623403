"""Ids are UUIDv7 as RFC 9562 lays them out, strictly increasing in every weather, with their placement key."""

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

from flowfabric.core.ids import IdMinter, parse_id, parse_new_id, placement_key
from flowfabric.engine import InvalidRequest

MS = 0x0123_4567_89AB
LARGEST_COUNTER = 2**42 - 1
TEXT = "01890a5d-ac96-774b-bcce-b302099a8057"


def _zeros(bits: int) -> int:
    return 0


def _ones(bits: int) -> int:
    return (1 << bits) - 1


def _minter(times: Iterable[int], random_bits: Callable[[int], int] = _zeros) -> IdMinter:
    clock = iter(times)
    return IdMinter(lambda: next(clock), random_bits)


def _time_of(id_: UUID) -> int:
    return id_.int >> 80


def _counter_of(id_: UUID) -> int:
    """The 12 bits after the version and the 30 bits after the variant."""
    return ((id_.int >> 64) & 0xFFF) << 30 | ((id_.int >> 32) & 0x3FFF_FFFF)


@pytest.mark.parametrize("bits", [_zeros, _ones])
def test_an_id_has_the_layout_of_rfc_9562_whatever_the_random_bits(bits: Callable[[int], int]) -> None:
    id_ = _minter([MS], bits).mint()
    assert id_.bytes[:6] == MS.to_bytes(6, "big")
    assert id_.bytes[6] >> 4 == 7
    assert id_.bytes[8] >> 6 == 0b10
    assert (id_.version, id_.variant) == (7, RFC_4122)


def test_every_bit_that_is_not_fixed_is_used() -> None:
    low, high = _minter([MS]).mint(), _minter([MS], _ones).mint()
    differing = low.int ^ high.int
    fixed = (2**48 - 1) << 80 | 0xF << 76 | 0b11 << 62
    # The counter starts in the lower half, so its highest bit is free.
    assert differing == (2**128 - 1) & ~fixed & ~(1 << 75)


def test_the_counter_starts_anew_with_every_millisecond_and_leaves_room() -> None:
    minter = _minter([MS, MS, MS + 1], _ones)
    first, second, third = (minter.mint() for _ in range(3))
    assert [_counter_of(id_) for id_ in (first, second, third)] == [2**41 - 1, 2**41, 2**41 - 1]
    assert [_time_of(id_) for id_ in (first, second, third)] == [MS, MS, MS + 1]


@pytest.mark.parametrize("times", [[MS] * 50, list(range(MS + 50, MS, -1)), [MS, MS - 10_000_000, MS, MS + 1, MS]])
def test_ids_strictly_increase_under_a_standing_and_a_backward_clock(times: list[int]) -> None:
    minter = _minter(times)
    ids = [minter.mint() for _ in times]
    assert all(one < two for one, two in pairwise(ids))
    assert _time_of(ids[0]) == times[0], "the first id tells the time of the clock"


@given(st.lists(st.integers(min_value=MS - 5, max_value=MS + 5), min_size=2, max_size=60), st.randoms())
def test_ids_strictly_increase_whatever_the_clock_and_chance_do(times: list[int], chance: Random) -> None:
    minter = _minter(times, chance.getrandbits)
    ids = [minter.mint() for _ in times]
    assert all(one < two for one, two in pairwise(ids))
    assert all((id_.version, id_.variant) == (7, RFC_4122) for id_ in ids)


def test_a_full_counter_borrows_the_next_millisecond() -> None:
    def almost_full(bits: int) -> int:
        return LARGEST_COUNTER - 1 if bits > 32 else 0

    minter = _minter([MS] * 4 + [MS + 1], almost_full)
    ids = [minter.mint() for _ in range(5)]
    assert all(one < two for one, two in pairwise(ids))
    expected = [(MS, LARGEST_COUNTER - 1), (MS, LARGEST_COUNTER), (MS + 1, 0), (MS + 1, 1), (MS + 1, 2)]
    assert [(_time_of(id_), _counter_of(id_)) for id_ in ids] == expected


def test_threads_that_share_a_minter_never_get_the_same_id(quick_switching: None) -> None:
    inside: set[int] = set()
    together: list[int] = []

    def random_bits(bits: int) -> int:
        """Notes when two threads are at the counter at once, and gives them time to be."""
        if bits > 32:
            inside.add(threading.get_ident())
            for _ in range(200):
                together.extend([len(inside)] if len(inside) > 1 else [])
            inside.discard(threading.get_ident())
        return 0

    minter = _minter(count(MS), random_bits)
    minted: list[list[UUID]] = [[] for _ in range(4)]
    _at_once([partial(_mint_many, minter, into) for into in minted])
    assert together == []
    assert len({id_ for into in minted for id_ in into}) == 4 * 500
    assert all(one < two for into in minted for one, two in pairwise(into))


@pytest.fixture
def quick_switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def _mint_many(minter: IdMinter, into: list[UUID]) -> None:
    into.extend(minter.mint() for _ in range(500))


def _at_once(calls: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@given(st.integers(min_value=0, max_value=0xFFFF))
def test_the_last_two_bytes_are_the_placement_key(key: int) -> None:
    minter = _minter([MS, MS])
    one, two = minter.mint(key), minter.mint(key)
    assert placement_key(one) == placement_key(two) == key
    assert one.bytes[14:] == key.to_bytes(2, "big")
    assert one < two


def test_the_placement_key_is_random_unless_given() -> None:
    assert placement_key(_minter([MS], _ones).mint()) == 0xFFFF
    assert placement_key(_minter([MS], _zeros).mint()) == 0


@pytest.mark.parametrize("value", [UUID(TEXT), TEXT, TEXT.upper()])
def test_an_id_is_taken_as_uuid_or_as_its_text_in_either_case(value: object) -> None:
    assert parse_id(value) == UUID(TEXT)


NO_IDS = [
    None, True, 7, 1.5, [], {}, object(), b"", UUID(TEXT).bytes, "", "a" * 65, "../x", "%2e%2e", "a\x00b",
    TEXT[:-1], TEXT + "0", TEXT.replace("-", ""), "{" + TEXT + "}", "urn:uuid:" + TEXT, "{fp:70000}:" + TEXT,
    " " + TEXT[1:], TEXT[:-1] + "\n", TEXT[:-1] + "g", TEXT[:-1] + "\ud800", TEXT[:-1] + "\u202e",
    "'; DROP TABLE x; --", "<script>alert(1)</script>", "x" * 36, "x" * 1_000_000,
    # What the constructor of UUID would take, but is not the text of an id.
    "urn:" + UUID(TEXT).hex, "{{" + UUID(TEXT).hex + "}}", "----" + UUID(TEXT).hex, TEXT[:-4] + "_" + TEXT[-3:],
    TEXT[:-1] + "\u0667", TEXT[:8] + TEXT[9:13] + "-" + TEXT[13:], "+" + TEXT[1:], "0x" + TEXT[2:],
]  # fmt: skip


@pytest.mark.parametrize("value", NO_IDS, ids=lambda value: ascii(value)[:40].split(" at 0x")[0])
def test_anything_else_is_no_id(value: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_id(value, "execution")
    assert refused.value.code == "invalid_id"
    assert refused.value.fields["name"] == "execution"
    assert len(str(refused.value)) < 200


@given(st.uuids())
def test_every_text_of_a_uuid_is_read_back(id_: UUID) -> None:
    assert parse_id(str(id_)) == id_


@pytest.mark.parametrize("id_", [UUID(int=0), UUID(int=2**128 - 1), str(UUID(int=0))])
def test_the_nil_and_the_max_uuid_are_not_for_new_things(id_: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_new_id(id_)
    assert refused.value.code == "invalid_id"
    assert parse_new_id(TEXT) == UUID(TEXT)
