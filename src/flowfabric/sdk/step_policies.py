"""How a step is to be tried: what its function says, what the call says, and what the task says about the rest."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from types import FunctionType
from typing import TYPE_CHECKING, Any

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.policy import Backoff
from flowfabric.sdk.aliases import Duration
from flowfabric.sdk.retrying import Retryable

if TYPE_CHECKING:
    from flowfabric.sdk.tasks import Task

_MARK = "__flowfabric_step__"
_SIGNS = ("#", "[", "/")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPolicy:
    """What `@step.policy(…)` and `step.options(…)` say; what is absent is as the task has it."""

    name: str | None = None
    key: str | None = None
    retries: int | None = None
    timeout: Duration | None = None
    raises: tuple[type[Exception], ...] = ()
    at_most_once: bool = False
    retry_on: tuple[Retryable, ...] | None = None

    def __post_init__(self) -> None:
        if self.name is not None and any(sign in limits.name(self.name, "name") for sign in _SIGNS):
            message = f"name must be without {' '.join(_SIGNS)}, which tell calls of the same name apart"
            raise InvalidRequest("invalid_name", message, field="name")
        if self.key is not None:
            limits.name(self.key, "key")
        if self.retries is not None:
            limits.whole(self.retries, "retries", 0, limits.COUNT_MOST)
        if self.timeout is not None:
            limits.duration(self.timeout, "timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a step is called, and all that decides how it is performed and tried."""

    own: StepPolicy
    name: str
    is_async: bool
    retries: int
    backoff: Backoff
    timeout: timedelta | None
    raises: tuple[type[Exception], ...]
    at_most_once: bool
    retry_on: tuple[Retryable, ...] = ()


NO_POLICY = StepPolicy()


def attach(fn: Callable[..., Any], policy: StepPolicy) -> None:
    """Writes the policy on the function, which stays a plain function."""
    try:
        setattr(fn, _MARK, policy)
    except AttributeError:
        message = f"{fn!r} cannot carry a policy; wrap it in a function, or use step.options at the call"
        raise InvalidRequest("policy_refused", message) from None


def policy_of(fn: Callable[..., Any]) -> StepPolicy:
    """What was written on the function, through partials and bound methods."""
    found = getattr(plain(fn), _MARK, NO_POLICY)
    assert isinstance(found, StepPolicy), "only attach writes the mark"
    return found


def plan(task: Task[..., Any], fn: Callable[..., Any], called: StepPolicy) -> Plan:
    """How the step is tried; found once per function of a task, unless the call has something to say."""
    if called is not NO_POLICY or not isinstance(fn, FunctionType):
        return _new_plan(task, fn, called)
    found = task.plans.get(fn)
    if found is None or found.own is not getattr(fn, _MARK, NO_POLICY):
        found = task.plans[fn] = _new_plan(task, fn, called)
    return found


def _new_plan(task: Task[..., Any], fn: Callable[..., Any], called: StepPolicy) -> Plan:
    """The call before the function before the task."""
    own, settings = policy_of(fn), task.settings
    retries = next(
        found for found in (called.retries, own.retries, task.called.retries, settings.retries) if found is not None
    )
    timeout = own.timeout if called.timeout is None else called.timeout
    retry_on = own.retry_on if called.retry_on is None else called.retry_on
    return Plan(
        own=own, name=step_name(fn, called), is_async=inspect.iscoroutinefunction(fn),
        retries=retries, backoff=settings.backoff, raises=own.raises, at_most_once=own.at_most_once,
        timeout=None if timeout is None else limits.duration(timeout, "timeout"),
        retry_on=settings.retry_on if retry_on is None else retry_on,
    )  # fmt: skip


def step_name(fn: Callable[..., Any], called: StepPolicy = NO_POLICY) -> str:
    """What a step is called: as it says, or as its function is."""
    named = called.name or policy_of(fn).name
    if named is not None:
        return named
    inner = plain(fn)
    qualified = getattr(inner, "__qualname__", None) or type(inner).__qualname__
    return qualified.rpartition("<locals>.")[2]


def plain(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind partials."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def checked_raises(raises: Collection[type[Exception]]) -> tuple[type[Exception], ...]:
    """Classes of exceptions, and nothing else."""
    for kind in raises:
        if not _is_exception(kind):
            message = f"raises must hold classes of exceptions, not {kind!r}"
            raise InvalidRequest("invalid_type", message, field="raises")
    return tuple(raises)


def _is_exception(kind: object) -> bool:
    return inspect.isclass(kind) and issubclass(kind, Exception)
