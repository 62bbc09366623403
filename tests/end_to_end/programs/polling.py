# fmt: off
from flowfabric import App, poll
from tests.end_to_end.programs.world import happen, happened

app = App("polling.db")
def ready(job: str) -> str | None:
    happen("asked")
    return f"https://files.example/{job}" if len(happened) >= 20 else None

@app.task
async def watch(job: str) -> str:
    return await poll("30s", ready, job)
