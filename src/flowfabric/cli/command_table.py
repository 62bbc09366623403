"""The table of all commands. The parser, the help, the completion and the reference are generated from it."""

from __future__ import annotations

from flowfabric.cli.spec import Argument, CommandSpec, argument, flag, repeatable

# Commands that submit and show executions.
STATES = (
    "waiting", "delayed", "blocked", "active", "suspended", "completed", "failed", "cancelled", "expired", "skipped",
)  # fmt: skip
FAMILIES = ("lease", "lifecycle", "completion", "signal", "operator", "flow", "worker")
EXECUTION = argument("id", metavar="ID", help="the execution")
TAG = repeatable("--tag", metavar="KEY=VALUE", help="only with this tag; repeatable")
LIMIT = argument("--limit", type=int, default=50, metavar="N", help="show at most N (50)")
CURSOR = argument("--cursor", help="continue after the previous page, with the same filters")
SINCE = argument("--since", metavar="TIME", help="created since this time: 2031-05-01T08:00Z, or 2h for 2 hours ago")
UNTIL = argument("--until", metavar="TIME", help="created before this time")

SUBMIT = CommandSpec(
    name="submit", help="submit an execution", run="submit:submit",
    description="""The input is a JSON value, `-` to read it from standard input, or `@file`. For a task it is an
object with the parameters by name. Without --app, these options set the lane, the retries and the signals. With --app,
they default to the task's decorator, and the execution is submitted to the app's store.""",
    arguments=(
        argument("kind", metavar="KIND", help="the kind, which is the name of the task"),
        argument("input", metavar="INPUT", nargs="?", default="{}", help="the input as JSON ({})"),
        argument("--app", metavar="MODULE:APP", help="import this app and use the settings of its task"),
        argument("--lane", help="the lane (default)"),
        argument("--priority", type=int, metavar="N", help="0 to 9000, higher first (0)"),
        argument("--key", help="an idempotency key; repeating the submit stores nothing new"),
        argument("--id", metavar="ID", help="the id of the new execution"),
        argument("--delay", metavar="DURATION", help="start after this time, such as 90s or 2h"),
        argument("--deadline", metavar="DURATION", help="expire if it has not ended after this time"),
        argument("--retries", type=int, metavar="N", help="the maximum number of retries (3)"),
        repeatable("--requires", metavar="CAPABILITY", help="run only on workers that offer this; repeatable"),
        repeatable("--signal", metavar="NAME", help="accept signals of this name; repeatable"),
        repeatable("--tag", metavar="KEY=VALUE", help="add a tag; repeatable"),
        argument("--creator", metavar="WHO", help="who submits, as shown by show and list --json"),
        flag("--wait", help="wait until it ends and print its result"),
        argument("--timeout", metavar="DURATION", help="wait at most this long"),
    ),
)  # fmt: skip
LIST = CommandSpec(
    name="list", help="list executions, newest first", run="show:list_executions",
    arguments=(
        repeatable("--state", choices=STATES, help="only in this state; repeatable"),
        argument("--lane", help="only on this lane"), argument("--kind", help="only of this kind"),
        argument("--flow", metavar="ID", help="only members of this flow"),
        argument("--key", help="only the execution that holds this idempotency key"),
        TAG, SINCE, UNTIL, argument("--limit", type=int, metavar="N", help=LIMIT.help), CURSOR,
        flag("--all", help="show all pages"),
    ),
)  # fmt: skip
SHOW = CommandSpec(
    name="show", help="show everything about one execution", run="show:show",
    arguments=(
        argument("id", metavar="ID", nargs="?", help="the execution"),
        argument("--key", help="show the execution that holds this idempotency key"),
        flag("--steps", help="show its recorded steps too"),
    ),
)  # fmt: skip
HISTORY = CommandSpec(
    name="history", help="show the events of one execution", run="events:show_history", arguments=(EXECUTION,)
)
EXPLAIN = CommandSpec(
    name="explain", help="explain why an execution is not running", run="show:explain", arguments=(EXECUTION,)
)
EVENTS = CommandSpec(
    name="events", help="show events in order", run="events:show_events",
    arguments=(
        flag("--follow", "-f", help="print new events until interrupted"),
        argument("--from", dest="start", choices=("beginning", "now"), help="where to start without a cursor"),
        argument("--cursor", help="start after this cursor, as printed by --json"),
        argument("--name", help="read as this named subscriber, from its last position"),
        argument("--family", action="append", choices=FAMILIES, help="only of this family; repeatable"),
        argument("--lane", help="only on this lane"), argument("--kind", help="only of this kind"),
        argument("--flow", metavar="ID", help="only of this flow"),
        argument("--execution", metavar="ID", help="only of this execution"), TAG,
    ),
)  # fmt: skip

