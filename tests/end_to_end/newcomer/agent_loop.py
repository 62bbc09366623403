"""An agent in a loop: a model plans, tools run as steps, a person approves, and the model answers.

flowfabric worker agent_loop:app
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from flowfabric import App, ApprovalRequest, Approved, approval, step

app = App(options=json.loads(os.environ["AGENT_OPTIONS"]))
EFFECTS, MODEL, TOKEN = Path("effects.txt"), Path("model-is-back.txt"), Path("token.txt")


@dataclass
class Decision:
    tool: str
    argument: str


def note(effect: str) -> None:
    with EFFECTS.open("a") as file:
        file.write(f"{effect}\n")


PLAN = [Decision("search", "flights"), Decision("book", "LH 17"), Decision("mail", "ann"), Decision("answer", "booked")]


def model(goal: str, results: list[str]) -> Decision:
    """Stand in for a language model: decide on the next tool from the results so far."""
    note(f"model {len(results)}")
    while len(results) == 2 and not MODEL.exists():
        time.sleep(0.02)
    return PLAN[len(results)]


def search(topic: str) -> str:
    note(f"search {topic}")
    return f"found {topic}"


def book(flight: str) -> str:
    note(f"book {flight}")
    return f"booked {flight}"


def mail(who: str) -> str:
    note(f"mail {who}")
    return f"mailed {who}"


def write_token(request: ApprovalRequest) -> None:
    TOKEN.write_text(request.token)


TOOLS = {"search": search, "book": book, "mail": mail}


@app.task
async def agent(goal: str) -> str:
    results: list[str] = []
    while (decision := await step(model, goal, results)).tool != "answer":
        results = [*results, await step(TOOLS[decision.tool], decision.argument)]
    match await approval("answer", by="ann", notify=write_token):
        case Approved():
            return f"{decision.argument}: {', '.join(results)}"
        case _:
            return "rejected"
