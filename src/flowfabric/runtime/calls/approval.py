"""Approvals and callbacks: waits whose tokens can be handed out before anything is awaited."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, overload

from typing_extensions import TypeForm

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.executions.requests import StepStatus
from flowfabric.core.waits.bindings import Bound, NewWaitpoint
from flowfabric.core.waits.conditions import AnyOf, Condition, Count, Distinct
from flowfabric.core.waits.decisions import ApprovalDecision, read_decision
from flowfabric.core.waits.evaluate import APPROVE, REJECT
from flowfabric.core.waits.prompts import ApprovalPrompt
from flowfabric.core.waits.records import OnTimeout, StoredSignal, SuspensionReason
from flowfabric.core.waits.snapshot import WaitSnapshot
from flowfabric.runtime.branch import Branch, require_branch
from flowfabric.runtime.calls.step import StepCall, StepPolicy, step_name
from flowfabric.runtime.calls.wait_signal import SignalWait, WaitCall, decode_received, from_facts, to_facts
from flowfabric.runtime.durable_call import awaiting_branch
from flowfabric.runtime.journal import Record
from flowfabric.runtime.record_writer import retry_while_owned
from flowfabric.runtime.signals import callback_url, link
from flowfabric.runtime.waits import SignalsArrived, Verdict, Wait
from flowfabric.values import ValueCodec, codec_for
from flowfabric.values.aliases import Durable, Duration, R_co, T
from flowfabric.values.records import ApprovalRequest, Approved, Received, Rejected, TimedOut
from flowfabric.values.schemas import schema_for

Ends: TypeAlias = Literal["escalate", "fail", "cancel", "expire"]
Notify: TypeAlias = Callable[[ApprovalRequest], object]
MAX_CALLBACK_CODECS = 1_000


class ApprovalOptions(TypedDict, total=False):
    """The options of `approval` that all of its overloads share."""

    by: str | Iterable[str] | None
    need: int | None
    veto: bool
    notify: Notify | None
    title: str | None
    details: str | None
    show: Mapping[str, Any] | None


@overload
def approval(
    name: str, /, *, timeout: None = None, **options: Unpack[ApprovalOptions]
) -> Approval[Approved | Rejected]: ...
@overload
def approval(
    name: str, /, *, timeout: Duration, on_timeout: Ends, **options: Unpack[ApprovalOptions]
) -> Approval[Approved | Rejected]: ...
@overload
def approval(
    name: str, /, *, timeout: Duration, **options: Unpack[ApprovalOptions]
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
    title: str | None = None,
    details: str | None = None,
    show: Mapping[str, Any] | None = None,
) -> Approval[Any]:
    """Wait for people to decide. Each approver in `by` gets a token, and the first decision of each approver counts.

    `need` is the number of approvals that are required, by default from all approvers. With `veto`, the first rejection
    ends the approval; without `veto`, the approval ends when `need` can no longer be reached. `notify` is called as a
    step, once for each approver. Without `by` there are no tokens, and any user of the command line or of an inbox may
    decide.

    `title`, `details` and `show` describe the decision. `show` has JSON values by name. They are stored when the
    approval opens. Approvers see them on the page of a link, in the argument of `notify` and on the command line.
    """
    approvers = _validate_approvers(by)
    rule = _ApprovalRule(approvers, _required_approvals(need, approvers), veto=validation.boolean(veto, "veto"))
    prompt = ApprovalPrompt(title, details, {} if show is None else show)
    ends = _timeout_settings(timeout, on_timeout)
    return Approval(require_branch("approval"), validation.name(name, "name"), rule, prompt, notify, ends)


@overload
def callback(name: str, payload_type: TypeForm[T], /, *, timeout: None = None) -> Callback[Received[T]]: ...
@overload
def callback(name: str, payload_type: TypeForm[T], /, *, timeout: Duration) -> Callback[Received[T] | TimedOut]: ...
def callback(name: str, payload_type: TypeForm[T], /, *, timeout: Duration | None = None) -> Callback[Any]:
    """Return a callback, which waits for one payload from an outside sender.

    Give the sender the callback's `token` or `url` before you await the callback.
    """
    return Callback(require_branch("callback"), validation.name(name, "name"), payload_type, timeout)


class _ApprovalRule:
    """The approvers, and the numbers of approvals and rejections that decide an approval."""

    def __init__(self, by: tuple[str, ...] | None, need: int, *, veto: bool) -> None:
        self.by, self.need = by, need
        self.max_rejections = 1 if veto or by is None else len(by) - need + 1

    def decide(self, decisions: Sequence[ApprovalDecision]) -> Approved | Rejected | None:
        """Apply the decisions in their order, and return the outcome, or None if the approval is still open."""
        for number in range(1, len(decisions) + 1):
            so_far = tuple(decisions[:number])
            yes = tuple(decision.by for decision in so_far if decision.approve)
            no = [decision for decision in so_far if not decision.approve]
            if len(yes) >= self.need:
                return Approved(yes, so_far)
            if len(no) >= self.max_rejections:
                return Rejected(no[-1].by, no[-1].comment, so_far)
        return None


class _TokenWait(WaitCall[R_co]):
    """A wait that can open its waitpoints and return their tokens before it is awaited."""

    is_open = False

    def fresh_waitpoints(self, due: datetime | None) -> list[NewWaitpoint]:
        """Return the waitpoints to open."""
        raise NotImplementedError

    async def open(self) -> tuple[datetime | None, dict[str, str]]:
        """Open the waitpoints, and return the due time and the token of each waitpoint by its key.

        Repeated calls return the same tokens.
        """
        self.run.calls.check_over()
        record = self.run.calls.journal.get(self.path)
        self.record = record if self.record is None else self.record
        is_old, due, run = self.record is not None, self.open_wait(self.timeout), self.run
        waitpoints, fence = self.fresh_waitpoints(due), run.lease.fence
        if is_old:
            keys = [waitpoint.key for waitpoint in waitpoints]
            tokens = await retry_while_owned(run, lambda: run.engine.waitpoints.tokens(fence, keys)) or {}
        else:
            opened = await run.record_writer.commit_with(
                lambda steps: run.engine.waitpoints.create_many(fence, waitpoints, steps=steps), keeps_lease=True
            )
            run.suspender.note_opened(opened or ())
            tokens = {waitpoint.key: waitpoint.token for waitpoint in opened or () if waitpoint.token is not None}
        run.calls.check_over()
        awaiting_branch(self).add_waitpoints([waitpoint.key for waitpoint in waitpoints])
        self.record, self.is_open = run.calls.journal.get(self.path), True
        return due, {key: token.reveal() for key, token in tokens.items()}


class Approval(_TokenWait[R_co]):
    """A requested approval. If needed, send its tokens or links to the approvers, then await the approval."""

    def __init__(
        self,
        branch: Branch,
        name: str,
        rule: _ApprovalRule,
        prompt: ApprovalPrompt,
        notify: Notify | None,
        ends: _TimeoutSettings,
    ) -> None:
        super().__init__(branch, f"approval:{name}", "approval")
        self.received: list[dict[str, Any]] = []
        self.name, self.rule, self.prompt, self.notify = name, rule, prompt, notify
        self.timeout, self.on_timeout = ends

    def tokens(self) -> Durable[dict[str, str]]:
        """Return the token of each approver. Every holder of a token can decide for its approver."""
        return self._tokens()

    def links(self) -> Durable[dict[str, str]]:
        """Return the URL of each approver's decision page. This requires `App(url=…)`."""
        return self._links()

    async def _tokens(self) -> dict[str, str]:
        if self.rule.by is None:
            raise InvalidRequest("no_tokens", "an approval without `by` has no tokens; name the approvers")
        _, tokens = await self.open()
        return {who: tokens[self._key(who)] for who in self.rule.by}

    async def _links(self) -> dict[str, str]:
        base = self.run.app.url
        if base is None:
            raise InvalidRequest("no_url", "links need the address of this app: App(…, url='https://…')")
        return {who: link(base, token) for who, token in (await self._tokens()).items()}

    async def execute(self) -> Any:
        if self.notify is not None:
            await self._notify(self.notify)
        return await super().execute()

    async def _notify(self, notify: Notify) -> None:
        """Notify each approver in a separate step, but skip the approvers whom an earlier run has notified."""
        base, journal = self.run.app.url, self.run.calls.journal
        name, by = f"{self.path}/{step_name(notify)}", self.rule.by or ()
        notified = {who for who in by if (record := journal.get(f"{name}[{who}]")) and record.status is StepStatus.OK}
        pending = [who for who in by if who not in notified]
        due, tokens = await self.open() if pending else (None, {})
        for who in pending:
            token = tokens[self._key(who)]
            address = None if base is None else link(base, token)
            request = ApprovalRequest(
                self.name, who, token, address, due, self.prompt.title, self.prompt.details, self.prompt.show
            )
            policy = StepPolicy(key=who)
            await StepCall(self.branch, notify, (request,), {}, policy, name=name.removeprefix(self.call_id.scope))

    def _key(self, who: str) -> str:
        return f"{self.path}[{who}]"

    def fresh_waitpoints(self, due: datetime | None) -> list[NewWaitpoint]:
        ends_at = due if self.on_timeout is None else None
        return [
            NewWaitpoint(self._key(who), approver=who, ends_at=ends_at, prompt=self.prompt)
            for who in self.rule.by or ()
        ]

    def make_wait(self, due: datetime | None, *, is_old: bool) -> Wait:
        return _ApprovalWait(self, due, is_old=is_old or self.is_open)

    def decisions(self, signals: Iterable[StoredSignal]) -> list[ApprovalDecision]:
        """Return the decisions in the order of acceptance.

        The store keeps the first decision of each approver. A store that an earlier release has used may have both
        decisions of one approver. Then both count, in this list and in the engine's condition.
        """
        decisions: dict[tuple[str, bool], ApprovalDecision] = {}
        for signal in signals:
            approver = None if self.rule.by is None else signal.waitpoint.removeprefix(f"{self.path}[")[:-1]
            if signal.name in (APPROVE, REJECT):
                decision = read_decision(signal, approver)
                decisions.setdefault((decision.by, decision.approve), decision)
        return list(decisions.values())

    def decide(self, verdict: Verdict) -> Record:
        record = super().decide(verdict)
        if "timed_out" in record.facts:
            return self.call_id.record(StepStatus.OK, **record.facts, signals=self.received)
        return record

    def decode(self, record: Record) -> Any:
        return self.rule.decide(self.decisions(from_facts(record.facts["signals"])))

    def replay(self, record: Record) -> Any:
        outcome = super().replay(record)
        if isinstance(outcome, TimedOut):
            return TimedOut(outcome.at, tuple(self.decisions(from_facts(record.facts.get("signals", ())))))
        return outcome