EXECUTION_COMMANDS = (SUBMIT, LIST, SHOW, HISTORY, EXPLAIN, EVENTS)

# Commands that change executions.
ENDED, HELD_FROM = ("completed", "failed", "cancelled", "expired", "skipped"), ("waiting", "delayed")
BULK_NOTE = "With --all, it acts on every execution that matches the filters."


def bulk_arguments(states: tuple[str, ...], default: str) -> tuple[Argument, ...]:
    """Return the arguments of a command that acts on one execution, or on all that match filters."""
    return (
        argument("id", metavar="ID", nargs="?", help="the execution"),
        flag("--all", help="act on all executions that match the filters below"),
        flag("--dry-run", help="with --all: only list the executions"),
        repeatable("--state", choices=states, help=f"with --all: only in this state; repeatable ({default})"),
        argument("--lane", help="with --all: only on this lane"),
        argument("--kind", help="with --all: only of this kind"),
        repeatable("--tag", metavar="KEY=VALUE", help="with --all: only with this tag; repeatable"),
        argument("--since", metavar="TIME", help=f"with --all: {SINCE.help}"),
        argument("--until", metavar="TIME", help=f"with --all: {UNTIL.help}"),
    )


POLICIES = ("cancel_all", "cancel_pending", "flow_only")

