"""Durable calls for plain functions. Written by tools/generate_sync.py; change what it reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable
from datetime import datetime
from random import Random
from typing import Any, Concatenate, Generic, TypeVar, overload
from uuid import UUID

from typing_extensions import TypeForm

from flowfabric.core.conditions import Condition
from flowfabric.sdk import ambient, approvals, bridge, groups, sleeping, steps, waits
from flowfabric.sdk.aliases import Async, Duration, P, T
from flowfabric.sdk.approvals import Ends, Notify
from flowfabric.sdk.records import Approved, Completed, Failed, Met, Received, Rejected, TimedOut, Winner
from flowfabric.sdk.signals import Signal

R_co = TypeVar("R_co", covariant=True)

T1 = TypeVar("T1")

T2 = TypeVar("T2")

T3 = TypeVar("T3")

T4 = TypeVar("T4")

F = TypeVar("F", bound=Callable[..., Any])


class Approval(Generic[R_co]):
    """An approval that was asked for: `wait`, and before that, if wanted, hand out its tokens or links."""

    def __init__(self, inner: approvals.Approval[R_co]) -> None:
        self._inner = inner

    def wait(self) -> R_co:
        """Waits for the outcome."""
        outcome: R_co = bridge.call(lambda: self._inner)
        return outcome

    def tokens(self) -> dict[str, str]:
        """The token of each approver. Whoever has it decides for that approver."""
        return bridge.call(self._inner.tokens)

    def links(self) -> dict[str, str]:
        """The page of each approver where they decide; needs `App(url=…)`."""
        return bridge.call(self._inner.links)


class Callback(Generic[R_co]):
    """A callback that was made: hand out its token or url, then `wait`."""

    def __init__(self, inner: approvals.Callback[R_co]) -> None:
        self._inner = inner

    def wait(self) -> R_co:
        """Waits for the outcome."""
        outcome: R_co = bridge.call(lambda: self._inner)
        return outcome

    def token(self) -> str:
        """What whoever answers needs."""
        return bridge.call(self._inner.token)

    def url(self) -> str:
        """The address to answer at; needs `App(url=…)`."""
        return bridge.call(self._inner.url)


class Steps:
    """What `step` is: call it with a function and its arguments."""

    def __init__(self, inner: steps.Steps) -> None:
        self._inner = inner

    @overload
    def __call__(self, fn: Async[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    @overload
    def __call__(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    def __call__(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls the function once: its result is recorded, and answers in every later run."""
        return bridge.call(lambda: self._inner(fn, *args, **kwargs))

    @overload
    def tx(
        self, fn: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    def tx(self, fn: Callable[Concatenate[Any, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    def tx(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls the function with the store's own connection: its rows and the record commit together, or neither.

        On SQLite it is a plain function of the `sqlite3` connection, on PostgreSQL a coroutine function of the asyncpg
        one. Keep it short: others wait for it.
        """
        return bridge.call(lambda: self._inner.tx(fn, *args, **kwargs))

    def options(
        self,
        *,
        name: str | None = None,
        key: str | None = None,
        retries: int | None = None,
        timeout: Duration | None = None,
        retry_on: Collection[str | type[Exception]] | None = None,
    ) -> Steps:
        """The same for one call: under another name, told apart by a key, tried otherwise."""
        return Steps(self._inner.options(name=name, key=key, retries=retries, timeout=timeout, retry_on=retry_on))

    def policy(
        self,
        *,
        name: str | None = None,
        retries: int | None = None,
        timeout: Duration | None = None,
        raises: Collection[type[Exception]] = (),
        at_most_once: bool = False,
        retry_on: Collection[str | type[Exception]] | None = None,
    ) -> Callable[[F], F]:
        """Decorates a function with how it is tried as a step; it stays a plain function.

        `raises` names its answers that are no accidents: they are never retried, and can be caught by class. With
        `at_most_once` a step that was interrupted is not run again, but fails. If `retry_on` names categories or
        classes of failures, only those are retried.
        """
        return self._inner.policy(
            name=name, retries=retries, timeout=timeout, raises=raises, at_most_once=at_most_once, retry_on=retry_on
        )


step = Steps(steps.step)


def sleep(duration: Duration, /) -> None:
    """Goes on after this long. The time is set when it is first awaited, and does not change after that."""
    return bridge.call(lambda: sleeping.sleep(duration))


def sleep_until(when: datetime, /) -> None:
    """Goes on at this time."""
    return bridge.call(lambda: sleeping.sleep_until(when))


@overload
def poll(every: Duration, fn: Async[P, T | None], /, *args: P.args, **kwargs: P.kwargs) -> T: ...


@overload
def poll(every: Duration, fn: Callable[P, T | None], /, *args: P.args, **kwargs: P.kwargs) -> T: ...


def poll(every: Duration, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Asks the function now and then every so often, until it answers something else than None or False. However often
    it asks, there is one record."""
    make: Any = sleeping.poll
    return bridge.call(lambda: make(every, fn, *args, **kwargs))


@overload
def wait_signal(signal: Signal[T], /, *, timeout: None = None) -> Received[T]: ...


@overload
def wait_signal(signal: Signal[T], /, *, timeout: Duration) -> Received[T] | TimedOut: ...


def wait_signal(signal: Signal[T], /, *, timeout: Duration | None = None) -> Any:
    """Waits for the next signal of this name. One that the task declares is kept from the submit on until it is
    awaited; another is accepted only while it is awaited."""
    make: Any = waits.wait_signal
    return bridge.call(lambda: make(signal, timeout=timeout))


@overload
def wait_for(condition: Condition, /, *, timeout: None = None) -> Met: ...


@overload
def wait_for(condition: Condition, /, *, timeout: Duration) -> Met | TimedOut: ...


def wait_for(condition: Condition, /, *, timeout: Duration | None = None) -> Any:
    """Waits until signals satisfy a condition of the engine. Its waitpoints are the signals that the task declares, by
    name, and others that are open while they are awaited."""
    make: Any = waits.wait_for
    return bridge.call(lambda: make(condition, timeout=timeout))


@overload
def approval(
    name: str,
    /,
    *,
    by: str | Iterable[str] | None = None,
    need: int | None = None,
    veto: bool = True,
    notify: Notify | None = None,
    timeout: None = None,
) -> Approval[Approved | Rejected]: ...


@overload
def approval(
    name: str,
    /,
    *,
    by: str | Iterable[str] | None = None,
    need: int | None = None,
    veto: bool = True,
    notify: Notify | None = None,
    timeout: Duration,
    on_timeout: Ends,
) -> Approval[Approved | Rejected]: ...


@overload
def approval(
    name: str,
    /,
    *,
    by: str | Iterable[str] | None = None,
    need: int | None = None,
    veto: bool = True,
    notify: Notify | None = None,
    timeout: Duration,
) -> Approval[Approved | Rejected | TimedOut]: ...


def approval(
    name: str,
    /,
    *,
    by: str | Iterable[str] | None = None,
    need: int | None = None,
    veto: bool = True,
    notify: Notify | None = None,
    timeout: Duration | None = None,
    on_timeout: str = "return",
) -> Approval[Any]:
    """Waits for people to decide. Each of `by` has a token of their own, and the first decision by it counts.

    `need` of them must approve, all unless told. With `veto` the first rejection ends it, without when `need` can no
    longer be reached. `notify` is called once for each approver, as a step. Without `by` anybody decides whom the
    command line or an inbox knows, and there are no tokens.
    """
    make: Any = approvals.approval
    return Approval(
        bridge.answer(
            lambda: make(name, by=by, need=need, veto=veto, notify=notify, timeout=timeout, on_timeout=on_timeout)
        )
    )


@overload
def callback(name: str, form: TypeForm[T], /, *, timeout: None = None) -> Callback[Received[T]]: ...


@overload
def callback(name: str, form: TypeForm[T], /, *, timeout: Duration) -> Callback[Received[T] | TimedOut]: ...


def callback(name: str, form: TypeForm[T], /, *, timeout: Duration | None = None) -> Callback[Any]:
    """Waits for one answer from outside. Hand its `token` or `url` out first, then await it."""
    make: Any = approvals.callback
    return Callback(bridge.answer(lambda: make(name, form, timeout=timeout)))


@overload
def gather(a: Callable[[], T1], b: Callable[[], T2], /, *, limit: int | None = None) -> tuple[T1, T2]: ...


@overload
def gather(
    a: Callable[[], T1], b: Callable[[], T2], c: Callable[[], T3], /, *, limit: int | None = None
) -> tuple[T1, T2, T3]: ...


@overload
def gather(
    a: Callable[[], T1], b: Callable[[], T2], c: Callable[[], T3], d: Callable[[], T4], /, *, limit: int | None = None
) -> tuple[T1, T2, T3, T4]: ...


@overload
def gather(*calls: Callable[[], T], limit: int | None = None) -> tuple[T, ...]: ...


def gather(*calls: Callable[[], Any], limit: int | None = None) -> Any:
    """All results, in the order of the calls. The first failure ends the others and is raised. `limit` bounds how many
    run at once."""
    make: Any = groups.gather
    return bridge.call(lambda: make(*(bridge.branch(call) for call in calls), limit=limit))


@overload
def settle(
    a: Callable[[], T1], b: Callable[[], T2], /, *, limit: int | None = None
) -> tuple[Completed[T1] | Failed, Completed[T2] | Failed]: ...


@overload
def settle(
    a: Callable[[], T1], b: Callable[[], T2], c: Callable[[], T3], /, *, limit: int | None = None
) -> tuple[Completed[T1] | Failed, Completed[T2] | Failed, Completed[T3] | Failed]: ...


@overload
def settle(
    a: Callable[[], T1], b: Callable[[], T2], c: Callable[[], T3], d: Callable[[], T4], /, *, limit: int | None = None
) -> tuple[Completed[T1] | Failed, Completed[T2] | Failed, Completed[T3] | Failed, Completed[T4] | Failed]: ...


@overload
def settle(*calls: Callable[[], T], limit: int | None = None) -> tuple[Completed[T] | Failed, ...]: ...


def settle(*calls: Callable[[], Any], limit: int | None = None) -> Any:
    """How each call ended, in their order; none of them ends another."""
    make: Any = groups.settle
    return bridge.call(lambda: make(*(bridge.branch(call) for call in calls), limit=limit))


@overload
def race(a: Callable[[], T1], b: Callable[[], T2], /) -> Winner[T1 | T2]: ...


@overload
def race(a: Callable[[], T1], b: Callable[[], T2], c: Callable[[], T3], /) -> Winner[T1 | T2 | T3]: ...


@overload
def race(*calls: Callable[[], T]) -> Winner[T]: ...


def race(*calls: Callable[[], Any]) -> Any:
    """The first call that succeeds. The others are ended: their steps cancelled, their waits closed, their children
    cancelled. Raises `AllFailed` if none succeeds."""
    make: Any = groups.race
    return bridge.call(lambda: make(*(bridge.branch(call) for call in calls)))


def now() -> datetime:
    """The store's time at the first run of this call, and the same in every later one."""
    return bridge.answer(ambient.now)


def uuid4() -> UUID:
    """A random id that is the same in every run."""
    return bridge.answer(ambient.uuid4)


def rng() -> Random:
    """A source of chance that gives the same numbers in every run."""
    return bridge.answer(ambient.rng)


def changed(name: str, /) -> bool:
    """True for executions that had not passed this point when the code changed; guard new calls with it."""
    return bridge.answer(lambda: ambient.changed(name))


def progress(percent: float, message: str = "") -> None:
    """Tells how far the task is; ignored while it only repeats what is recorded."""
    return bridge.answer(lambda: ambient.progress(percent, message))
