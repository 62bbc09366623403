"""A task that is a plain function, and a script that submits it."""

from flowfabric import App, Approved, Rejected, Signal, TimedOut, sync

app = App("plain.db")
stop = Signal("stop", str)


def load(path: str) -> int:
    return len(path)


async def store(size: int) -> str:
    return f"{size} stored"


@app.task(signals=[stop])
def resize(path: str) -> str:
    size, repeated = sync.gather(lambda: sync.step(load, path), lambda: sync.step(load, path))
    sync.sleep("1s")
    with sync.saga() as undo:
        undo.add(store, size)
    match sync.wait_signal(stop, timeout="1s"):
        case TimedOut():
            pass
        case received:
            return received.value
    match sync.approval("publish", by="editor", timeout="1d").wait():
        case Approved():
            return sync.step(store, size + repeated)
        case Rejected(reason=why):
            return why
        case TimedOut():
            return "no decision"


def main() -> None:
    handle = resize.sync.submit("a.png")
    handle.signal(stop, "enough")
    text: str = handle.result("1m")
    assert text
