"""The diagram of states, and the table of transitions, as docs/concepts.md shows them."""

from __future__ import annotations

from flowfabric.core.states import LIVE, TERMINAL, State
from flowfabric.core.transitions import TRANSITIONS, Transition

BEGIN, END = "<!-- states: written by tools/generate_reference.py -->", "<!-- /states -->"
_ALL = {"live": "any that has not ended", "ended": "any that has ended"}
_FIRST = (State.WAITING, State.DELAYED, State.BLOCKED)


def section() -> str:
    """Diagram and table, between the marks."""
    return f"{BEGIN}\n\n{diagram()}\n\n{table()}\n\n{END}"


def diagram() -> str:
    """A Mermaid diagram of every transition that leads to another state."""
    lines = ["stateDiagram-v2", *(f'    state "{said}" as {name}' for name, said in _ALL.items())]
    lines += [f"    [*] --> {state} : submit" for state in _FIRST]
    for (source, target), names in _arrows().items():
        lines.append(f"    {source} --> {target} : {', '.join(names)}")
    return "\n".join(["```mermaid", *lines, "```"])


def table() -> str:
    """Every transition as a row: from where to where, what event it leaves, and how it is refused elsewhere."""
    targets: dict[tuple[str, str, str, str], list[str]] = {}
    for item in TRANSITIONS:
        key = (item.name, _sources(item), ".".join(item.event), item.refusal)
        targets.setdefault(key, []).append(item.target or "the same")
    rows = [
        f"| `{name}` | {sources} | {' or '.join(dict.fromkeys(to))} | `{event}` | `{code}` |"
        for (name, sources, event, code), to in targets.items()
    ]
    head = ["| transition | from | to | event | refused elsewhere with |", "|---|---|---|---|---|"]
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
    """Where the arrows of a transition begin; one arrow may stand for those of all that have ended, or not."""
    if item.sources == LIVE:
        return ["live"]
    if item.sources == TERMINAL:
        return ["ended"]
    return [state for state in State if state in item.sources]


def _sources(item: Transition) -> str:
    names = ", ".join(_drawn(item))
    return _ALL.get(names, names)
