"""Drafts that an editor reviews until one is approved."""

from dataclasses import dataclass

from flowfabric import App, Approved, Rejected, approval, step

app = App("editing.db")


@dataclass
class Draft:
    text: str


async def write(topic: str, notes: list[str]) -> Draft:
    return Draft(f"{topic}, version {len(notes) + 1}")


@app.task
async def article(topic: str) -> str:
    notes: list[str] = []
    while True:
        draft = await step(write, topic, notes)
        match await approval("review", by="editor"):
            case Approved():
                return draft.text
            case Rejected(reason=why):
                notes = [*notes, why]
