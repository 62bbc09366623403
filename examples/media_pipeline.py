"""A film goes through machines that can do different things; each part waits for a machine that can do it."""

from __future__ import annotations

from contextlib import AsyncExitStack

from flowfabric import App, Handle
from flowfabric.engine import WorkerId
from stage import play

app = App()


@app.task
async def probe(film: str) -> str:
    """Any machine can look at a film."""
    return film.lower()


@app.task(requires=["gpu"])
async def transcode(film: str, height: int) -> str:
    """Only machines with a graphics card get this."""
    return f"{film}.{height}p.mp4"


@app.task(requires=["gpu", "speech-model"])
async def subtitle(film: str) -> str:
    """Needs both; a machine that offers one of them is never asked."""
    return f"{film}.en.vtt"


@app.task
async def package(parts: list[str]) -> str:
    """Runs when all parts are there."""
    return " + ".join(parts)


async def main() -> None:
    flow = app.flow("film")
    film = flow.add(probe, "Metropolis")
    large, small = flow.add(transcode, film.result, 1080), flow.add(transcode, film.result, 480)
    text = flow.add(subtitle, film.result)
    done = flow.add(package, [large.result, small.result, text.result])
    async with app, AsyncExitStack() as machines:
        await machines.enter_async_context(app.worker())
        card = await machines.enter_async_context(app.worker(capabilities=["gpu"]))
        names = {card.id: "the machine with a card"}
        submitted = await flow.submit()
        for part in (large, small):
            print(f"{await submitted[part]:<22} by {await machine(submitted[part], names)}")
        print(f"subtitles: {await submitted[text].explain()}")
        big = await machines.enter_async_context(app.worker(capabilities=["gpu", "speech-model"]))
        names[big.id] = "the big machine"
        print("a machine with a speech model joins")
        print(f"{await submitted[text]:<22} by {await machine(submitted[text], names)}")
        print(await submitted[done])


async def machine(part: Handle[str], names: dict[WorkerId, str]) -> str:
    """Who did it, says the history."""
    [worker] = [event.worker for event in await part.history() if event.name == "acquired" and event.worker]
    return names[worker]


if __name__ == "__main__":
    play(main)
