"""Waiting for something outside, by `poll` and by hand."""

from flowfabric import App, poll, sleep, step

app = App("watching.db")


def arrived(parcel: str) -> str | None:
    return f"{parcel} is at the door"


@app.task
async def watch(parcel: str) -> str:
    return await poll("30s", arrived, parcel)


@app.task  # noqa: RET503 - continue_with never returns
async def watch_by_hand(parcel: str, looked: int = 0) -> str:
    for number in range(50):
        if found := await step(arrived, parcel):
            return f"{found}, after {looked + number} looks"
        await sleep("30s")
    watch_by_hand.continue_with(parcel, looked + 50)
