"""The results of a run: series of figures, judged bars and absent peers, as tables, JSON and charts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.bars import BARS, Bar, Verdict
from benchmarks.plot import Mark, svg
from benchmarks.spread import Spread
from benchmarks.table import number, table

OURS = "FlowFabric"
SERIES_HEAD = (
    "scenario",
    "backend",
    "system",
    "median",
    "unit",
    "spread",
    "client µs",
    "server µs",
    "speedup",
    "relative CPU",
)
BAR_HEAD = ("id", "backend", "measurement", "result", "target", "goal", "verdict")
NO_PEERS = "run with --peers"
AGAIN = "run again in part"


@dataclass(frozen=True, slots=True)
class Series:
    """A figure of one contender in one scenario, with the CPU per job and the ratio to ours."""

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
class Plot:
    """All contenders of one scenario, measured in one unit."""

    scenario: str
    unit: str
    series: tuple[Series, ...]

    @property
    def file_name(self) -> str:
        return _file_name(f"{self.scenario}-{self.unit}") + ".svg"

    @property
    def picture(self) -> str:
        """The SVG chart."""
        marks = [Mark(f"{item.who}, {item.backend}", item.figure, item.is_ours) for item in self.series]
        return svg(self.scenario, self.unit, marks)


@dataclass(frozen=True, slots=True)
class Judged:
    """A bar on one backend and its judgement."""

    bar: Bar
    backend: str
    verdict: Verdict
    figure: Spread | None = None
    reason: str = ""


@dataclass(slots=True)
class Report:
    """The collected results.

    Each figure is printed when it is added. In a quick run, each verdict is printed with a note.
    """

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
        """Add a figure to the report and print it."""
        self.series.append(series)
        self.say("  " + "  ".join(filter(None, series_row(series))))
        return series

    def judge(self, key: str, backend: str, figure: Spread) -> None:
        """Add the figure that is judged against a bar."""
        self._figures[_known(key, backend)] = figure

    def leave_out(self, key: str, backend: str, reason: str, figure: Spread | None = None) -> None:
        """Record why a bar is not judged. A figure that does not fit the bar may be shown next to it."""
        self._reasons[_known(key, backend)] = reason if figure is None else f"{reason}; {number(figure.median)} now"

    @property
    def judged(self) -> list[Judged]:
        """Return every bar, measured or not."""
        return [self._judged(bar, backend) for bar in BARS for backend in bar.backends]

    @property
    def missed(self) -> list[str]:
        return [f"{item.bar.key} on {item.backend}" for item in self.judged if item.verdict is Verdict.MISSED]

    def tables(self) -> str:
        """Return all results as text."""
        rows = [series_row(series) for series in self.series]
        bars = [bar_row(item, is_small=self.is_small) for item in self.judged]
        parts = [*(f"{name}: {text}" for name, text in self.notes.items()), "", table(SERIES_HEAD, rows), ""]
        parts += ["Targets", table(BAR_HEAD, bars), ""]
        parts += [f"absent: {who}: {reason}" for who, reason in self.absent.items()]
        parts += [f"BROKEN: {scenario}: {error}" for scenario, error in self.broken.items()]
        return "\n".join([*parts, self.verdicts])

    @property
    def verdicts(self) -> str:
        """Return how many bars have each verdict."""
        counts = {verdict: sum(item.verdict is verdict for item in self.judged) for verdict in Verdict}
        return ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items())

    def json(self) -> str:
        """Return all results as JSON, with every round."""
        bars = [
            {
                "bar": item.bar.key,
                "backend": item.backend,
                "what": item.bar.text,
                "must be": item.bar.words,
                "verdict": item.verdict.value,
                "reason": item.reason,
                "rounds": item.figure.values if item.figure else None,
            }
            for item in self.judged
        ]
        found = {"small": self.is_small, "notes": self.notes, "series": [asdict(series) for series in self.series]}
        more = {"bars": bars, "absent": self.absent, "broken": self.broken}
        return json.dumps(found | more, indent=1, ensure_ascii=False)

    @classmethod
    def read(cls, text: str) -> Report:
        """Return the report read from JSON, without bars that no longer exist."""
        found = json.loads(text)
        report = cls(is_small=found["small"], absent=found["absent"], broken=found["broken"], notes=found["notes"])
        report.series = [_series(item) for item in found["series"]]
        for item in found["bars"]:
            key = item["bar"], item["backend"]
            if item["rounds"] is not None:
                report._figures[key] = Spread.of(item["rounds"])
            report._reasons[key] = item["reason"]
        return report

    def updated(self, newer: Report) -> Report:
        """Return this report with the scenarios of a newer run replaced."""
        if self.notes["machine"] != newer.notes["machine"]:
            raise ValueError("figures of two machines cannot be combined; run all scenarios on one")
        again = {item.scenario for item in newer.series}
        replaced, before = _scenarios(newer.notes["command"]), self.notes.get(AGAIN, "").split(", ")
        commands = [command for command in before if command and not _scenarios(command) <= replaced]
        return Report(
            is_small=self.is_small or newer.is_small,
            series=[item for item in self.series if item.scenario not in again] + newer.series,
            absent={who: why for who, why in self.absent.items() if who not in newer._there} | newer.absent,
            broken={name: why for name, why in self.broken.items() if name not in replaced} | newer.broken,
            notes=self.notes | {AGAIN: ", ".join([*commands, newer.notes["command"]])},
            _figures=self._figures | newer._figures,
            _reasons=self._reasons | newer._reasons,
        )

    @property
    def _there(self) -> set[str]:
        """Return the contenders that took part, named like the keys of `absent`."""
        return {f"{item.who} on {item.backend}" for item in self.series}

    @property
    def plots(self) -> list[Plot]:
        """Return one chart for each scenario and unit."""
        return [self._plot(*key) for key in dict.fromkeys((item.scenario, item.unit) for item in self.series)]

    def write_plots(self, folder: Path) -> list[Path]:
        """Write every chart."""
        folder.mkdir(parents=True, exist_ok=True)
        for plot in self.plots:
            (folder / plot.file_name).write_text(plot.picture, encoding="utf-8")
        return [folder / plot.file_name for plot in self.plots]

    def _plot(self, scenario: str, unit: str) -> Plot:
        shown = tuple(item for item in self.series if (item.scenario, item.unit) == (scenario, unit))
        return Plot(scenario, unit, shown)

    def _judged(self, bar: Bar, backend: str) -> Judged:
        key = bar.key, backend
        figure = self._figures.get(key)
        if figure is None:
            return Judged(bar, backend, Verdict.NOT_MEASURED, None, self._reasons.get(key, "not run"))
        return Judged(bar, backend, bar.verdict(figure), figure)


def _scenarios(command: str) -> set[str]:
    """Return the scenarios that a command runs."""
    return set(re.findall(r"--only (\S+)", command))


def _series(found: dict[str, Any]) -> Series:
    ratio = found["ratio"] and Spread.of(found["ratio"]["values"])
    return Series(**{**found, "figure": Spread.of(found["figure"]["values"]), "ratio": ratio})


def _known(key: str, backend: str) -> tuple[str, str]:
    if not any(bar.key == key and backend in bar.backends for bar in BARS):
        raise KeyError(f"there is no bar {key} for {backend}")
    return key, backend


def series_row(series: Series) -> tuple[str, ...]:
    """Return the table row of a series, with the columns of `SERIES_HEAD`."""
    ratio = "" if series.ratio is None else "too noisy" if series.ratio.is_noisy else f"{number(series.ratio.median)}x"
    spread = f"±{series.figure.width * 50:.0f} %" if len(series.figure.values) > 1 else ""
    median = number(series.figure.median)
    cpu = number(series.client_us), number(series.server_us)
    cpu_ratio = "" if series.cpu_ratio is None else f"{number(series.cpu_ratio)}x"
    return series.scenario, series.backend, series.who, median, series.unit, spread, *cpu, ratio, cpu_ratio


def bar_row(item: Judged, *, is_small: bool) -> tuple[str, ...]:
    """Return the table row of a bar, with the columns of `BAR_HEAD`."""
    figure = number(item.figure.median) if item.figure else ""
    if item.figure and item.figure.is_noisy:
        figure = f"{number(item.figure.low)} to {number(item.figure.high)}"
    verdict = f"{item.verdict.value}: {item.reason}" if item.reason else item.verdict.value
    if item.figure and is_small and not item.bar.is_counter:
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
