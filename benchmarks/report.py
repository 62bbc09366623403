"""What a run found: series of figures, judged bars, who was absent; as tables, as JSON, and as plots."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.bars import BARS, Bar, Verdict
from benchmarks.plot import Mark, svg
from benchmarks.spread import Spread
from benchmarks.table import number, table

OURS = "FlowFabric"
_HEAD = (
    "scenario",
    "backend",
    "who",
    "median",
    "unit",
    "spread",
    "client µs",
    "server µs",
    "ours is as fast",
    "its CPU to ours",
)
_BAR_HEAD = ("bar", "backend", "what", "figure", "must be", "aim", "verdict")
NO_PEERS = "run with --peers"


@dataclass(frozen=True, slots=True)
class Series:
    """A figure of one contender in one scenario, with the CPU per job, and how it compares with ours."""

    scenario: str
    backend: str
    who: str
    unit: str
    figure: Spread
    client_us: float | None = None
    server_us: float | None = None
    ratio: Spread | None = None
    cpu_ratio: float | None = None

    @property
    def is_ours(self) -> bool:
        return self.who.startswith(OURS)


@dataclass(frozen=True, slots=True)
class Judged:
    """A bar on one backend, and what is known about it."""

    bar: Bar
    backend: str
    verdict: Verdict
    figure: Spread | None = None
    reason: str = ""


@dataclass(slots=True)
class Report:
    """Collects what is found; prints each figure as it comes. A quick run is small, and its verdicts say so."""

    is_small: bool = False
    series: list[Series] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    _figures: dict[tuple[str, str], Spread] = field(default_factory=dict)
    _reasons: dict[tuple[str, str], str] = field(default_factory=dict)

    def say(self, text: str) -> None:
        print(text, flush=True)

    def add(self, series: Series) -> Series:
        """A figure to be shown."""
        self.series.append(series)
        self.say("  " + "  ".join(filter(None, _row(series))))
        return series

    def judge(self, key: str, backend: str, figure: Spread) -> None:
        """A figure that a bar is set for."""
        self._figures[_known(key, backend)] = figure

    def leave_out(self, key: str, backend: str, reason: str, figure: Spread | None = None) -> None:
        """Why a bar is not judged. A figure that is not what the bar asks for is shown beside it."""
        self._reasons[_known(key, backend)] = reason if figure is None else f"{reason}; {number(figure.median)} now"

    @property
    def judged(self) -> list[Judged]:
        """Every bar, whether it was measured or not."""
        return [self._judged(bar, backend) for bar in BARS for backend in bar.backends]

    @property
    def missed(self) -> list[str]:
        return [f"{item.bar.key} on {item.backend}" for item in self.judged if item.verdict is Verdict.MISSED]

    def tables(self) -> str:
        """All that was found, as text."""
        rows = [_row(series) for series in self.series]
        bars = [_bar_row(item, is_small=self.is_small) for item in self.judged]
        parts = [*(f"{name}: {text}" for name, text in self.notes.items()), "", table(_HEAD, rows), ""]
        parts += ["Bars", table(_BAR_HEAD, bars), ""]
        parts += [f"absent: {who}: {reason}" for who, reason in self.absent.items()]
        parts += [f"BROKEN: {scenario}: {error}" for scenario, error in self.broken.items()]
        counts = {verdict: sum(item.verdict is verdict for item in self.judged) for verdict in Verdict}
        return "\n".join([*parts, ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items())])

    def json(self) -> str:
        """The same, with every round."""
        bars = [
            {"bar": item.bar.key, "backend": item.backend, "what": item.bar.text, "must be": item.bar.words,
             "verdict": item.verdict.value, "reason": item.reason,
             "rounds": item.figure.values if item.figure else None}
            for item in self.judged
        ]  # fmt: skip
        found = {"notes": self.notes, "series": [asdict(series) for series in self.series], "bars": bars}
        return json.dumps(found | {"absent": self.absent, "broken": self.broken}, indent=1, ensure_ascii=False)

    def write_plots(self, folder: Path) -> list[Path]:
        """One picture for each scenario and unit."""
        folder.mkdir(parents=True, exist_ok=True)
        return [self._write_plot(folder, *key) for key in dict.fromkeys((s.scenario, s.unit) for s in self.series)]

    def _write_plot(self, folder: Path, scenario: str, unit: str) -> Path:
        shown = [series for series in self.series if (series.scenario, series.unit) == (scenario, unit)]
        marks = [Mark(f"{series.who}, {series.backend}", series.figure, series.is_ours) for series in shown]
        path = folder / (_file_name(f"{scenario}-{unit}") + ".svg")
        path.write_text(svg(scenario, unit, marks), encoding="utf-8")
        return path

    def _judged(self, bar: Bar, backend: str) -> Judged:
        key = bar.key, backend
        figure = self._figures.get(key)
        if figure is None:
            return Judged(bar, backend, Verdict.NOT_MEASURED, None, self._reasons.get(key, "not run"))
        return Judged(bar, backend, bar.verdict(figure), figure)


def _known(key: str, backend: str) -> tuple[str, str]:
    if not any(bar.key == key and backend in bar.backends for bar in BARS):
        raise KeyError(f"there is no bar {key} for {backend}")
    return key, backend


def _row(series: Series) -> tuple[str, ...]:
    ratio = "" if series.ratio is None else "too noisy" if series.ratio.is_noisy else f"{number(series.ratio.median)}x"
    spread = f"±{series.figure.width * 50:.0f} %" if len(series.figure.values) > 1 else ""
    median = number(series.figure.median)
    cpu = number(series.client_us), number(series.server_us)
    cpu_ratio = "" if series.cpu_ratio is None else f"{number(series.cpu_ratio)}x"
    return series.scenario, series.backend, series.who, median, series.unit, spread, *cpu, ratio, cpu_ratio


def _bar_row(item: Judged, *, is_small: bool) -> tuple[str, ...]:
    figure = number(item.figure.median) if item.figure else ""
    if item.figure and item.figure.is_noisy:
        figure = f"{number(item.figure.low)} to {number(item.figure.high)}"
    verdict = f"{item.verdict.value}: {item.reason}" if item.reason else item.verdict.value
    if item.figure and is_small:
        verdict += ", at a small size"
    aim = "" if item.bar.aim is None else f"{item.bar.aim:,g}"
    return item.bar.key, item.backend, item.bar.text, figure, item.bar.words, aim, verdict


def _file_name(text: str) -> str:
    return "".join(_letters(text)).strip("-")


def _letters(text: str) -> Iterator[str]:
    before = "-"
    for letter in text.lower().replace("/s", " per second"):
        plain = letter if letter.isascii() and letter.isalnum() else "-"
        if plain != "-" or before != "-":
            yield plain
        before = plain
