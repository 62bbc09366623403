# ruff: noqa: E701, E702, E704 - kept as short as possible
# fmt: off
from flowfabric import App, PermanentError, saga, step
from tests.end_to_end.programs.effects import record_effect

app = App("trips.db")
def book(what: str) -> str:
    if what == "car": raise PermanentError("no car left")
    record_effect(f"booked {what}"); return f"{what}-1"
def cancel(booking: str) -> None: record_effect(f"cancelled {booking}")

@app.task
async def trip(parts: list[str]) -> list[str]:
    async with saga() as undo:
        booked: list[str] = []
        for part in parts:
            booked.append(await step(book, part))
            undo.add(cancel, booked[-1])
        return booked
