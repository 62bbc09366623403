"""The verbs that submit executions and look at them."""

from __future__ import annotations

from flowfabric.cli.verbs.declaring import Verb, argument, flag, many

STATES = (
    "waiting", "delayed", "blocked", "active", "suspended", "completed", "failed", "cancelled", "expired", "skipped",
)  # fmt: skip
FAMILIES = ("lease", "lifecycle", "completion", "signal", "operator", "flow", "worker")
EXECUTION = argument("id", metavar="ID", help="the execution")
TAG = many("--tag", metavar="KEY=VALUE", help="only with this tag; may be repeated")
LIMIT = argument("--limit", type=int, default=50, metavar="N", help="how many at most (50)")
CURSOR = argument("--cursor", help="go on after the last page, with the same filters")
SINCE = argument("--since", metavar="TIME", help="made at or after this time: 2031-05-01T08:00Z, or 2h for 2 hours ago")
UNTIL = argument("--until", metavar="TIME", help="made before this time")

SUBMIT = Verb(
    name="submit", help="store an execution", run="submit:submit",
    about="""The input is a JSON value, `-` to read it from standard input, or `@file`; for a task it is an object with
its parameters by name. Without --app nothing is known of the task but its kind: it gets the lane, the retries and the
signals that are given here. With --app it gets those that its decorator says, and goes to the app's store.""",
    arguments=(
        argument("kind", metavar="KIND", help="the kind, which is the name of the task"),
        argument("input", metavar="INPUT", nargs="?", default="{}", help="its input as JSON ({})"),
        argument("--app", metavar="MODULE:APP", help="import this app, and submit as its task would"),
        argument("--lane", help="the lane (default)"),
        argument("--priority", type=int, metavar="N", help="0 to 9000, higher first (0)"),
        argument("--key", help="an idempotency key: the same again is stored once"),
        argument("--id", metavar="ID", help="the id to store it under"),
        argument("--delay", metavar="DURATION", help="start no earlier than after this time, such as 90s or 2h"),
        argument("--deadline", metavar="DURATION", help="expire after this time, whatever happened by then"),
        argument("--retries", type=int, metavar="N", help="how often to retry (3)"),
        many("--requires", metavar="CAPABILITY", help="only for workers that offer this; may be repeated"),
        many("--signal", metavar="NAME", help="take signals of this name; may be repeated"),
        many("--tag", metavar="KEY=VALUE", help="a tag; may be repeated"),
        flag("--wait", help="wait until it has ended, and print its result"),
        argument("--timeout", metavar="DURATION", help="wait no longer than this"),
    ),
)  # fmt: skip
LIST = Verb(
    name="list", help="list executions, the newest first", run="listing:list_executions",
    arguments=(
        argument("--state", choices=STATES, help="only in this state"),
        argument("--lane", help="only on this lane"), argument("--kind", help="only of this kind"),
        TAG, SINCE, UNTIL, argument("--limit", type=int, metavar="N", help=LIMIT.help), CURSOR,
        flag("--all", help="all pages, one after another"),
    ),
)  # fmt: skip
SHOW = Verb(
    name="show", help="show everything about one execution", run="show:show",
    arguments=(EXECUTION, flag("--steps", help="with its recorded steps")),
)  # fmt: skip
HISTORY = Verb(
    name="history", help="show the events of one execution", run="history:show_history", arguments=(EXECUTION,)
)
EXPLAIN = Verb(
    name="explain", help="say why an execution is not running", run="explain:explain", arguments=(EXECUTION,)
)
EVENTS = Verb(
    name="events", help="show events in order", run="events:show_events",
    arguments=(
        flag("--follow", "-f", help="go on with what happens, until interrupted"),
        argument("--from", dest="start", choices=("beginning", "now"), help="where to begin without a cursor"),
        argument("--cursor", help="begin after this cursor, which --json shows"),
        argument("--name", help="read as this named subscriber, which goes on where it was"),
        argument("--family", action="append", choices=FAMILIES, help="only of this family; may be repeated"),
        argument("--lane", help="only of this lane"), argument("--kind", help="only of this kind"),
        argument("--flow", metavar="ID", help="only of this flow"),
        argument("--execution", metavar="ID", help="only of this execution"), TAG,
    ),
)  # fmt: skip

VERBS = (SUBMIT, LIST, SHOW, HISTORY, EXPLAIN, EVENTS)
