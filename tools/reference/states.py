"""Generate docs/reference/states.md with the diagram of states and the table of transitions."""

from __future__ import annotations

from flowfabric.core.executions.states import LIVE, TERMINAL, State
from flowfabric.core.executions.transitions import TRANSITIONS, Transition

_INTRODUCTION = """\
# States and transitions

<!-- Written by tools/generate_reference.py from the transition table. Do not edit. -->

One table in the source code lists every transition of an execution. All other transitions are refused and change
nothing. [Concepts](../concepts.md#states) explains the states.

In the diagram, *any non-terminal state* means waiting, delayed, blocked, active or suspended. *Any terminal state*
means completed, failed, cancelled, expired or skipped."""
_ALL = {"live": "any non-terminal state", "ended": "any terminal state"}
_FIRST = (State.WAITING, State.DELAYED, State.BLOCKED)


def page() -> str:
    """Return the text of the page."""
    return f"{_INTRODUCTION}\n\n{diagram()}\n\n{table()}\n"


def diagram() -> str:
    """Return a Mermaid diagram of all transitions that change the state."""
    lines = ["stateDiagram-v2", *(f'    state "{said}" as {name}' for name, said in _ALL.items())]
    lines += [f"    [*] --> {state} : submit" for state in _FIRST]
    for (source, target), names in _arrows().items():
        lines.append(f"    {source} --> {target} : {', '.join(names)}")
    return "\n".join(["```mermaid", *lines, "```"])


def table() -> str:
    """Return a table with the source states, target states, event and error code of each transition."""
    targets: dict[tuple[str, str, str, str], list[str]] = {}
    for item in TRANSITIONS:
        key = (item.name, _sources(item), ".".join(item.event), item.refusal)
        targets.setdefault(key, []).append(item.target or "unchanged")
    rows = [
        f"| `{name}` | {sources} | {' or '.join(dict.fromkeys(to))} | `{event}` | `{code}` |"
        for (name, sources, event, code), to in targets.items()
    ]
    head = ["| transition | from | to | event | error in other states |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


def _arrows() -> dict[tuple[str, str], list[str]]:
    arrows: dict[tuple[str, str], list[str]] = {}
    for item in TRANSITIONS:
        for source in _drawn(item):
            if item.target is not None and source != item.target:
                names = arrows.setdefault((source, item.target), [])
                if item.name not in names:
                    names.append(item.name)
    return arrows


def _drawn(item: Transition) -> list[str]:
    """Return the states where the arrows of a transition start.

    A single arrow from `live` or `ended` stands for all states that are not terminal, or all terminal states.
    """
    if item.sources == LIVE:
        return ["live"]
    if item.sources == TERMINAL:
        return ["ended"]
    return [state for state in State if state in item.sources]


def _sources(item: Transition) -> str:
    names = ", ".join(_drawn(item))
    return _ALL.get(names, names)