class _ApprovalWait(Wait):
    """A wait until the approvers have decided."""

    reason = SuspensionReason.WAITING_FOR_APPROVAL

    def __init__(self, call: Approval[Any], due: datetime | None, *, is_old: bool) -> None:
        super().__init__(call, due, is_old=is_old)
        self._approval = call
        self.on_timeout = call.on_timeout

    def _keys(self) -> list[str]:
        by = self._approval.rule.by
        return [self._approval.path] if by is None else [f"{self._approval.path}[{who}]" for who in by]

    def keys(self) -> Mapping[str, int]:
        return dict.fromkeys(self._keys(), 0)

    def bindings(self) -> Sequence[Bound]:
        if self._approval.rule.by is None:
            return (NewWaitpoint(self._approval.path, prompt=self._approval.prompt),)
        return self._approval.fresh_waitpoints(self.due)

    def condition(self) -> Condition:
        rule, keys = self._approval.rule, self._keys()
        return AnyOf(
            [
                Count(rule.need, Distinct.SOURCES, keys, APPROVE),
                Count(rule.max_rejections, Distinct.SOURCES, keys, REJECT),
            ]
        )

    def find_verdict(self, snapshot: WaitSnapshot) -> Verdict | None:
        keys = set(self._keys())
        signals = tuple(signal for signal in snapshot.signals if signal.waitpoint in keys and self._is_in_time(signal))
        if self._approval.rule.decide(self._approval.decisions(signals)) is not None:
            return SignalsArrived(signals)
        self._approval.received = [to_facts(signal) for signal in signals]
        return next((snapshot.overridden[key] for key in keys if key in snapshot.overridden), None)


