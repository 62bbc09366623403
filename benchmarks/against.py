"""Compare this checkout with another one: `python3 dev.py bench --against PATH [--only NAME ...]`.

Both trees run their own benchmarks, with the same Python environment and the same PostgreSQL server. Each turn is a
new process. The trees alternate, scenario by scenario, and the order changes from round to round. A ratio
compares the two turns of one round, because a disturbance then tends to affect both.

`speed` is the speed of this checkout divided by the speed of the other. Above 1 this checkout is faster, even if the
figure is a time. `CPU per job` is the CPU time of client and server, divided in the same way. Below 1 this checkout
needs less CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg

from benchmarks.bench import load
from benchmarks.report import OURS
from benchmarks.run import SERVER
from benchmarks.spread import Spread
from benchmarks.table import number, table
from tests.postgres_server import DSN_VARIABLE, postgres_server

ROOT = Path(__file__).resolve().parent.parent
SCENARIOS = ("jobs", "steps", "batches", "waits")
ROUNDS = 5
SECONDS = 1.0
SUMMARY_HEAD = ("what", "backend", "speed", "rounds", "CPU per job")
FIGURE_HEAD = ("scenario", "backend", "who", "unit", "ours", "theirs", "speed", "rounds", "CPU per job")


Key = tuple[str, str, str, str]


class TreeFailed(Exception):
    """A benchmark of a checkout did not complete."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A checkout and its label in messages."""

    label: str
    path: Path

    def check(self) -> None:
        """Raise unless the checkout has sources and benchmarks."""
        for needed in ("src/flowfabric", "benchmarks/run.py"):
            if not (self.path / needed).exists():
                raise TreeFailed(f"{self.path} is no checkout of FlowFabric: {needed} is missing")

    def environment(self, dsn: str) -> dict[str, str]:
        """Return the environment variables that make the tree run its own code on the common server."""
        paths = os.pathsep.join([str(self.path / "src"), str(self.path)])
        return os.environ | {"PYTHONPATH": paths, DSN_VARIABLE: dsn}


@dataclass(frozen=True, slots=True)
class Figure:
    """The result of one turn: a rate or a time, and the CPU per job if the benchmark measures it."""

    backend: str
    who: str
    unit: str
    scenario: str
    value: float
    cpu_us: float | None

    @property
    def key(self) -> Key:
        return self.backend, self.who, self.unit, self.scenario

    @property
    def is_time(self) -> bool:
        return self.unit.startswith("ms")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of both trees, round by round."""

    name: str
    ours: tuple[Figure, ...]
    theirs: tuple[Figure, ...]

    @property
    def speed(self) -> Spread:
        """The speed of this tree divided by the speed of the other tree, in each round."""
        ours, theirs = (Spread.of(figure.value for figure in figures) for figures in (self.ours, self.theirs))
        return theirs.over(ours) if self.ours[0].is_time else ours.over(theirs)

    @property
    def cpu(self) -> Spread | None:
        """The CPU per job of this tree divided by the other tree's, in each round, if all rounds measured it."""
        pairs = [(mine.cpu_us, other.cpu_us) for mine, other in zip(self.ours, self.theirs, strict=True)]
        ratios = [mine / other for mine, other in pairs if mine and other]
        return Spread.of(ratios) if len(ratios) == len(pairs) else None

    @property
    def group(self) -> tuple[str, str]:
        """The line of the summary that the figure belongs to, and the backend."""
        if self.name != "waits":
            return self.name, self.ours[0].backend
        caller = "engine callers" if "engine" in self.ours[0].who else "durable functions"
        return f"waits of {caller}", self.ours[0].backend


def main(arguments: Sequence[str]) -> int:
    """Run the rounds and print the ratios."""
    options = _parser().parse_args(arguments)
    ours, theirs = Tree("ours", ROOT), Tree("theirs", options.against.resolve())
    try:
        theirs.check()
        comparisons = run(ours, theirs, options.only or SCENARIOS, options.rounds, options.seconds)
    except TreeFailed as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print("\n" + report(comparisons))
    if options.json:
        options.json.write_text(to_json(comparisons), encoding="utf-8")
    return 0


