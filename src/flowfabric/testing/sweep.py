"""Sweeps, which run a program with a crash at every record and check that the result stays the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias

from flowfabric.app.app import App
from flowfabric.testing.hooks import Crash, KitHooks, Moment, ObservedRun, Replay
from flowfabric.testing.kit import Kit
from flowfabric.values.aliases import T

MakeKit: TypeAlias = Callable[[Replay | None], Kit]
Program: TypeAlias = Callable[[Kit], Awaitable[T]]
_REPLAYS: tuple[Replay, ...] = ("suspensions", "every record")
_MOMENTS: tuple[Moment, ...] = ("after", "before")


@dataclass(frozen=True, slots=True)
class SweepResult(Generic[T]):
    """The outcome of a sweep.

    `result` is the value that every run returned, `effects` are the effects of the run without crashes in their order,
    and `crashes` is the number of crashes.
    """

    result: T
    effects: tuple[Any, ...]
    crashes: int


async def sweep(make: App | MakeKit, program: Program[T], *, effects: list[Any] | None = None) -> SweepResult[T]:
    """Run the program without crashes, with forced replays, and with a crash before and after each record; compare all.

    `make` is an app, or a function that takes the `replay` argument of `Kit` and returns a kit. The program drives the
    kit and must return an equal value in every run. A step may be called again only if a crash interrupted it.
    `effects` is a list that the steps append to. It is cleared before each run, and no effect may be missing. Extra
    effects are allowed only for repeated steps. If a run breaks one of these rules, `sweep` raises `AssertionError`.
    """
    plain = await _run(make, program, effects, "without replays or crashes", None, None)
    plain_effects = tuple(effects or ())
    for replay in _REPLAYS:
        run = await _run(make, program, effects, f"with replay at {replay}", replay, None)
        _compare(plain, run)
    crashes = 0
    for moment in _MOMENTS:
        for number in range(plain.hooks.record_counts[moment]):
            crash = Crash(moment, number=number)
            run = await _run(make, program, effects, f"with {crash}", None, crash)
            _compare(plain, run)
            crashes += run.has_crashed
    return SweepResult(plain.result, plain_effects, crashes)


@dataclass(frozen=True, slots=True)
class _ProgramRun(Generic[T]):
    label: str
    result: T
    hooks: KitHooks
    effects: Counter[str]
    has_crashed: bool


async def _run(
    make: App | MakeKit,
    program: Program[T],
    effects: list[Any] | None,
    label: str,
    replay: Replay | None,
    crash: Crash | None,
) -> _ProgramRun[T]:
    if effects is not None:
        effects.clear()
    kit = Kit(make, replay=replay) if isinstance(make, App) else make(replay)
    if crash is not None:
        kit.hooks.crashes.append(crash)
    try:
        async with kit:
            result = await program(kit)
            has_crashed = crash is not None and not kit.hooks.crashes
            # Concurrent executions may write fewer records than in the run without crashes. So it is no error if a
            # planned crash does not happen.
            kit.hooks.crashes.clear()
    except Exception as error:
        error.add_note(f"while the program ran {label}")
        raise
    return _ProgramRun(label, result, kit.hooks, Counter(map(repr, effects or ())), has_crashed)


def _compare(plain: _ProgramRun[Any], run: _ProgramRun[Any]) -> None:
    assert run.result == plain.result, f"{run.label}, the program returned {run.result!r} instead of {plain.result!r}"
    expected, called = Counter(plain.hooks.steps), Counter(run.hooks.steps)
    lost, more = expected - called, called - expected
    assert not lost, f"{run.label}, these steps were never called: {_join_steps(lost)}"
    repeated = more - run.hooks.interrupted
    assert not repeated, f"{run.label}, these steps were called again: {_join_steps(repeated)}"
    missing, extra = plain.effects - run.effects, run.effects - plain.effects
    assert not missing, f"{run.label}, these effects never happened: {dict(missing)}"
    assert extra.total() <= more.total(), f"{run.label}, these effects happened again: {dict(extra)}"


def _join_steps(steps: Counter[ObservedRun]) -> str:
    return ", ".join(f"{step.path} of {step.kind}" for step in steps)
