"""A remote service renders a film and replies by a callback."""

from dataclasses import dataclass

from flowfabric import App, Received, TimedOut, callback, step

app = App("rendering.db", url="https://films.example/ff")


@dataclass
class Film:
    seconds: int
    address: str


async def order(script: str, reply_to: str) -> None: ...


@app.task
async def render(script: str) -> int:
    reply = callback("film", Film, timeout="2h")
    await step(order, script, await reply.url())
    match await reply:
        case Received(value=film):
            return film.seconds
        case TimedOut():
            return -1