def run(ours: Tree, theirs: Tree, names: Sequence[str], rounds: int, seconds: float) -> list[Comparison]:
    """Let both trees take turns and return every figure that both have."""
    began = time.monotonic()
    figures: dict[tuple[str, str], list[list[Figure]]] = {}
    print(f"load before: {load()}", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ff-against-")))
        server = stack.enter_context(postgres_server(**SERVER))
        for turn, (name, tree) in enumerate(turns(ours, theirs, names, rounds), start=1):
            taken = measure(tree, name, seconds, server.dsn, folder)
            figures.setdefault((name, tree.label), []).append(taken)
            passed_s = time.monotonic() - began
            print(f"{passed_s:5.0f} s  {turn} of {2 * rounds * len(names)}: {name}, {tree.label}", flush=True)
    print(f"load after: {load()}", flush=True)
    return [
        comparison
        for name in names
        for comparison in compare(name, figures[name, ours.label], figures[name, theirs.label])
    ]


def turns(ours: Tree, theirs: Tree, names: Sequence[str], rounds: int) -> Iterator[tuple[str, Tree]]:
    """Yield each scenario with each tree in every round. The tree that begins changes every time."""
    for place in range(rounds):
        for index, name in enumerate(names):
            pair = (ours, theirs) if (place + index) % 2 == 0 else (theirs, ours)
            yield from ((name, tree) for tree in pair)


def measure(tree: Tree, name: str, seconds: float, dsn: str, folder: Path) -> list[Figure]:
    """Run one scenario of a tree once, in a new process, and return its figures."""
    file = folder / "figures.json"
    file.unlink(missing_ok=True)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CHECKPOINT")  # Otherwise a turn would also write the dirty pages of the previous turn.
    words = ["--only", name, "--rounds", "1", "--seconds", f"{seconds:g}", "--json", str(file)]
    command = [sys.executable, "-m", "benchmarks.run", *words]
    environment = tree.environment(dsn)
    done = subprocess.run(command, cwd=tree.path, env=environment, capture_output=True, text=True, check=False)
    # The exit code is ignored, because it also reports missed bars, and short turns often miss them.
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    if not text or json.loads(text)["broken"]:
        raise TreeFailed(f"{name} failed in {tree.path}:\n{(done.stdout + done.stderr)[-4000:]}")
    return read_figures(text)


def read_figures(text: str) -> list[Figure]:
    """Return our own rates and times from the JSON of a run. Other systems and bare statements are left out."""
    return [
        Figure(
            backend=series["backend"],
            who=series["who"],
            unit=series["unit"],
            scenario=series["scenario"],
            value=Spread.of(series["figure"]["values"]).median,
            cpu_us=_cpu_us(series["client_us"], series["server_us"]),
        )
        for series in json.loads(text)["series"]
        if series["who"].startswith(OURS) and (series["unit"].endswith("/s") or series["unit"].startswith("ms"))
    ]


def _cpu_us(client_us: float | None, server_us: float | None) -> float | None:
    """Return the CPU per job of client and server. SQLite has no server."""
    return None if client_us is None else client_us + (server_us or 0.0)


def compare(name: str, ours: Sequence[Sequence[Figure]], theirs: Sequence[Sequence[Figure]]) -> list[Comparison]:
    """Return the comparison of each figure of a scenario, given the figures of each round."""
    partners = match(name, ours[0], theirs[0])
    return [Comparison(name, _rounds(ours, figure.key), _rounds(theirs, partners[figure.key])) for figure in ours[0]]


def match(name: str, ours: Sequence[Figure], theirs: Sequence[Figure]) -> dict[Key, Key]:
    """Return a dictionary from the key of each figure of this tree to the key of the matching figure of the other tree.

    Figures with equal labels match. The remaining figures are matched by backend, unit and position, since one tree may
    have reworded a label.
    """
    labels = {figure.key for figure in theirs}
    partners = {figure.key: figure.key for figure in ours if figure.key in labels}
    left_ours = _by_kind(figure for figure in ours if figure.key not in partners)
    left_theirs = _by_kind(figure for figure in theirs if figure.key not in partners)
    for kind in left_ours.keys() | left_theirs.keys():
        mine, other = left_ours.get(kind, []), left_theirs.get(kind, [])
        if len(mine) != len(other):
            keys = [" / ".join(key) for key in [*mine, *other]]
            raise TreeFailed(f"{name}: these figures of one tree have no counterpart in the other: {', '.join(keys)}")
        partners |= zip(mine, other, strict=True)
    return partners


def _by_kind(figures: Iterable[Figure]) -> dict[tuple[str, str], list[Key]]:
    kinds: dict[tuple[str, str], list[Key]] = {}
    for figure in figures:
        kinds.setdefault((figure.backend, figure.unit), []).append(figure.key)
    return kinds


def _rounds(rounds: Sequence[Sequence[Figure]], key: Key) -> tuple[Figure, ...]:
    return tuple(next(figure for figure in figures if figure.key == key) for figures in rounds)


def report(comparisons: Sequence[Comparison]) -> str:
    """Return the table of all figures and the summary."""
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault(comparison.group, []).append(comparison)
    summary = [_summary_row(group, members) for group, members in groups.items()]
    figures = [_figure_row(comparison) for comparison in comparisons]
    return "\n".join([table(FIGURE_HEAD, figures), "", "Geometric means", table(SUMMARY_HEAD, summary)])


def to_json(comparisons: Sequence[Comparison]) -> str:
    """Return every round of every figure as JSON."""
    rows = [
        {
            "scenario": comparison.name,
            "ours": [asdict(figure) for figure in comparison.ours],
            "theirs": [asdict(figure) for figure in comparison.theirs],
            "speed": comparison.speed.values,
            "cpu": comparison.cpu.values if comparison.cpu else None,
        }
        for comparison in comparisons
    ]
    return json.dumps(rows, indent=1, ensure_ascii=False)


def _summary_row(group: tuple[str, str], members: Sequence[Comparison]) -> tuple[str, ...]:
    speed = _mean([member.speed for member in members])
    cpu = [member.cpu for member in members if member.cpu is not None]
    return *group, *_cells(speed), _cpu_cell(_mean(cpu) if cpu else None)


def _figure_row(item: Comparison) -> tuple[str, ...]:
    first = item.ours[0]
    medians = (number(Spread.of(figure.value for figure in side).median) for side in (item.ours, item.theirs))
    return first.scenario, first.backend, first.who, first.unit, *medians, *_cells(item.speed), _cpu_cell(item.cpu)


def _cells(ratio: Spread) -> tuple[str, str]:
    """Return the median, the lowest and the highest value as table cells."""
    return f"{ratio.median:.3f}", f"{ratio.low:.2f} to {ratio.high:.2f}"


def _cpu_cell(ratio: Spread | None) -> str:
    return "" if ratio is None else f"{ratio.median:.3f} ({ratio.low:.2f} to {ratio.high:.2f})"


def _mean(ratios: Sequence[Spread]) -> Spread:
    """Return the geometric mean of each round."""
    rounds = zip(*(ratio.values for ratio in ratios), strict=True)
    return Spread.of(statistics.geometric_mean(values) for values in rounds)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, required=True, metavar="PATH", help="another checkout")
    parser.add_argument("--only", nargs="+", action="extend", metavar="NAME", help=f"{', '.join(SCENARIOS)} (all)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"how often each tree has its turn ({ROUNDS})")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"how long each figure takes ({SECONDS:g})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures of every round")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
