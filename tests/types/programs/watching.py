"""Waiting for an external condition with `poll` and with a loop."""

from flowfabric import App, poll, sleep, step

app = App("watching.db")


def arrived(parcel: str) -> str | None:
    return f"{parcel} is at the door"


@app.task
async def watch(parcel: str) -> str:
    return await poll("30s", arrived, parcel)


@app.task  # noqa: RET503 - continue_with never returns
async def watch_in_loop(parcel: str, checked: int = 0) -> str:
    for number in range(50):
        if message := await step(arrived, parcel):
            return f"{message}, after {checked + number} checks"
        await sleep("30s")
    watch_in_loop.continue_with(parcel, checked + 50)
