"""docs/reference/events.md: every event that a store can hold."""

from __future__ import annotations

import ast
from dataclasses import fields

from flowfabric.core.records import Event
from flowfabric.core.subscribing import EventFamily
from flowfabric.core.transitions import TRANSITIONS
from tools.reference.sources import argument, places, words

_FAMILIES = {
    "lease": "Somebody began or stopped working on an execution.",
    "lifecycle": "An execution moved without a worker.",
    "completion": "An execution ended. There is one such event per generation.",
    "signal": "A signal was accepted. `details` has its `name` and `source`, and the `sender` in an approver's place.",
    "operator": "A person or a program intervened. The event says who (`principal`) and why (`reason`).",
    "flow": "Something happened to a whole flow. The event has a `flow_id` and no execution.",
    "worker": "The register of workers changed.",
    "child": "Shown among the events of a parent, and told from the rows of its children. It is not subscribed to.",
}
_MEANING = {
    "lease.acquired": "a worker claimed the execution",
    "lease.continued": "the task went on with other arguments and an empty journal (`continue_with`)",
    "lease.delayed": "the worker gave it up until a time: a sleep, or a step that waits for its next try",
    "lease.expired": "the worker was silent for the whole lease; another one takes over",
    "lease.reclaimed": "a named worker took over an execution that was kept for a hand-off",
    "lease.released": "the worker gave it back unfinished, as at SIGTERM; no attempt is used",
    "lease.renewed": "the worker goes on; only where `connect` was told `renewal_events=True`",
    "lease.retry_scheduled": "the attempt failed and will be tried again",
    "lease.revoked": "an operator took the lease away",
    "lease.suspended": "the worker gave it up until signals satisfy its condition",
    "lease.waiting_children": "the worker gave it up until its children end",
    "lifecycle.blocked": "it waits for what comes before it in its flow, or for an operator after a timeout",
    "lifecycle.ready": "its time has come, or what it waited for has ended; a worker may take it",
    "lifecycle.resumed": "the condition of its wait is satisfied, or the wait timed out",
    "completion.cancelled": "it was cancelled",
    "completion.completed": "it has a result",
    "completion.expired": "its deadline passed, or a wait that expires it timed out",
    "completion.failed": "it failed for good",
    "completion.skipped": "what came before it in its flow did not end as needed",
    "signal.buffered": "the signal is kept until somebody waits for it",
    "signal.delivered": "the signal came while the execution waits, and is judged by the condition",
    "operator.cancel_requested": "it was asked to end, and has some time to clean up",
    "operator.held": "an operator or its own worker holds it; a worker does so when code and records diverge",
    "operator.key_rotated": "another key signs tokens from now on",
    "operator.key_seeded": "the store got its first key",
    "operator.lane_draining": "the lane takes no new work",
    "operator.lane_paused": "the lane gives out no work",
    "operator.lane_resumed": "the lane takes and gives out work again",
    "operator.priority_changed": "it moved to another priority; `details` has the old and the new one",
    "operator.reclaim_granted": "a named worker may take over what was kept for a hand-off; `details` has the grant",
    "operator.replayed": "it ended before, and runs again as the next generation",
    "operator.resumed": "an operator ended its wait",
    "operator.unheld": "it may go on",
    "operator.waitpoint_closed": "an operator closed one of its waitpoints",
    "flow.cancel_requested": "the flow was cancelled; its members follow",
    "flow.finished": "all members of the sealed flow have ended; `details` has the state",
    "child.submitted": "a child was submitted; its end is shown as the state that it ended in",
    "worker.marked_dead": "an operator took the worker out of the register",
    "worker.registered": "a worker told that it is there",
    "worker.swept": "the worker was silent for too long and was taken out of the register",
}


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    known = names()
    for family in dict.fromkeys([*EventFamily, *(family for family, _ in known)]):
        rows = [f"| `{family}.{name}` | {_MEANING[f'{family}.{name}']} |" for of, name in known if of == family]
        parts += [f"## {family}", _FAMILIES[family], "\n".join(["| event | what happened |", "|---|---|", *rows])]
    return "\n\n".join([*parts, _TAIL]) + "\n"


def names() -> list[tuple[str, str]]:
    """Family and name of every event: those of transitions, and those that are written by themselves."""
    found = {transition.event for transition in TRANSITIONS}
    for place in places():
        if place.name == "Event":
            families = words(argument(place.call, 1, "family"), place)
            found |= {(family, name) for family in families for name in words(_name(place.call), place)}
    return sorted(found)


def _name(call: ast.Call) -> ast.expr | None:
    return argument(call, 2, "name")


_HEAD = """# Events

<!-- Written by tools/generate_reference.py from the transition table and the sources. Change what it reads. -->

A transition of an execution leaves one event, in the transaction that makes it true. So the history of an execution is
complete, and whoever subscribes sees exactly what was committed. Submitting, telling progress, recording a step and
changing tags leave none; renewing a lease leaves one only if that is switched on.

Read them with `handle.history()`, with `engine.events.subscribe(…)`, or in a terminal. The
[guide to operating](../guides/operating.md) has a program. `event.family` and `event.name` are the two words below."""

_TAIL = f"""## What an event holds

{", ".join(f"`{field.name}`" for field in fields(Event))}.

`version` counts the events of the execution without a gap. `ends_lease` is true for the event that ended a lease; a
subscriber to the family `lease` gets those too. Payloads, results and tokens are in no event."""
