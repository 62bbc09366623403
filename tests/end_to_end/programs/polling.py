# fmt: off
from flowfabric import App, poll
from tests.end_to_end.programs.effects import record_effect, recorded_effects

app = App("polling.db")
def ready(job: str) -> str | None:
    record_effect("asked")
    return f"https://files.example/{job}" if len(recorded_effects) >= 20 else None

@app.task
async def watch(job: str) -> str:
    return await poll("30s", ready, job)
