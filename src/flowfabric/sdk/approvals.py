"""Approvals and callbacks: waits that hand tokens out before anybody waits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias, TypeVar, overload

from typing_extensions import TypeForm

from flowfabric.core import limits
from flowfabric.core.bindings import Bound, Fresh
from flowfabric.core.conditions import AnyOf, Condition, Count, Distinct
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.looking import Look
from flowfabric.core.requests import StepStatus
from flowfabric.core.sources import shown_source
from flowfabric.core.waits import OnTimeout, SuspensionReason
from flowfabric.core.waits import Signal as Accepted
from flowfabric.sdk.aliases import Durable, Duration, T
from flowfabric.sdk.commits import insist
from flowfabric.sdk.deciding import APPROVE, REJECT
from flowfabric.sdk.durable import DurableCall, here
from flowfabric.sdk.journal import Record
from flowfabric.sdk.links import callback_url, link
from flowfabric.sdk.parking import Heard, Verdict, Wait
from flowfabric.sdk.records import Approved, Ask, Decision, Received, Rejected, TimedOut
from flowfabric.sdk.signal_records import from_facts
from flowfabric.sdk.step_policies import StepPolicy, step_name
from flowfabric.sdk.steps import StepCall
from flowfabric.sdk.units import Unit, require_unit
from flowfabric.sdk.values import Form, form_of
from flowfabric.sdk.waits import SignalWait, WaitCall, payload_of

Ends: TypeAlias = Literal["escalate", "fail", "cancel", "expire"]
Notify: TypeAlias = Callable[[Ask], object]
R_co = TypeVar("R_co", covariant=True)
_MOST_FORMS = 1_000


@overload
def approval(
    name: str, /, *, by: str | Iterable[str] | None = None, need: int | None = None, veto: bool = True,
    notify: Notify | None = None, timeout: None = None,
) -> Approval[Approved | Rejected]: ...  # fmt: skip
@overload
def approval(
    name: str, /, *, by: str | Iterable[str] | None = None, need: int | None = None, veto: bool = True,
    notify: Notify | None = None, timeout: Duration, on_timeout: Ends,
) -> Approval[Approved | Rejected]: ...  # fmt: skip
@overload
def approval(
    name: str, /, *, by: str | Iterable[str] | None = None, need: int | None = None, veto: bool = True,
    notify: Notify | None = None, timeout: Duration,
) -> Approval[Approved | Rejected | TimedOut]: ...  # fmt: skip
def approval(
    name: str, /, *, by: str | Iterable[str] | None = None, need: int | None = None, veto: bool = True,
    notify: Notify | None = None, timeout: Duration | None = None, on_timeout: str = "return",
) -> Approval[Any]:  # fmt: skip
    """Waits for people to decide. Each of `by` has a token of their own, and the first decision by it counts.

    `need` of them must approve, all unless told. With `veto` the first rejection ends it, without when `need` can no
    longer be reached. `notify` is called once for each approver, as a step. Without `by` anybody decides whom the
    command line or an inbox knows, and there are no tokens.
    """
    approvers = _approvers(by)
    ask = _Question(approvers, _needed(need, approvers), veto=limits.truth(veto, "veto"))
    return Approval(require_unit("approval"), limits.name(name, "name"), ask, notify, _ends(timeout, on_timeout))


@overload
def callback(name: str, form: TypeForm[T], /, *, timeout: None = None) -> Callback[Received[T]]: ...
@overload
def callback(name: str, form: TypeForm[T], /, *, timeout: Duration) -> Callback[Received[T] | TimedOut]: ...
def callback(name: str, form: TypeForm[T], /, *, timeout: Duration | None = None) -> Callback[Any]:
    """Waits for one answer from outside. Hand its `token` or `url` out first, then await it."""
    return Callback(require_unit("callback"), limits.name(name, "name"), form, timeout)


class _Question:
    """Who decides, and when it is decided."""

    def __init__(self, by: tuple[str, ...] | None, need: int, *, veto: bool) -> None:
        self.by, self.need = by, need
        self.against = 1 if veto or by is None else len(by) - need + 1

    def answer(self, decisions: Sequence[Decision]) -> Approved | Rejected | None:
        """What the decisions come to, in their order."""
        for number in range(1, len(decisions) + 1):
            so_far = tuple(decisions[:number])
            yes = tuple(item.by for item in so_far if item.approve)
            no = [item for item in so_far if not item.approve]
            if len(yes) >= self.need:
                return Approved(yes, so_far)
            if len(no) >= self.against:
                return Rejected(no[-1].by, no[-1].comment, so_far)
        return None


class _Deciding(WaitCall[R_co]):
    """A wait whose waitpoints are opened, with tokens, before it is awaited."""

    is_open = False

    def fresh_waitpoints(self, due: datetime | None) -> list[Fresh]:
        """What is opened for it."""
        raise NotImplementedError

    async def open(self) -> tuple[datetime | None, dict[str, str]]:
        """Its due time, and the token of each waitpoint by key: the same ones however often it is asked."""
        self.run.calls.check_over()
        known = self.run.calls.journal.get(self.path)
        self.record = known if self.record is None else self.record
        is_old, due, run = self.record is not None, self.opened(), self.run
        wanted, fence = self.fresh_waitpoints(due), run.lease.fence
        if is_old:
            keys = [item.key for item in wanted]
            tokens = await insist(run, lambda: run.engine.waitpoints.tokens(fence, keys)) or {}
        else:
            opened = await run.commits.carry(
                lambda steps: run.engine.waitpoints.create_many(fence, wanted, steps=steps), goes_on=True
            )
            tokens = {item.key: item.token for item in opened or () if item.token is not None}
        run.calls.check_over()
        here(self).opens([item.key for item in wanted])
        self.record, self.is_open = run.calls.journal.get(self.path), True
        return due, {key: token.reveal() for key, token in tokens.items()}


class Approval(_Deciding[R_co]):
    """An approval that was asked for: await it, and before that, if wanted, hand out its tokens or links."""

    def __init__(self, unit: Unit, name: str, question: _Question, notify: Notify | None, ends: _Ends) -> None:
        super().__init__(unit, f"approval:{name}", "approval")
        self.name, self.question, self.notify = name, question, notify
        self.timeout, self.on_timeout = ends

    def tokens(self) -> Durable[dict[str, str]]:
        """The token of each approver. Whoever has it decides for that approver."""
        return self._tokens()

    def links(self) -> Durable[dict[str, str]]:
        """The page of each approver where they decide; needs `App(url=…)`."""
        return self._links()

    async def _tokens(self) -> dict[str, str]:
        if self.question.by is None:
            raise InvalidRequest("no_tokens", "an approval without `by` has no tokens; name the approvers")
        _, found = await self.open()
        return {who: found[self._key(who)] for who in self.question.by}

    async def _links(self) -> dict[str, str]:
        base = self.run.app.url
        if base is None:
            raise InvalidRequest("no_url", "links need the address of this app: App(…, url='https://…')")
        return {who: link(base, token) for who, token in (await self._tokens()).items()}

    async def fresh(self) -> Any:
        if self.notify is not None:
            await self._notify(self.notify)
        return await super().fresh()

    async def _notify(self, notify: Notify) -> None:
        """Asks each approver in a step of its own; the tokens are minted for those who were not asked yet."""
        base, journal = self.run.app.url, self.run.calls.journal
        name, by = f"{self.path}/{step_name(notify)}", self.question.by or ()
        asked = {who for who in by if (found := journal.get(f"{name}[{who}]")) and found.status is StepStatus.OK}
        unasked = [who for who in by if who not in asked]
        due, tokens = await self.open() if unasked else (None, {})
        for who in unasked:
            token = tokens[self._key(who)]
            ask = Ask(self.name, who, token, None if base is None else link(base, token), due)
            await _Mail(self, notify, ask, name)

    def _key(self, who: str) -> str:
        return f"{self.path}[{who}]"

    def fresh_waitpoints(self, due: datetime | None) -> list[Fresh]:
        ends_at = due if self.on_timeout is None else None
        return [Fresh(self._key(who), approver=who, ends_at=ends_at) for who in self.question.by or ()]

    def wait(self, due: datetime | None, *, is_old: bool) -> Wait:
        return _ApprovalWait(self, due, is_old=is_old or self.is_open)

    def decisions(self, signals: Iterable[Accepted]) -> list[Decision]:
        """The decisions in the order of acceptance. A token decides once; an operator may decide otherwise later, and
        then both count, as they do for what wakes the execution."""
        found: dict[tuple[str, str], Decision] = {}
        for signal in signals:
            is_named = self.question.by is not None
            by = signal.waitpoint.removeprefix(f"{self.path}[")[:-1] if is_named else signal.source_identity
            if signal.name in (APPROVE, REJECT):
                said = Decision(by, signal.name == APPROVE, _comment(signal), signal.accepted_at)
                found.setdefault((by, signal.name), said)
        return list(found.values())

    def decided(self, verdict: Verdict) -> Record:
        record = super().decided(verdict)
        wait = self._last_wait
        if "timed_out" in record.facts and wait is not None:
            facts = {**record.facts, "signals": wait.seen}
            return self.made.record(StepStatus.OK, **facts)
        return record

    _last_wait: _ApprovalWait | None = None

    def answer(self, record: Record) -> Any:
        return self.question.answer(self.decisions(from_facts(record.facts["signals"])))

    def replayed(self, record: Record) -> Any:
        found = super().replayed(record)
        if isinstance(found, TimedOut):
            return TimedOut(found.at, tuple(self.decisions(from_facts(record.facts.get("signals", ())))))
        return found


class _ApprovalWait(Wait):
    """Parked until the approvers have decided."""

    reason = SuspensionReason.WAITING_FOR_APPROVAL

    def __init__(self, call: Approval[Any], due: datetime | None, *, is_old: bool) -> None:
        super().__init__(call, due, is_old=is_old)
        self._approval = call
        self.on_timeout = call.on_timeout
        self.seen: list[dict[str, Any]] = []
        call._last_wait = self

    def _keys(self) -> list[str]:
        by = self._approval.question.by
        return [self._approval.path] if by is None else [f"{self._approval.path}[{who}]" for who in by]

    def keys(self) -> Mapping[str, int]:
        return dict.fromkeys(self._keys(), 0)

    def bindings(self) -> Sequence[Bound]:
        if self._approval.question.by is None:
            return (Fresh(self._approval.path),)
        return self._approval.fresh_waitpoints(self.due)

    def condition(self) -> Condition:
        question, keys = self._approval.question, self._keys()
        return AnyOf(
            [
                Count(question.need, Distinct.SOURCES, keys, APPROVE),
                Count(question.against, Distinct.SOURCES, keys, REJECT),
            ]
        )

    def _found(self, look: Look) -> Verdict | None:
        from flowfabric.sdk.signal_records import to_facts

        keys = set(self._keys())
        signals = tuple(item for item in look.signals if item.waitpoint in keys and self._in_time(item))
        if self._approval.question.answer(self._approval.decisions(signals)) is not None:
            return Heard(signals)
        self.seen = [to_facts(item) for item in signals]
        return next((look.overridden[key] for key in keys if key in look.overridden), None)


class _Mail(StepCall):
    """The step that asks one approver, under a name within its approval."""

    def __init__(self, asked: Approval[Any], notify: Notify, ask: Ask, name: str) -> None:
        prefix = asked.made.scope
        policy = StepPolicy(key=ask.approver)
        super().__init__(asked.unit, notify, (ask,), {}, policy, name=name.removeprefix(prefix))


class Callback(_Deciding[R_co]):
    """A callback that was made: hand out its token or url, then await it."""

    def __init__(self, unit: Unit, name: str, form: Any, timeout: Duration | None) -> None:
        super().__init__(unit, f"callback:{name}", "callback")
        self.form = form_of(form, what=f"callback {name!r}", limit=limits.SIGNAL_BYTES)
        _remember(unit.run.app.callbacks, (unit.run.task.name, self.path), self.form)
        self.timeout = None if timeout is None else limits.duration(timeout, "timeout")

    def token(self) -> Durable[str]:
        """What whoever answers needs."""
        return self._token()

    def url(self) -> Durable[str]:
        """The address to answer at; needs `App(url=…)`."""
        return self._url()

    async def _token(self) -> str:
        _, tokens = await self.open()
        return tokens[self.path]

    async def _url(self) -> str:
        base = self.run.app.url
        if base is None:
            raise InvalidRequest("no_url", "urls need the address of this app: App(…, url='https://…')")
        return callback_url(base, await self._token())

    def fresh_waitpoints(self, due: datetime | None) -> list[Fresh]:
        return [Fresh(self.path, ends_at=due)]

    def wait(self, due: datetime | None, *, is_old: bool) -> Wait:
        return _CallbackWait(self, due, is_old=is_old or self.is_open)

    def answer(self, record: Record) -> Any:
        [signal] = from_facts(record.facts["signals"])
        return Received(payload_of(signal, self.form, self.path), shown_source(signal), signal.accepted_at)


class _CallbackWait(SignalWait):
    reason = SuspensionReason.WAITING_FOR_CALLBACK

    def __init__(self, call: DurableCall[Any], due: datetime | None, *, is_old: bool) -> None:
        super().__init__(call, call.path, due, is_old=is_old)

    def bindings(self) -> Sequence[Bound]:
        return (Fresh(self.call.path, ends_at=self.due),)


def _remember(forms: dict[tuple[str, str], Form[Any]], key: tuple[str, str], form: Form[Any]) -> None:
    """Remembers what a callback takes, however many executions wait for it; the oldest ones are forgotten."""
    forms.pop(key, None)
    forms[key] = form
    for old in list(forms)[:-_MOST_FORMS] if len(forms) > _MOST_FORMS else ():
        forms.pop(old, None)


_Ends: TypeAlias = tuple[timedelta | None, OnTimeout | None]


def _ends(timeout: Duration | None, on_timeout: str) -> _Ends:
    span = None if timeout is None else limits.duration(timeout, "timeout")
    if on_timeout == "return":
        return span, None
    if span is None:
        raise InvalidRequest("invalid_request", "on_timeout needs a timeout")
    if on_timeout not in ("escalate", "fail", "cancel", "expire"):
        message = f"on_timeout must be return, escalate, fail, cancel or expire, not {limits.shown(on_timeout)}"
        raise InvalidRequest("invalid_choice", message, field="on_timeout")
    return span, OnTimeout(on_timeout)


def _approvers(by: str | Iterable[str] | None) -> tuple[str, ...] | None:
    if by is None:
        return None
    names = tuple(limits.name(item, "by") for item in ((by,) if isinstance(by, str) else by))
    if not names or len(set(names)) != len(names):
        raise InvalidRequest("invalid_approvers", "by must name at least one approver, and each of them once")
    return names


def _needed(need: int | None, by: tuple[str, ...] | None) -> int:
    if need is None:
        return 1 if by is None else len(by)
    most = limits.COUNT_MOST if by is None else len(by)
    return limits.whole(need, "need", 1, most)


def _comment(signal: Accepted) -> str:
    try:
        found = json.loads(signal.payload or b"{}")
    except ValueError:
        return ""
    return str(found.get("comment") or found.get("reason") or "") if isinstance(found, dict) else ""
