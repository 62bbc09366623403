"""Generate docs/reference/events.md with every event that a store can hold."""

from __future__ import annotations

import ast
from dataclasses import fields

from flowfabric.core.events.subscribers import EventFamily
from flowfabric.core.executions.records import Event
from flowfabric.core.executions.transitions import TRANSITIONS
from tools.reference.sources import argument, places, words

_FAMILIES = {
    "lease": "A worker started or stopped working on an execution.",
    "lifecycle": "An execution changed its state without a worker.",
    "completion": "An execution ended. There is one such event per generation.",
    "signal": "A signal was accepted, or a task skipped it. `details` has `name`, `source` and perhaps a `sender`.",
    "operator": "A person or a program intervened. The event names the `principal` and the `reason`.",
    "flow": "A flow changed as a whole. The event has a `flow_id` and no execution.",
    "worker": "The register of workers changed.",
    "child": "The history of a parent derives these events from the rows of its children. Subscribers do not see them.",
}
_MEANING = {
    "lease.acquired": "a worker claimed the execution",
    "lease.continued": "the task continued with new arguments and an empty journal (`continue_with`)",
    "lease.delayed": "the worker released it until a given time, for a sleep, another try, or another worker",
    "lease.expired": "the worker did not renew its lease; another worker takes over",
    "lease.reclaimed": "a named worker took over an execution that was kept for a hand-off",
    "lease.released": "the worker returned it unfinished, for example at SIGTERM; no attempt is used",
    "lease.renewed": "the worker renewed its lease; recorded only with `connect(renewal_events=True)`",
    "lease.retry_scheduled": "the attempt failed and will be retried; `details` may have the traceback",
    "lease.revoked": "an operator took the lease away",
    "lease.step_retry_scheduled": "a step failed and will be tried again; `details` has its name, tries and next time",
    "lease.suspended": "the worker suspended it until signals satisfy its condition",
    "lease.waiting_children": "the worker suspended it until its children end",
    "lifecycle.blocked": "it waits for upstream members of its flow, or for an operator after a timeout",
    "lifecycle.ready": "its delay is over, or its upstream members have ended; a worker can claim it",
    "lifecycle.resumed": "the condition of its wait is satisfied, or the wait timed out",
    "completion.cancelled": "it was cancelled",
    "completion.completed": "it has a result",
    "completion.expired": "its deadline passed, or a wait that expires it timed out",
    "completion.failed": "it failed permanently; `details` may have the traceback",
    "completion.skipped": "its upstream members did not end as required",
    "signal.unreadable": "the task cannot read the payload, and skips the signal",
    "signal.buffered": "the signal is stored until the execution waits for it",
    "signal.delivered": "the signal arrived during a wait, and the condition was evaluated",
    "operator.cancel_requested": "it was asked to stop, and has a grace period to clean up",
    "operator.held": "an operator or its own worker holds it; a worker does so when code and records diverge",
    "operator.key_rotated": "a different key signs tokens from now on",
    "operator.key_seeded": "the store got its first key",
    "operator.lane_draining": "the lane accepts no new work",
    "operator.lane_paused": "workers cannot claim work from the lane",
    "operator.lane_resumed": "the lane accepts work again, and workers can claim it",
    "operator.priority_changed": "its priority changed; `details` has the old and the new priority",
    "operator.reclaim_granted": "a named worker may take over an execution kept for hand-off; `details` has the grant",
    "operator.replayed": "it had ended, and runs again as the next generation",
    "operator.resumed": "an operator ended its wait",
    "operator.unheld": "its hold was removed, and it can continue",
    "operator.waitpoint_closed": "an operator closed one of its waitpoints",
    "flow.cancel_requested": "the flow was cancelled; its members follow",
    "flow.finished": "all members of the sealed flow have ended; `details` has the state",
    "child.submitted": "a child was submitted; the event shows the final state of the child",
    "worker.marked_dead": "an operator removed the worker from the register",
    "worker.registered": "a worker registered",
    "worker.swept": "the worker sent no heartbeat for too long and was removed from the register",
}


def page() -> str:
    """Return the text of the page."""
    parts = [_HEAD]
    known = names()
    for family in dict.fromkeys([*EventFamily, *(family for family, _ in known)]):
        rows = [f"| `{family}.{name}` | {_MEANING[f'{family}.{name}']} |" for of, name in known if of == family]
        parts += [f"## {family}", _FAMILIES[family], "\n".join(["| event | what happened |", "|---|---|", *rows])]
    return "\n\n".join([*parts, _TAIL]) + "\n"


def names() -> list[tuple[str, str]]:
    """Return the family and name of every event, including events that do not belong to a transition."""
    found = {transition.event for transition in TRANSITIONS}
    for place in places():
        if place.name == "Event":
            families = words(argument(place.call, 1, "family"), place)
            found |= {(family, name) for family in families for name in words(_name(place.call), place)}
    return sorted(found)


def _name(call: ast.Call) -> ast.expr | None:
    return argument(call, 2, "name")


_HEAD = """# Events

<!-- Written by tools/generate_reference.py from the transition table and the sources. Do not edit. -->

Every transition of an execution writes one event in the same transaction. The history of an execution is therefore
complete, and subscribers receive exactly the committed events. Submitting, reporting progress, recording a step and
changing tags write no event. Renewing a lease writes an event only if that is enabled.

Read events with `handle.history()`, with `engine.events.subscribe(…)`, or in a terminal. The
[guide to operating](../guides/operating.md) has a program. The names below are `event.family` and `event.name`."""

_TAIL = f"""## What an event holds

{", ".join(f"`{field.name}`" for field in fields(Event))}.

`version` counts the events of the execution without a gap. `ends_lease` is true for an event that ended a lease.
Subscribers to the family `lease` also receive these events. No event contains payloads, results or tokens."""
