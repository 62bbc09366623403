"""The verbs that work for a store, look at it as a whole, and look after it."""

from __future__ import annotations

from flowfabric.cli.verbs.declaring import Verb, argument, flag, many
from flowfabric.cli.verbs.executions import CURSOR, LIMIT, TAG

FLOW_STATES = ("open", "running", "blocked", "completed", "failed", "cancelled")
SHELLS = ("bash", "zsh", "fish")
LANE = argument("lane", metavar="LANE", help="the lane")
KID = argument("kid", metavar="KID", nargs="?", help="the name of the new key; drawn if it is not given")
SECRET = argument("--secret-file", metavar="FILE", help="the file with its 64 hex characters; - reads standard input")

WORKER = Verb(
    name="worker", help="work on the tasks of an app", run="worker:work",
    about="""Works until SIGTERM or Ctrl-C, then drains: what runs is given back at its next durable call, and no
attempt is used. A second Ctrl-C ends it at once. The store and the namespace are the app's; --store and the other
options for it count if the app says nothing else.""",
    arguments=(
        argument("app", metavar="MODULE:APP", help="the app, looked for in the working directory too"),
        argument("--concurrency", type=int, default=16, metavar="N", help="how many executions at once (16)"),
        many("--lane", help="a lane to work on; may be repeated (default)"),
        many("--capability", help="a capability to offer; may be repeated"),
        argument("--lease", metavar="DURATION", default="30s", help="how long a lease lasts (30s)"),
        flag("--quiet", "-q", help="no log but warnings"),
    ),
)  # fmt: skip
LANES = Verb(
    name="lanes", help="list lanes, pause, resume and drain them", run="lanes:list_lanes",
    verbs=(
        Verb(name="list", help="list lanes with what waits on them", run="lanes:list_lanes"),
        Verb(
            name="pause", help="give out no work of a lane", run="lanes:pause", operates=True, arguments=(LANE,)
        ),
        Verb(
            name="resume", help="accept and give out work again", run="lanes:resume", operates=True, arguments=(LANE,)
        ),
        Verb(
            name="drain", help="accept no new work on a lane", run="lanes:drain", operates=True, arguments=(LANE,)
        ),
    ),
)  # fmt: skip
FLOWS = Verb(
    name="flows", help="list flows, or draw one", run="flows:show_flows",
    arguments=(
        argument("id", metavar="ID", nargs="?", help="the flow to draw"),
        argument("--state", choices=FLOW_STATES, help="only in this state"),
        argument("--name", help="only with this name"), TAG, LIMIT, CURSOR,
    ),
)  # fmt: skip
WAITPOINTS = Verb(
    name="waitpoints", help="list what is suspended, or the waitpoints of one execution", run="waitpoints:show_waits",
    arguments=(argument("id", metavar="ID", nargs="?", help="the execution"), LIMIT),
)  # fmt: skip
KEYS = Verb(
    name="keys", help="list and rotate the keys that sign tokens", run="keys:list_keys",
    verbs=(
        Verb(name="list", help="list keys, without their secrets", run="keys:list_keys"),
        Verb(
            name="rotate", help="make another key active", run="keys:rotate", operates=True, asks=True,
            about="""The old key verifies for 24 hours and as long as an open waitpoint has its token from it; with
--grace exactly that long, which cuts open waitpoints off.""",
            arguments=(KID, argument("--grace", metavar="DURATION", help="how long the old key verifies"), SECRET),
        ),
        Verb(
            name="seed", help="give a store its first key", run="keys:seed", operates=True, arguments=(
                argument("kid", metavar="KID", help="the name of the key"),
                argument("--secret-file", metavar="FILE", required=True, help=SECRET.help),
            ),
        ),
    ),
)  # fmt: skip
WORKERS = Verb(
    name="workers", help="list live workers, or take one out of the register", run="workers:list_workers",
    verbs=(
        Verb(
            name="list", help="list live workers", run="workers:list_workers",
            arguments=(argument("--lane", help="only of this lane"),),
        ),
        Verb(
            name="remove", help="take a dead worker out of the register", run="workers:remove", operates=True,
            asks=True, about="Its leases run out by themselves, or are revoked one by one.",
            arguments=(argument("instance", metavar="INSTANCE", help="the instance, as the list shows it"),),
        ),
    ),
)  # fmt: skip
STATS = Verb(name="stats", help="count executions, what waits, and workers", run="stats:show_stats")
DOCTOR = Verb(
    name="doctor", help="look at the store and say what to do", run="doctor:examine",
    about="""Looks at the store, its schema, its durability, the clock, the keys, wake-ups, workers, and lanes with
work that nobody takes. The exit code is 1 if something is wrong; warnings leave it 0.""",
)  # fmt: skip
MIGRATE = Verb(
    name="migrate", help="make a store, or bring its schema up to date", run="migrate:migrate",
    arguments=(flag("--check", help="change nothing; exit code 1 if there is something to do"),),
)  # fmt: skip
CHECK = Verb(
    name="check", help="look at tasks and steps for what goes wrong when they run again", run="check:run_check",
    about="""A file, a folder or the name of a module is read as text, and nothing of it is imported. MODULE:APP is read
too, and then imported, and the app's own check resolves all annotations. A finding on a line is silenced by
`# flowfabric: ignore[code]`.""",
    arguments=(argument("targets", nargs="+", metavar="TARGET", help="a file, a folder, a module or MODULE:APP"),),
)  # fmt: skip
BENCH = Verb(
    name="bench", help="measure submit, claim and complete on this store", run="bench:bench",
    about="It works in a namespace with a drawn name, of which nothing is left afterwards.",
    arguments=(
        argument("--executions", "-n", type=int, default=1000, metavar="N", help="how many, up to 100000 (1000)"),
        argument("--batch", type=int, default=50, metavar="N", help="how many at once, up to 1000 (50)"),
    ),
)  # fmt: skip
COMPLETION = Verb(
    name="completion", help="print the completion of a shell", run="completion:print_completion",
    about="""bash: `source <(flowfabric completion bash)`; zsh: `source <(flowfabric completion zsh)` after compinit;
fish: `flowfabric completion fish | source`.""",
    arguments=(argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish"),),
)  # fmt: skip

VERBS = (
    WORKER, LANES, FLOWS, WAITPOINTS, KEYS, WORKERS, STATS, DOCTOR, MIGRATE, CHECK, BENCH, COMPLETION
)  # fmt: skip
