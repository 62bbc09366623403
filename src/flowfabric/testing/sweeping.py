"""A program run again and again, each time with something going wrong at another record; it must come to the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias

from flowfabric.sdk.aliases import T
from flowfabric.sdk.app import App
from flowfabric.testing.kit import Kit
from flowfabric.testing.watching import Crash, Moment, Replay, Seen

MakeKit: TypeAlias = Callable[[Replay | None], Kit]
Program: TypeAlias = Callable[[Kit], Awaitable[T]]
_REPLAYS: tuple[Replay, ...] = ("suspensions", "every record")
_MOMENTS: tuple[Moment, ...] = ("after", "before")


@dataclass(frozen=True, slots=True)
class Swept(Generic[T]):
    """What the program came to every time, its effects in order if nothing went wrong, and how many crashes it was put
    through."""

    result: T
    effects: tuple[Any, ...]
    crashes: int


async def sweep(make: App | MakeKit, program: Program[T], *, effects: list[Any] | None = None) -> Swept[T]:
    """Runs the program plainly, with forced replays, and with a crash after and before every record, and compares.

    `make` is an app, or a function that makes a kit with the replay that it is given. The program drives the kit and
    answers something that can be compared. It must answer the same every time, and no step may be called more often,
    but for those that a crash interrupted. `effects` is a list that the steps add to; it is emptied before each run,
    and compared likewise.
    """
    plain = await _run(make, program, effects, "plainly", None, None)
    happened = tuple(effects or ())
    for replay in _REPLAYS:
        found = await _run(make, program, effects, f"with replay at {replay}", replay, None)
        _compare(plain, found)
    crashes = 0
    for moment in _MOMENTS:
        for number in range(plain.told[moment]):
            crash = Crash(moment, number=number)
            found = await _run(make, program, effects, f"with {crash}", None, crash)
            _compare(plain, found)
            crashes += found.has_crashed
    return Swept(plain.result, happened, crashes)


@dataclass(frozen=True, slots=True)
class _Found(Generic[T]):
    how: str
    result: T
    performed: Counter[Seen]
    interrupted: Counter[Seen]
    effects: Counter[str]
    told: dict[Literal["before", "after"], int]
    has_crashed: bool


async def _run(
    make: App | MakeKit, program: Program[T], effects: list[Any] | None, how: str, replay: Replay | None,
    crash: Crash | None,
) -> _Found[T]:  # fmt: skip
    if effects is not None:
        effects.clear()
    kit = Kit(make, replay=replay) if isinstance(make, App) else make(replay)
    if crash is not None:
        kit.watch.crashes.append(crash)
    try:
        async with kit:
            result = await program(kit)
            has_crashed = crash is not None and not kit.watch.crashes
            # What runs side by side need not come to as many records again; a crash that did not come is not counted.
            kit.watch.crashes.clear()
    except Exception as error:
        error.add_note(f"while the program was run {how}")
        raise
    watch = kit.watch
    return _Found(
        how, result, Counter(watch.performed), watch.interrupted, Counter(map(repr, effects or ())), dict(watch.told),
        has_crashed,
    )  # fmt: skip


def _compare(plain: _Found[Any], found: _Found[Any]) -> None:
    assert found.result == plain.result, f"{found.how} it came to {found.result!r} instead of {plain.result!r}"
    lost, more = plain.performed - found.performed, found.performed - plain.performed
    assert not lost, f"{found.how} these steps were never called: {_shown(lost)}"
    repeated = more - found.interrupted
    assert not repeated, f"{found.how} these steps were called again: {_shown(repeated)}"
    missing, extra = plain.effects - found.effects, found.effects - plain.effects
    assert not missing, f"{found.how} these effects never happened: {dict(missing)}"
    assert extra.total() <= more.total(), f"{found.how} these effects happened again: {dict(extra)}"


def _shown(steps: Counter[Seen]) -> str:
    return ", ".join(f"{seen.path} of {seen.kind}" for seen in steps)
