"""A media pipeline: each part waits for a worker that offers the required capabilities."""

from __future__ import annotations

from contextlib import AsyncExitStack

from flowfabric import App, Handle
from flowfabric.engine import WorkerId
from stage import play

app = App()


@app.task
async def probe(film: str) -> str:
    """Inspect a film. Every worker can run this."""
    return film.lower()


@app.task(requires=["gpu"])
async def transcode(film: str, height: int) -> str:
    """Transcode a film. Only workers that offer `gpu` can run this."""
    return f"{film}.{height}p.mp4"


@app.task(requires=["gpu", "speech-model"])
async def subtitle(film: str) -> str:
    """Create subtitles. A worker must offer both capabilities to run this."""
    return f"{film}.en.vtt"


@app.task
async def package(parts: list[str]) -> str:
    """Package the parts. This runs when all parts exist."""
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
        names = {card.id: "the GPU worker"}
        submitted = await flow.submit()
        for part in (large, small):
            print(f"{await submitted[part]:<22} by {await machine(submitted[part], names)}")
        print(f"subtitles: {await submitted[text].explain()}")
        big = await machines.enter_async_context(app.worker(capabilities=["gpu", "speech-model"]))
        names[big.id] = "the speech worker"
        print("a worker with a speech model starts")
        print(f"{await submitted[text]:<22} by {await machine(submitted[text], names)}")
        print(await submitted[done])


async def machine(part: Handle[str], names: dict[WorkerId, str]) -> str:
    """Return the name of the worker that ran a part, as recorded in its history."""
    [worker] = [event.worker for event in await part.history() if event.name == "acquired" and event.worker]
    return names[worker]


if __name__ == "__main__":
    play(main)