class Callback(_TokenWait[R_co]):
    """A callback. Give its token or URL to the sender, then await the callback."""

    def __init__(self, branch: Branch, name: str, payload_type: Any, timeout: Duration | None) -> None:
        super().__init__(branch, f"callback:{name}", "callback")
        self.payload_type = codec_for(payload_type, what=f"callback {name!r}", limit=validation.MAX_SIGNAL_BYTES)
        self.schema = schema_for(payload_type)
        _remember_codec(branch.run.app.callbacks, (branch.run.task.name, self.path), self.payload_type)
        self.timeout = None if timeout is None else validation.duration(timeout, "timeout")

    def token(self) -> Durable[str]:
        """Return the token that the sender of the payload needs."""
        return self._token()

    def url(self) -> Durable[str]:
        """Return the URL that accepts the payload. This requires `App(url=…)`."""
        return self._url()

    async def _token(self) -> str:
        _, tokens = await self.open()
        return tokens[self.path]

    async def _url(self) -> str:
        base = self.run.app.url
        if base is None:
            raise InvalidRequest("no_url", "urls need the address of this app: App(…, url='https://…')")
        return callback_url(base, await self._token())

    def fresh_waitpoints(self, due: datetime | None) -> list[NewWaitpoint]:
        return [NewWaitpoint(self.path, ends_at=due, schema=self.schema)]

    def make_wait(self, due: datetime | None, *, is_old: bool) -> Wait:
        return _CallbackWait(self, self.path, due, self, is_old=is_old or self.is_open)

    def decode(self, record: Record) -> Any:
        return decode_received(record, self.payload_type, self.payload)


