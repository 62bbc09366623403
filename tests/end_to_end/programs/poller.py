# ruff: noqa: E701, E702, E704, RET503 - kept as short as possible
# fmt: off
from datetime import datetime, timedelta

from flowfabric import App, now, sleep, step
from tests.end_to_end.programs.effects import record_effect

app = App("poller.db")
def ready(at: datetime, since: datetime) -> bool: record_effect("asked"); return at - since > timedelta(seconds=80)

@app.task
async def watch(job: str, since: datetime | None = None, seen: int = 0) -> str:
    since = since or now()
    for turn in range(2):
        if await step(ready, now(), since): return f"{job} ready at {seen + turn + 1}"
        await sleep("30s")
    watch.continue_with(job, since, seen + 2)