SIGNAL = CommandSpec(
    name="signal", help="deliver a signal", run="signals:signal", is_audited=True, reason_help=None,
    description="""With an execution, the signal goes to its standing waitpoint of that name, or else to the open wait
for it. With a token or a link, it goes to the wait that the token was issued for. The payload is a JSON value, `-` to
read it from standard input, or `@file`.""",
    arguments=(
        argument("target", metavar="ID|TOKEN", help="the execution, or the token or link of a wait"),
        argument("name", metavar="NAME", help="the name of the signal"),
        argument("payload", metavar="PAYLOAD", nargs="?", default="null", help="the payload as JSON (null)"),
        argument("--key", help="an idempotency key; repeating the signal delivers nothing new"),
        argument("--signal-id", metavar="ID", help="the id of the signal; repeating it delivers nothing new"),
    ),
)  # fmt: skip
DECISION = (
    argument("target", metavar="ID|TOKEN", help="the execution or the waitpoint, or the token or link of an approver"),
    argument("--as", dest="approver", metavar="NAME", help="decide for this approver; without it, as the principal"),
)
DECISION_NOTE = """With an execution, the decision is for its open approval; if there are several, they are listed, and
one of their waitpoints must be named. The history records the principal. Only the first decision of an approver
counts, by any route."""
APPROVE = CommandSpec(
    name="approve", help="approve a request", run="approvals:approve", is_audited=True,
    reason_help="a comment, for the task", description=DECISION_NOTE, arguments=DECISION,
)  # fmt: skip
REJECT = CommandSpec(
    name="reject", help="reject a request", run="approvals:reject", is_audited=True,
    reason_help="why, for the task", description=DECISION_NOTE, arguments=DECISION,
)  # fmt: skip
CANCEL = CommandSpec(
    name="cancel", help="cancel an execution or a flow", run="operate:cancel", is_audited=True, needs_confirmation=True,
    description=BULK_NOTE,
    arguments=(
        *bulk_arguments(tuple(state for state in STATES if state not in ENDED), "all of them"),
        flag("--children", help="cancel its children too"),
        argument("--grace", metavar="DURATION", help="give the worker this long to clean up"),
        flag("--flow", help="cancel the flow with this ID"),
        argument("--policy", choices=POLICIES, help="which members to cancel (cancel_all)"),
        argument("--wait", metavar="DURATION", help="wait up to this long until all members are cancelled"),
    ),
)  # fmt: skip
REVOKE = CommandSpec(
    name="revoke", help="revoke the lease of a worker", run="operate:revoke", is_audited=True, needs_confirmation=True,
    arguments=(
        EXECUTION, argument("--instance", help="only if this worker instance holds it"),
        argument("--lease", metavar="ID", help="only this lease"),
        argument("--epoch", type=int, metavar="N", help="only at this epoch"),
    ),
)  # fmt: skip
REPLAY = CommandSpec(
    name="replay", help="run an ended execution, or the failed members of a flow, again", run="operate:replay",
    is_audited=True, needs_confirmation=True,
    description="A replay of a flow member also brings back the members that were skipped because of it. " + BULK_NOTE,
    arguments=(
        *bulk_arguments(ENDED, "failed"),
        flag("--flow", help="replay members of the flow with this ID"),
        flag("--failed", help="with --flow: all members that failed or expired"),
        flag("--no-downstream", help="leave the members that were skipped because of it skipped"),
        argument("--from-step", metavar="NAME", help="keep the records before this step, and perform it again"),
        argument("--generation", type=int, metavar="N", help="only if it is at this generation"),
    ),
)  # fmt: skip
RESUME = CommandSpec(
    name="resume", help="end the wait of a suspended execution", run="operate:resume", is_audited=True,
    needs_confirmation=True, description="The wait ends as overridden, neither met nor timed out.",
    arguments=(
        EXECUTION, argument("--suspension", metavar="ID", help="only this wait"),
        argument("--delay", metavar="DURATION", help="resume after this time"),
    ),
)  # fmt: skip
PRIORITY = CommandSpec(
    name="priority", help="change the priority of a waiting execution", run="operate:priority", is_audited=True,
    arguments=(EXECUTION, argument("priority", type=int, metavar="N", help="0 to 9000, higher first")),
)  # fmt: skip
HOLD = CommandSpec(
    name="hold", help="hold a waiting execution until it is unheld", run="operate:hold", is_audited=True,
    needs_confirmation=True, arguments=bulk_arguments(HELD_FROM, "both"),
    description="With --all, it holds every execution that matches the filters. Only --all asks for confirmation.",
)  # fmt: skip
UNHOLD = CommandSpec(
    name="unhold", help="unhold held executions", run="operate:unhold", is_audited=True, needs_confirmation=True,
    description="Only --all asks for confirmation.",
    arguments=(
        argument("id", metavar="ID", nargs="?", help="the execution"),
        flag("--all", help="unhold all held executions"),
        argument("--kind", help="with --all: only of this kind"),
        argument("--held-for", metavar="REASON", help="with --all: only if held for this reason"),
    ),
)  # fmt: skip

OPERATOR_COMMANDS = (SIGNAL, APPROVE, REJECT, CANCEL, REVOKE, REPLAY, RESUME, PRIORITY, HOLD, UNHOLD)

# Commands that run a worker or manage the store.
FLOW_STATES = ("open", "running", "blocked", "completed", "failed", "cancelled")
SHELLS = ("bash", "zsh", "fish")
LANE = argument("lane", metavar="LANE", help="the lane")
KID = argument("kid", metavar="KID", nargs="?", help="the name of the new key (a random one)")
SECRET = argument("--secret-file", metavar="FILE", help="a file with the secret as 64 hex characters; - reads stdin")

