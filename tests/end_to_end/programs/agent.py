# ruff: noqa: E701, E702, E704 - kept as short as possible
# fmt: off
from dataclasses import dataclass

from flowfabric import App, Approved, Rejected, approval, step
from tests.end_to_end.programs.effects import record_effect

app = App("agent.db")
@dataclass
class Draft: text: str
async def think(goal: str, notes: list[str]) -> Draft:
    record_effect(f"thought {len(notes) + 1}"); return Draft(f"{goal}, {', '.join(notes) or 'first draft'}")

@app.task
async def agent(goal: str) -> str:
    notes: list[str] = []
    while True:
        draft = await step(think, goal, notes)
        match await approval("review", by="editor"):
            case Approved(): return draft.text
            case Rejected(reason=why): notes = [*notes, why]