class _CallbackWait(SignalWait):
    reason = SuspensionReason.WAITING_FOR_CALLBACK


def _remember_codec(
    codecs: dict[tuple[str, str], ValueCodec[Any]], key: tuple[str, str], codec: ValueCodec[Any]
) -> None:
    """Remember the payload type of a callback. Only the newest entries are kept."""
    codecs.pop(key, None)
    codecs[key] = codec
    for old in list(codecs)[:-MAX_CALLBACK_CODECS] if len(codecs) > MAX_CALLBACK_CODECS else ():
        codecs.pop(old, None)


_TimeoutSettings: TypeAlias = tuple[timedelta | None, OnTimeout | None]


def _timeout_settings(timeout: Duration | None, on_timeout: str) -> _TimeoutSettings:
    span = None if timeout is None else validation.duration(timeout, "timeout")
    if on_timeout == "return":
        return span, None
    if span is None:
        raise InvalidRequest("invalid_request", "on_timeout needs a timeout")
    if on_timeout not in ("escalate", "fail", "cancel", "expire"):
        message = f"on_timeout must be return, escalate, fail, cancel or expire, not {validation.preview(on_timeout)}"
        raise InvalidRequest("invalid_choice", message, field="on_timeout")
    return span, OnTimeout(on_timeout)


def _validate_approvers(by: str | Iterable[str] | None) -> tuple[str, ...] | None:
    if by is None:
        return None
    names = tuple(validation.name(name, "by") for name in ((by,) if isinstance(by, str) else by))
    if not names or len(set(names)) != len(names):
        raise InvalidRequest("invalid_approvers", "by must name at least one approver, and each of them once")
    return names


def _required_approvals(need: int | None, by: tuple[str, ...] | None) -> int:
    if need is None:
        return 1 if by is None else len(by)
    maximum = validation.MAX_COUNT if by is None else len(by)
    return validation.integer(need, "need", 1, maximum)
