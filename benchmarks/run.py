"""The benchmarks: `python3 dev.py bench [--quick] [--peers] [--only NAME]`.

benchmarks/README.md explains the output. PostgreSQL is a temporary server with fsync on; SQLite is a file with
synchronous=FULL. Both stores acknowledge durably, for us and for every peer.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
import tempfile
import time
import traceback
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.bench import QUICK, Bench, Plan, load
from benchmarks.counting import server_settings
from benchmarks.entrants import Entrants, entrants
from benchmarks.publish import publish
from benchmarks.report import Report
from benchmarks.scenarios.all import SCENARIOS
from flowfabric.worker.event_loop import event_loop_runner
from tests.postgres_server import DSN_VARIABLE, postgres_server

# Memory and log settings of a small server. fsync and full_page_writes stay on, as in production.
SERVER = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "512MB", "max_wal_size": "4GB"}


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    report = Report(is_small=options.quick)
    report.notes["command"] = _command(arguments)
    report.notes["machine"] = f"{platform.platform()}, {os.cpu_count()} cores, {_processor()}"
    report.notes["Python"] = platform.python_version()
    report.notes["load before"] = load()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ff-bench-")))
        others = stack.enter_context(entrants(folder, report)) if options.peers else Entrants()
        server = stack.enter_context(postgres_server(**SERVER, **server_settings()))
        bench = Bench(_plan(options), report, folder, server.dsn, others)
        bench.before_path = options.before and options.before.resolve()
        with event_loop_runner() as runner:
            runner.run(_run(bench, options.only or list(SCENARIOS)))
    report.notes["load after"] = load()
    return _tell(report, options)


def _command(arguments: list[str]) -> str:
    """Return the command that repeats this run, without the options that only name output files."""
    pairs = zip(["", *arguments], arguments, strict=False)
    told = [word for before, word in pairs if not {before, word} & {"--json", "--plots"}]
    return shlex.join(["python3", "dev.py", "bench", *told])


async def _run(bench: Bench, names: list[str]) -> None:
    await bench.find_server()
    for name in names:
        began = time.monotonic()
        bench.report.say(f"{name}: {str(SCENARIOS[name].__doc__).splitlines()[0]}")
        try:
            await SCENARIOS[name](bench)
        except Exception as error:
            traceback.print_exc()
            bench.report.broken[name] = f"{type(error).__name__}: {error}"
        bench.report.say(f"  {time.monotonic() - began:.0f} s")
    if os.environ.get(DSN_VARIABLE):
        await bench.drop()


def _tell(report: Report, options: argparse.Namespace) -> int:
    """Print and write the results. A missed bar fails a full run; only a broken scenario fails a quick run."""
    report.say("\n" + report.tables())
    if options.json:
        options.json.write_text(report.json(), encoding="utf-8")
    if options.plots:
        report.say(f"{len(report.write_plots(options.plots))} plots in {options.plots}")
    if options.publish:
        report.say(f"{len(publish(report, is_part=bool(options.only)))} documents written")
    if options.quick:
        report.say("Quick run: every scenario was small, so only the verdicts of counters are meaningful.")
    if report.broken:
        return 1
    return 0 if options.quick else int(bool(report.missed))


def _plan(options: argparse.Namespace) -> Plan:
    plan = QUICK if options.quick else Plan(is_quick=False)
    given = {name: getattr(options, name) for name in ("seconds", "rounds", "minutes")}
    return replace(plan, **{name: value for name, value in given.items() if value is not None})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="every scenario small; missed bars do not fail it")
    parser.add_argument("--peers", action="store_true", help="measure the peers too; dev.py installs them first")
    parser.add_argument("--only", action="append", choices=SCENARIOS, metavar="NAME", help=", ".join(SCENARIOS))
    parser.add_argument("--seconds", type=float, help="how long each turn is")
    parser.add_argument("--rounds", type=int, help="how often the contenders take turns")
    parser.add_argument("--minutes", type=float, help="how long the steady load lasts; its bar requires 30")
    parser.add_argument("--before", type=Path, metavar="PATH", help="also measure the checkout before a change")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure of every round")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write one SVG for each scenario")
    parser.add_argument("--publish", action="store_true", help="write the figures into the README and docs/")
    return parser


def _processor() -> str:
    """Return the name of the processor, if the system reports it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")), "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
