"""The verbs by which a person changes what happens to executions."""

from __future__ import annotations

from flowfabric.cli.verbs.declaring import Verb, argument, flag
from flowfabric.cli.verbs.executions import EXECUTION

POLICIES = ("cancel_all", "cancel_pending", "flow_only")
TOKEN = argument("token", metavar="TOKEN", help="the token, or the link that has it; - reads it from standard input")

SIGNAL = Verb(
    name="signal", help="deliver a signal", run="signals:signal", operates=True, reason=None,
    about="""To an execution: to the waitpoint that stands under that name, or else to the wait that is open for it. To
a token or a link: to the wait that it was made for. The payload is a JSON value, `-` to read it from standard input,
or `@file`.""",
    arguments=(
        argument("target", metavar="ID|TOKEN", help="the execution, or the token or link of a wait"),
        argument("name", metavar="NAME", help="the name of the signal"),
        argument("payload", metavar="PAYLOAD", nargs="?", default="null", help="its payload as JSON (null)"),
        argument("--key", help="an idempotency key: the same again is delivered once"),
    ),
)  # fmt: skip
APPROVE = Verb(
    name="approve", help="approve what a token or link asks for", run="signals:approve", operates=True,
    reason="a comment, for the task", about="The first decision of a token counts.", arguments=(TOKEN,),
)  # fmt: skip
REJECT = Verb(
    name="reject", help="reject what a token or link asks for", run="signals:reject", operates=True,
    reason="why, for the task", about="The first decision of a token counts.", arguments=(TOKEN,),
)  # fmt: skip
CANCEL = Verb(
    name="cancel", help="cancel an execution or a flow", run="ending:cancel", operates=True, asks=True,
    arguments=(
        argument("id", metavar="ID", help="the execution, or with --flow the flow"),
        flag("--children", help="its children too"),
        argument("--grace", metavar="DURATION", help="let the worker clean up for this long first"),
        flag("--flow", help="the id is that of a flow"),
        argument("--policy", choices=POLICIES, help="whom the flow takes along (cancel_all)"),
        argument("--wait", metavar="DURATION", help="stay until all members are cancelled, for this long at most"),
    ),
)  # fmt: skip
REVOKE = Verb(
    name="revoke", help="take the lease away from a worker", run="ending:revoke", operates=True, asks=True,
    arguments=(
        EXECUTION, argument("--instance", help="only if this worker instance has it"),
        argument("--lease", metavar="ID", help="only this lease"),
        argument("--epoch", type=int, metavar="N", help="only at this epoch"),
    ),
)  # fmt: skip
REPLAY = Verb(
    name="replay", help="run an ended execution again", run="ending:replay", operates=True, asks=True,
    arguments=(
        EXECUTION, argument("--from-step", metavar="NAME", help="keep what was recorded before this step"),
        argument("--generation", type=int, metavar="N", help="only if it is at this generation"),
    ),
)  # fmt: skip
RESUME = Verb(
    name="resume", help="end the wait of a suspended execution", run="ending:resume", operates=True, asks=True,
    about="The task is told that its wait was overridden: neither yes nor no.",
    arguments=(
        EXECUTION, argument("--suspension", metavar="ID", help="only this wait"),
        argument("--delay", metavar="DURATION", help="let it rest for this long first"),
    ),
)  # fmt: skip
PRIORITY = Verb(
    name="priority", help="move waiting work to another priority", run="queueing:priority", operates=True,
    arguments=(EXECUTION, argument("priority", type=int, metavar="N", help="0 to 9000, higher first")),
)  # fmt: skip
HOLD = Verb(
    name="hold", help="stop waiting work until it is unheld", run="queueing:hold", operates=True,
    arguments=(EXECUTION,),
)  # fmt: skip
UNHOLD = Verb(
    name="unhold", help="let held work go on", run="queueing:unhold", operates=True, asks=True,
    about="One execution is let go at once; whoever lets all go is asked.",
    arguments=(
        argument("id", metavar="ID", nargs="?", help="the execution"),
        flag("--all", help="everything that is held"),
        argument("--kind", help="with --all: only of this kind"),
        argument("--held-for", metavar="REASON", help="with --all: only what was held for this reason"),
    ),
)  # fmt: skip

VERBS = (SIGNAL, APPROVE, REJECT, CANCEL, REVOKE, REPLAY, RESUME, PRIORITY, HOLD, UNHOLD)
