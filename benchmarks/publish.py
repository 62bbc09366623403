"""A run in the documents: pictures in docs/figures, all of it on docs/figures.md, and a part of the README and of the
comparison, between two marks.

`python3 dev.py bench --peers --publish` keeps the run in benchmarks/published.json and writes the rest from it, as
`python -m benchmarks.publish` does again. A test compares, so that nobody types a figure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.bars import Verdict
from benchmarks.contenders import ROOT
from benchmarks.entrants import PEERS
from benchmarks.report import AGAIN, BAR_HEAD, OURS, SERIES_HEAD, Judged, Plot, Report, bar_row, series_row

RUN = ROOT / "benchmarks" / "published.json"
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "figures.md"
PICTURES = ROOT / "docs" / "figures"
COMPARISON = ROOT / "docs" / "comparison.md"

_BEGIN = "<!-- What follows is written by `python3 dev.py bench --peers --publish`. -->"
_END = "<!-- Until here. -->"
_BETWEEN = re.compile(f"(?<={re.escape(_BEGIN)}\n).*?(?={re.escape(_END)})", re.DOTALL)
_PEERS = tuple(peer.who for peer in PEERS)
# What a reader of the README wants to know first; whatever is missed is told there too.
_FIRST = {
    "B1.DBOS", "B1.Absurd", "B1.Procrastinate", "B1.PgQueuer", "B2", "B3.client", "B3.server", "B5.alone",
    "B5.together", "B6", "B8.1000", "B9.rate", "B9.DBOS", "B9.alone", "B12.jobs", "B12.DBOS", "B12.steps", "B12.raw",
}  # fmt: skip


def publish(report: Report, *, is_part: bool = False) -> list[Path]:
    """Writes the run and every document that tells of it. A run of some scenarios leaves the others as they were."""
    if is_part:
        report = Report.read(RUN.read_text(encoding="utf-8")).updated(report)
    RUN.write_text(report.json(), encoding="utf-8")
    PICTURES.mkdir(exist_ok=True)
    for picture in PICTURES.glob("*.svg"):
        picture.unlink()
    found = documents(report)
    for path, text in found.items():
        path.write_text(text, encoding="utf-8")
    return list(found)


def documents(report: Report) -> dict[Path, str]:
    """Every document as it is with this run."""
    pictures = {PICTURES / plot.file_name: plot.picture for plot in report.plots}
    parts = {README: _for_readme(report), COMPARISON: _for_comparison(report)}
    return {PAGE: _page(report), **pictures, **{path: _placed(path, text) for path, text in parts.items()}}


def _placed(path: Path, text: str) -> str:
    """A document with another text between its marks."""
    found, times = _BETWEEN.subn(lambda _: f"\n{text}\n\n", path.read_text(encoding="utf-8"))
    assert times == 1, f"{path} has one place for figures"
    return found


def _for_readme(report: Report) -> str:
    shown = [item for item in report.judged if item.bar.key in _FIRST or item.verdict is Verdict.MISSED]
    measured = [item for item in shown if item.figure is not None]
    bars = _bars(measured, report, "what", "backend", "figure", "must be", "verdict")
    return f"{_printed_by(report)}\n\n{bars}\n\nOf all bars: {report.verdicts}."


def _for_comparison(report: Report) -> str:
    shared = [plot for plot in report.plots if any(item.who in _PEERS for item in plot.series)]
    rows = [series_row(item) for plot in shared for item in plot.series if item.who.startswith((OURS, *_PEERS))]
    names = ("scenario", "backend", "who", "median", "unit", "ours is as fast", "its CPU to ours")
    parts = [_printed_by(report), _table(SERIES_HEAD, rows, *names), *map(_picture, shared), *_left_out(report)]
    return "\n\n".join(parts)


def _page(report: Report) -> str:
    parts = [
        "# Measured figures", _BEGIN, f"{_printed_by(report)} `benchmarks/README.md` tells how to read it.",
        "## With what", _table(("what", "which"), report.notes.items()),
        "## Bars", f"{report.verdicts}.", _bars(report.judged, report),
        "## Scenarios", _table(SERIES_HEAD, map(series_row, report.series)), *map(_picture, report.plots),
        *_left_out(report), _END,
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _printed_by(report: Report) -> str:
    told = f"`{report.notes['command']}` printed this on {report.notes['machine']}."
    if AGAIN in report.notes:
        told += f" Some of it was measured again by `{report.notes[AGAIN]}`."
    return f"{told} It was a quick run, whose figures say little." if report.is_small else told


def _bars(bars: Iterable[Judged], report: Report, *names: str) -> str:
    return _table(BAR_HEAD, [bar_row(item, is_small=report.is_small) for item in bars], *names)


def _left_out(report: Report) -> list[str]:
    """Who could not take part, and what broke: nothing is left out silently."""
    told = [f"- Absent: {who}: {reason}" for who, reason in report.absent.items()]
    told += [f"- Broken: {scenario}: {error}" for scenario, error in report.broken.items()]
    return ["\n".join(told)] if told else []


def _picture(plot: Plot) -> str:
    return f"![{plot.scenario}, {plot.unit}](figures/{plot.file_name})"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *names: str) -> str:
    """The columns of these names, or all, in that order."""
    places = [head.index(name) for name in names or head]
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(row[place].replace('|', '/') for place in places)} |" for row in cells)


if __name__ == "__main__":
    publish(Report.read(RUN.read_text(encoding="utf-8")))