WORKER = CommandSpec(
    name="worker", help="run a worker for the tasks of an app", run="workers:work",
    description="""The worker runs until SIGTERM or Ctrl-C and then drains: each run stops at its next durable call and
its lease is released, without using up an attempt. A second Ctrl-C ends the process immediately. Store and namespace
are those of the app; --store and the related options apply only if the app sets none.""",
    arguments=(
        argument("app", metavar="MODULE:APP", help="the app; the working directory is searched too"),
        argument("--concurrency", type=int, default=16, metavar="N", help="run at most N executions at a time (16)"),
        repeatable("--lane", help="claim only from this lane; repeatable (all lanes of the app)"),
        repeatable("--capability", help="offer this capability; repeatable"),
        repeatable("--claim-namespace", metavar="NAME", help="claim from this namespace too; repeatable"),
        argument("--lease", metavar="DURATION", default="30s", help="the duration of a lease (30s)"),
        argument("--code-version", metavar="NAME", help="register this version of the code (a digest of the code)"),
        flag("--quiet", "-q", help="log only warnings"),
    ),
)  # fmt: skip
LANES = CommandSpec(
    name="lanes", help="list, pause, resume and drain lanes", run="lanes:list_lanes",
    subcommands=(
        CommandSpec(
            name="list", help="list lanes with their backlog", run="lanes:list_lanes", arguments=(LIMIT, CURSOR)
        ),
        CommandSpec(
            name="pause", help="stop handing out work of a lane", run="lanes:pause", is_audited=True, arguments=(LANE,)
        ),
        CommandSpec(
            name="resume", help="accept and hand out work again", run="lanes:resume", is_audited=True, arguments=(LANE,)
        ),
        CommandSpec(
            name="drain", help="refuse new work on a lane", run="lanes:drain", is_audited=True, arguments=(LANE,)
        ),
    ),
)  # fmt: skip
FLOWS = CommandSpec(
    name="flows", help="list flows, or draw one", run="flows:show_flows",
    arguments=(
        argument("id", metavar="ID", nargs="?", help="the flow to draw"),
        argument("--state", choices=FLOW_STATES, help="only in this state"),
        argument("--name", help="only with this name"), TAG, LIMIT, CURSOR,
    ),
)  # fmt: skip
WAITPOINTS = CommandSpec(
    name="waitpoints", help="list suspended executions, or the waitpoints of one", run="signals:show_waits",
    arguments=(argument("id", metavar="ID", nargs="?", help="the execution"), LIMIT),
)  # fmt: skip
KEYS = CommandSpec(
    name="keys", help="list and rotate the keys that sign tokens", run="store:list_keys",
    subcommands=(
        CommandSpec(name="list", help="list keys, without their secrets", run="store:list_keys"),
        CommandSpec(
            name="rotate", help="activate another key", run="store:rotate", is_audited=True, needs_confirmation=True,
            description="""The old key verifies tokens for 24 hours, and longer while an open waitpoint has a token
from it. With --grace it verifies for exactly that time, and the tokens of open waitpoints may become invalid.""",
            arguments=(KID, argument("--grace", metavar="DURATION", help="how long the old key stays valid"), SECRET),
        ),
        CommandSpec(
            name="seed", help="store the first key", run="store:seed", is_audited=True, arguments=(
                argument("kid", metavar="KID", help="the name of the key"),
                argument("--secret-file", metavar="FILE", required=True, help=SECRET.help),
            ),
        ),
    ),
)  # fmt: skip
WORKERS = CommandSpec(
    name="workers", help="list live workers, or remove one from the registry", run="workers:list_workers",
    subcommands=(
        CommandSpec(
            name="list", help="list live workers", run="workers:list_workers",
            arguments=(argument("--lane", help="only on this lane"), LIMIT, CURSOR),
        ),
        CommandSpec(
            name="remove", help="remove a dead worker from the registry", run="workers:remove", is_audited=True,
            needs_confirmation=True, description="Its leases expire by their own time limit, or can be revoked.",
            arguments=(argument("instance", metavar="INSTANCE", help="the instance, as shown by the list"),),
        ),
    ),
)  # fmt: skip
LEASES = CommandSpec(
    name="leases", help="list leases that are past their time", run="show:list_expired_leases",
    description="""A background duty ends such a lease soon, so that another worker continues. Leases that stay in this
list show that no duty runs: start a worker.""",
    arguments=(LIMIT, CURSOR),
)  # fmt: skip
STATS = CommandSpec(name="stats", help="count executions, waiting work and workers", run="show:show_stats")
DOCTOR = CommandSpec(
    name="doctor", help="check the store and suggest repairs", run="doctor:examine",
    description="""Checks the store, its schema and durability, the clock, the keys, notifications, workers, and lanes
whose work no worker can claim. The exit code is 1 if something is wrong, and 0 if there are only warnings.""",
    arguments=(flag("--deep", help="also read all stored data and check it for damage"),),
)  # fmt: skip
MIGRATE = CommandSpec(
    name="migrate", help="create a store, or update its schema", run="store:migrate",
    arguments=(flag("--check", help="change nothing; exit with 1 if a migration is due"),),
)  # fmt: skip
BACKUP = CommandSpec(
    name="backup", help="copy a SQLite store to a new file, while it is in use", run="store:backup",
    description="""The copy is checked before it gets its name. A copy that cp makes while the store is in use may be
damaged. For a PostgreSQL store, use pg_dump.""",
    arguments=(argument("file", metavar="FILE", help="the new file"),),
)  # fmt: skip
RESTORE = CommandSpec(
    name="restore", help="put a backup in the place of a SQLite store", run="store:restore", needs_confirmation=True,
    description="""The backup is checked first. The store is created if it is missing. An existing store must not be in
use, and is kept under another name. Only an existing store asks for confirmation.""",
    arguments=(argument("file", metavar="FILE", help="a file that flowfabric backup wrote"),),
)  # fmt: skip
CHECK = CommandSpec(
    name="check", help="find code in tasks and steps that misbehaves when it runs again", run="check:run_check",
    description="""A file, a folder or a module is read as text, without importing it. MODULE:APP is also imported, so
that the app's own check can resolve all annotations. The comment `# flowfabric: ignore[code]` silences a finding on
its line.""",
    arguments=(argument("targets", nargs="+", metavar="TARGET", help="a file, a folder, a module or MODULE:APP"),),
)  # fmt: skip
BENCH = CommandSpec(
    name="bench", help="measure submit, claim and complete on this store", run="bench:bench",
    description="The benchmark runs in a temporary namespace and removes it afterwards.",
    arguments=(
        argument("--executions", "-n", type=int, default=1000, metavar="N", help="run N, up to 100000 (1000)"),
        argument("--batch", type=int, default=50, metavar="N", help="submit and claim N per call, up to 1000 (50)"),
    ),
)  # fmt: skip
DEMO = CommandSpec(
    name="demo", help="show a tour of two minutes", run="demo:run_tour",
    description="""The tour runs a small shop with two workers on a temporary SQLite file, and kills one of them. In a
terminal it asks you to decide; otherwise it decides automatically. It uses no other store.""",
)  # fmt: skip
COMPLETION = CommandSpec(
    name="completion", help="print the completion script of a shell", run="completion:print_completion",
    description="""In bash, run `source <(flowfabric completion bash)`. In zsh, run `source <(flowfabric completion
zsh)` after compinit. In fish, run `flowfabric completion fish | source`.""",
    arguments=(argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish"),),
)  # fmt: skip

STORE_COMMANDS = (
    WORKER, LANES, FLOWS, WAITPOINTS, KEYS, WORKERS, LEASES, STATS, DOCTOR, MIGRATE, BACKUP, RESTORE, CHECK, BENCH,
    DEMO, COMPLETION,
)  # fmt: skip

COMMANDS = (*EXECUTION_COMMANDS, *OPERATOR_COMMANDS, *STORE_COMMANDS)
