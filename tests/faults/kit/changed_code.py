"""A table of code changes: a program, the changed program, and how an execution must end that began with the first.

A program is a list of durable calls, which one task makes in order. `Z` is a sleep of an hour, at which the code
changes. Every effect has a label. A label may appear once only, whatever the change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flowfabric import (
    App,
    Signal,
    Task,
    changed,
    current,
    gather,
    now,
    poll,
    progress,
    race,
    settle,
    sleep,
    step,
    uuid4,
    wait_signal,
)

effects: dict[str, list[str]] = defaultdict(list)
Op = Callable[[], Awaitable[Any]]
COMPLETES, DIVERGES = "completed", "diverged"


def act(label: str, *_: object, **__: object) -> str:
    """Have an effect, which belongs to the kind of the execution."""
    effects[current().kind].append(label)
    return label


def act_for(kind: str, label: str) -> None:
    """Have an effect in a child of an execution of this kind."""
    effects[kind].append(label)


def S(label: str, *args: Any, name: str | None = None, key: str | None = None, **options: Any) -> Op:  # noqa: N802
    """Return a step with this effect. It is named after its effect, unless it has another name."""
    return lambda: step.options(name=name or label, key=key, **options)(act, label, *args)


def act_renamed(label: str) -> str:
    """Have an effect, as a function with another name."""
    return act(label)


def renamed_step(label: str) -> Op:
    """Return a step with the old name and another function."""
    return lambda: step.options(name=label)(act_renamed, label)


def act_in_transaction(_: Any, label: str) -> str:
    """Have an effect, as a function that gets a connection."""
    return act(label)


def Z() -> Awaitable[Any]:  # noqa: N802
    """Sleep for an hour."""
    return sleep("1h")


def nap(duration: str) -> Op:
    """Return another sleep."""
    return lambda: sleep(duration)


def G(*ops: Op, limit: int | None = None) -> Op:  # noqa: N802
    """Return a gather of calls."""
    return lambda: gather(*(op() for op in ops), limit=limit)


def A(*ops: Op) -> Op:  # noqa: N802
    """Return a settle of calls."""
    return lambda: settle(*(op() for op in ops))


def R(*ops: Op) -> Op:  # noqa: N802
    """Return a race of calls."""
    return lambda: race(*(op() for op in ops))


def made_first(group: Any, *ops: Op, order: Sequence[int]) -> Op:
    """Return a group of calls that are made in order, and passed to the group in another order."""

    def op() -> Awaitable[Any]:
        calls = [each() for each in ops]
        made: Awaitable[Any] = group(*(calls[index] for index in order))
        return made

    return op


def B(*ops: Op) -> Op:  # noqa: N802
    """Return a branch: a coroutine that makes these calls."""

    async def branch() -> None:
        for op in ops:
            await op()

    return branch


def renamed(*ops: Op) -> Op:
    """Return a branch whose function has another name."""

    async def other_branch() -> None:
        for op in ops:
            await op()

    return other_branch


def quick() -> Op:
    """Return a branch without durable calls."""

    async def quick_branch() -> str:
        return "quick"

    return quick_branch


def C(name: str, *ops: Op) -> Op:  # noqa: N802
    """Return calls behind `changed`."""

    async def guarded() -> None:
        if changed(name):
            for op in ops:
                await op()

    return guarded


def N(name: str, *ops: Op) -> Op:  # noqa: N802
    """Return calls that only old executions make."""

    async def guarded() -> None:
        if not changed(name):
            for op in ops:
                await op()

    return guarded


def plain(call: Callable[[], Any]) -> Op:
    """Return a call that needs no await."""

    async def op() -> None:
        call()

    return op


def W(name: str) -> Op:  # noqa: N802
    """Return a wait for a signal."""
    return lambda: wait_signal(Signal(name, int), timeout="2h")


def P(label: str) -> Op:  # noqa: N802
    """Return a poll with this effect."""
    return lambda: poll("1m", act, label)


def child(kind: str, *args: Any) -> Op:
    """Return a child that is awaited."""
    return lambda: _children[kind].run(current().kind, *args)


def T(label: str) -> Op:  # noqa: N802
    """Return a step in a transaction."""
    return lambda: step.options(name=label).tx(act_in_transaction, label)


_children: dict[str, Task[..., Any]] = {}


@dataclass(frozen=True)
class Change:
    """A change of code: the programs before and after, the end of the execution, and all its effects."""

    name: str
    before: Sequence[Op]
    after: Sequence[Op]
    end: str
    effects: str

    @property
    def kind(self) -> str:
        """The kind of the executions."""
        return self.name.replace(" ", "-").replace(",", "")


def change(name: str, before: Sequence[Op], after: Sequence[Op], end: str, effects: str) -> Change:
    """Return a row of the table."""
    return Change(name, before, after, end, effects)


_a, _b, _c = S("a"), S("b"), S("c")
CHANGES: tuple[Change, ...] = (
    change("nothing", [_a, Z, _b], [_a, Z, _b], COMPLETES, "ab"),
    change("a step at the end", [_a, Z], [_a, Z, _b], COMPLETES, "ab"),
    change("several calls at the end", [_a, Z], [_a, Z, G(_b, _c), nap("1s")], COMPLETES, "abc"),
    change("a step of the end removed", [_a, Z, _b], [_a, Z], COMPLETES, "a"),
    change("the end in another order", [_a, Z, _b, _c], [_a, Z, _c, _b], COMPLETES, "abc"),
    change("a longer sleep", [_a, Z, _b], [_a, nap("9h"), _b], COMPLETES, "ab"),
    change("a shorter sleep", [_a, Z, _b], [_a, nap("1s"), _b], COMPLETES, "ab"),
    change("other retries", [_a, Z], [S("a", retries=9), Z], COMPLETES, "a"),
    change("another timeout", [_a, Z], [S("a", timeout="9s"), Z], COMPLETES, "a"),
    change("a renamed function with its old name", [_a, Z], [renamed_step("a"), Z], COMPLETES, "a"),
    change("a new call behind changed, passed", [_a, Z, _b], [C("x", _c), _a, Z, _b], COMPLETES, "ab"),
    change("a new call behind changed, ahead", [_a, Z, _b], [_a, Z, C("x", _c), _b], COMPLETES, "abc"),
    change("two guards", [_a, Z], [_a, C("x", _b), Z, C("y", _c)], COMPLETES, "ac"),
    change("a guard in a branch", [G(B(_a, Z), B(_b))], [G(B(C("x", _c), _a, Z), B(_b))], COMPLETES, "ab"),
    change("a removed call behind changed, passed", [_a, _b, Z], [_a, N("x", _b), Z], COMPLETES, "ab"),
    change("a removed call behind changed, ahead", [_a, Z, _b], [_a, Z, N("x", _b)], COMPLETES, "a"),
    change("now, uuid4 and progress", [_a, Z], [plain(now), plain(uuid4), plain(lambda: progress(1)), _a, Z],
           COMPLETES, "a"),
    change("keyed calls in another order", [S("a", key="1"), S("b", key="1"), Z],
           [S("b", key="1"), S("a", key="1"), Z], COMPLETES, "ab"),
    change("a keyed call of another name", [_a, Z], [S("b", key="1"), _a, Z], COMPLETES, "ab"),
    change("a keyed call removed", [S("a", key="1"), _b, Z], [_b, Z], COMPLETES, "ab"),
    change("another key", [S("a", key="1"), Z], [S("b", name="a", key="2"), Z], COMPLETES, "ab"),
    change("a limit for a group", [G(_a, _b), Z], [G(_a, _b, limit=1), Z], COMPLETES, "ab"),
    change("a renamed branch", [G(B(_a), B(_b)), Z], [G(renamed(_a), B(_b)), Z], COMPLETES, "ab"),
    change("a renamed branch of a decided race", [R(quick(), B(Z)), Z], [R(B(), B(Z)), Z], COMPLETES, ""),
    change("a child at the end", [_a, Z], [_a, Z, child("child", "b")], COMPLETES, "ab"),
    change("a step at the beginning", [_a, Z], [_b, _a, Z], DIVERGES, "a"),
    change("a recorded step removed", [_a, _b, Z], [_b, Z], DIVERGES, "ab"),
    change("the last recorded step removed", [_a, _b, Z], [_a, Z], DIVERGES, "ab"),
    change("two steps swapped", [_a, _b, Z], [_b, _a, Z], DIVERGES, "ab"),
    change("a renamed step", [_a, Z], [S("a", name="x"), Z], DIVERGES, "a"),
    change("another argument", [S("a", 1), Z], [S("a", 2), Z], DIVERGES, "a"),
    change("one more argument", [_a, Z], [S("a", 2), Z], DIVERGES, "a"),
    change("another argument of a keyed call", [S("a", 1, key="1"), Z], [S("a", 2, key="1"), Z], DIVERGES, "a"),
    change("a key for a recorded step", [_a, Z], [S("a", key="1"), Z], DIVERGES, "a"),
    change("a key for the second step of a name", [_a, S("b", name="a"), Z], [_a, S("b", name="a", key="1"), Z],
           DIVERGES, "ab"),
    change("a step instead of the sleep", [_a, Z], [_a, _b], DIVERGES, "a"),
    change("the sleep removed", [_a, Z, _b], [_a], DIVERGES, "a"),
    change("a poll instead of a step", [_a, Z], [P("a"), Z], DIVERGES, "a"),
    change("a transaction instead of a step", [_a, Z], [T("a"), Z], DIVERGES, "a"),
    change("settle instead of gather", [G(_a, _b), Z], [A(_a, _b), Z], DIVERGES, "ab"),
    change("race instead of gather", [G(_a, _b), Z], [R(_a, _b), Z], DIVERGES, "ab"),
    change("a member of a group removed", [G(_a, _b), Z], [G(_a), Z], DIVERGES, "ab"),
    change("a member of a group added", [G(_a), Z], [G(_a, _b), Z], DIVERGES, "a"),
    change("a call of a branch removed", [G(B(_a, _b), B(_c)), Z], [G(B(_a), B(_c)), Z], DIVERGES, "abc"),
    change("a call at the beginning of a branch", [G(B(_a), B(_b)), Z], [G(B(_c, _a), B(_b)), Z], DIVERGES, "ab"),
    change("the members of a decided race swapped", [made_first(race, _a, nap("9h"), order=(0, 1)), Z],
           [made_first(race, _a, nap("9h"), order=(1, 0)), Z], DIVERGES, "a"),
    change("the branches of a decided race swapped", [R(quick(), B(nap("9h"))), Z], [R(B(nap("9h")), quick()), Z],
           DIVERGES, ""),
    change("a member of a decided race removed", [R(quick(), B(nap("9h"))), Z], [R(quick()), Z], DIVERGES, ""),
    change("another child", [child("child", "a"), Z], [child("other_child", "b"), Z], DIVERGES, "a"),
    change("another argument of a child", [child("child", "a"), Z], [child("child", "b"), Z], DIVERGES, "a"),
    change("another signal", [_a, W("go")], [_a, W("stop")], DIVERGES, "a"),
    change("a step instead of a wait", [_a, W("go")], [_a, _b], DIVERGES, "a"),
    change("fewer turns of a loop", [_a, *(S(x, name="turn") for x in "bcd"), Z],
           [_a, *(S(x, name="turn") for x in "bc"), Z], DIVERGES, "abcd"),
    change("more turns of a loop", [*(S(x, name="turn") for x in "ab"), Z], [*(S(x, name="turn") for x in "abc"), Z],
           DIVERGES, "ab"),
)  # fmt: skip


def make_app(address: str, options: Any, *, is_changed: bool) -> tuple[App, dict[str, Task[[], None]]]:
    """Return an app with a task for each change, before or after the change."""
    app = App(address, options=options)
    tasks = {each.name: _register(app, each, is_changed=is_changed) for each in CHANGES}

    @app.task(name="child")
    async def a_child(parent: str, label: str) -> None:
        await step(act_for, parent, label)

    @app.task(name="other_child")
    async def another_child(parent: str, label: str) -> None:
        await step(act_for, parent, label)

    _children.update({"child": a_child, "other_child": another_child})
    return app, tasks


def _register(app: App, each: Change, *, is_changed: bool) -> Task[[], None]:
    @app.task(name=each.kind, retries=0)
    async def program() -> None:
        for op in each.after if is_changed else each.before:
            await op()

    return program
