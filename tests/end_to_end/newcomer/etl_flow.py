"""A nightly flow of 202 members: 200 parts are extracted and loaded, a report adds them up, an alarm follows a failure.

flowfabric worker etl_flow:app
python etl_flow.py
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from flowfabric import App, Signal, step, wait_signal

app = App(options=json.loads(os.environ["ETL_OPTIONS"]))
EFFECTS = Path("effects.txt")
PARTS = 200
delivered = Signal("delivered", bool)
NUMBERS = {str(number): number for number in range(PARTS) if number != 13}


def note(effect: str) -> None:
    with EFFECTS.open("a") as file:
        file.write(f"{effect}\n")


def download(part: int) -> str:
    note(f"downloaded {part}")
    return str(part)


def check(text: str) -> None:
    note(f"checked {text}")


def load(text: str) -> int:
    note(f"loaded {text}")
    return NUMBERS[text]


@app.task(retries=0, signals=[delivered])
async def extract(part: int) -> int:
    text = await step(download, part)
    if part % 10 == 0:
        await wait_signal(delivered)
    return await step(load, text)


@app.task
async def report(numbers: list[int]) -> int:
    return sum(numbers)


@app.task
async def alarm(what: str) -> None:
    note(f"alarm for {what}")


def main() -> None:
    flow = app.flow("nightly")
    parts = [flow.add(extract, number) for number in range(PARTS)]
    total = flow.add(report, [part.result for part in parts])
    flow.after(flow.add(alarm, "the report"), total, on="failure")
    handle = flow.sync.submit()
    sys.stdout.write(f"{handle.id} {handle[total].id} {handle[parts[13]].id}\n")


if __name__ == "__main__":
    main()
