"""Bookings that are compensated together."""

from flowfabric import App, PermanentError, saga, step

app = App("journey.db")


def book(what: str) -> str:
    if what == "balloon":
        raise PermanentError("no balloon left")
    return f"{what}-1"


async def give_back(ticket: str) -> None: ...


@app.task
async def journey(parts: list[str]) -> list[str]:
    tickets: list[str] = []
    async with saga() as undo:
        for part in parts:
            tickets.append(await step(book, part))
            undo.add(give_back, tickets[-1])
    return tickets
