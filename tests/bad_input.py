"""Bad values for every argument of the contract, chosen by the argument's annotation.

A new argument is covered as soon as it exists, because wrong types follow from its annotation. A test fails
for an annotation that is not in `ROLES`, until its bad values are added there.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from flowfabric.engine import (
    ApprovalPrompt,
    ChildSubmission,
    Edge,
    Fence,
    Grant,
    Graph,
    JoinKind,
    Member,
    NewWaitpoint,
    OperatorOnly,
    PendingWaitpoint,
    Single,
    Step,
    Submission,
    WorkerId,
)

NUL, SURROGATE, RIGHT_TO_LEFT, JOINER = "a\x00b", "a\ud800b", "\u202ea", "a\u200db"
LONG = "x" * 1_000_000
ODD: list[Any] = [None, 1.5, True, [], {}, object()]
ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
FENCE = Fence(ID, 1, UUID(int=5))
_WHEN = datetime(2030, 1, 1, tzinfo=UTC)
_HUGE = [2**63, 2**64, -(2**63) - 1, -(2**64), 10**400]
_BAD_PARTS: list[Any] = [None, 7, "", "\x00", "a\ud800b", b"x", LONG]
_BAD_EPOCHS: list[Any] = [-1, *_HUGE, 1.5, "1", True, None, math.nan]
_NO_NAMES: list[Any] = ["", " a", "a ", "a\n", NUL, SURROGATE, RIGHT_TO_LEFT, JOINER, "x" * 257, LONG, 7, b"a"]
_NO_IDS = [
    "", "x" * 36, "x" * 65, "../x", "%2e%2e", NUL, SURROGATE, RIGHT_TO_LEFT, JOINER, LONG, 7, b"a", ID.bytes, ID.hex,
    f"{{{ID}}}", f"urn:{ID.hex}", str(ID)[:-1] + "\n", str(ID)[:-4] + "_057", f"{{fp:70000}}:{ID}", "<script>",
    "'; DROP TABLE x; --",
]  # fmt: skip
_NO_FENCES = [
    "fence", 7, (ID, 1, ID), {"execution_id": ID, "epoch": 1, "lease_id": ID}, ID,
    *(Fence(bad, 1, ID) for bad in _BAD_PARTS), *(Fence(ID, 1, bad) for bad in _BAD_PARTS),
    *(Fence(ID, bad, ID) for bad in _BAD_EPOCHS),
]  # fmt: skip
_NO_TAGS = [
    "a.b", 7, [("a.b", "c")], {1: "v"}, {None: "v"}, {"": "v"}, {"no dot": "v"}, {"A.b": "v"}, {NUL: "v"},
    {SURROGATE: "v"}, {"a." + LONG: "v"}, {"a.b": 1}, {"a.b": True}, {"a.b": b"v"}, {"a.b": NUL}, {"a.b": SURROGATE},
    {"a.b": "x" * 1025}, {"a.b": LONG}, {f"a.k{number}": "v" for number in range(65)},
]  # fmt: skip
_NO_TOKENS = [
    "gpu", b"gpu", 7, [""], ["a b"], ["a,b"], [None], [7], [[]], [NUL], [SURROGATE], [RIGHT_TO_LEFT], [LONG],
    [f"t{number}" for number in range(257)], iter(["gpu"]),
]  # fmt: skip
_NO_WORKERS = [
    *_NO_NAMES, ("w", "i"), *(WorkerId(bad, "i") for bad in _BAD_PARTS), *(WorkerId("w", bad) for bad in _BAD_PARTS),
]  # fmt: skip
_NO_STEPS = [
    "steps", 7, Step("a"), {Step("a")}, [None], ["a"], [("a", b"")], [Step("a"), Step("a", b"2")],
    [Step(f"s{number}") for number in range(1001)], iter([Step("a")]),
]  # fmt: skip
_NO_RESULTS = [
    "results", 7, [None], [7], ["ab"], [()], [(FENCE,)], [(FENCE, "text")], [(FENCE, None)], [("fence", b"")],
    [(FENCE, b"", 3)], [(FENCE, bytes(2**20 + 1))], [(FENCE, b"")] * 1001, {FENCE: b""}, iter([(FENCE, b"")]),
]  # fmt: skip
_NO_MOMENTS = [
    7, 1893456000, "2030-01-01T00:00:00Z", datetime(2030, 1, 1), datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),  # noqa: DTZ001
    datetime(9000, 1, 2, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC), timedelta(1),
]  # fmt: skip
_NO_NAME_LISTS = [
    "lane", b"lane", 7, [None], [""], [NUL], [SURROGATE], [7], [LONG], [f"lane-{number}" for number in range(1001)],
]  # fmt: skip
_NO_SUBMISSIONS = [
    "x", 7, [None], [{}], ["job"], [Submission(kind="a"), None], [Submission(kind="a")] * 1001,
    iter([Submission(kind="a")]),
]  # fmt: skip
_NO_FENCE_LISTS = [
    "x", 7, FENCE, [FENCE, None], [FENCE] * 1001, iter([FENCE]), *([bad] for bad in _NO_FENCES),
]  # fmt: skip
_GRANTS = [
    Grant(id=bad, execution_id=ID, worker=WorkerId("w", "i"), granted_at=_WHEN, expires_at=_WHEN) for bad in _BAD_PARTS
]
_NO_DURATIONS = [
    -1, -0.001, math.nan, math.inf, -math.inf, 1e300, *_HUGE, timedelta.max, timedelta.min, timedelta(microseconds=-1),
    "", "soon", "-1s", "30 s", "1e9s", "3651d", "\uff13s", NUL, SURROGATE, LONG, b"1s", _WHEN,
]  # fmt: skip
_NO_BINDINGS = [
    "key", b"key", 7, NewWaitpoint("a"), {"a"}, [None], [7], [b"a"], [""], [" a"], [NUL], [LONG], [("a", "b")],
    [NewWaitpoint("a"), "a"], [f"k{number}" for number in range(65)], [f"k{number}" for number in range(1001)],
    iter(["a"]),
]  # fmt: skip
_NO_PLACES: list[Any] = [
    "key", b"key", 7, ["key"], [("key", 1)], {1: 1}, {None: 1}, {"": 1}, {NUL: 1}, {LONG: 1}, {"a": None}, {"a": "1"},
    {"a": 1.5}, {"a": True}, {"a": -1}, {"a": 2**63}, {f"k{number}": 0 for number in range(1001)},
]  # fmt: skip
_NO_CONDITIONS = ["approved", 7, b"x", {"single": {}}, Single("elsewhere"), [Single("a")], Single, OperatorOnly]
_TOKEN = "ffw1.k1." + "A" * 60 + "." + "A" * 43
_NO_WAITPOINT_TOKENS = [
    "", "ffw1", "ffw1...", "ffw1.k1", NUL, SURROGATE, LONG, 7, b"x", ID, _TOKEN, _TOKEN + "\n", " " + _TOKEN,
    _TOKEN * 2, _TOKEN.replace("ffw1", "ffw2"), _TOKEN.replace("k1", "k:1"), _TOKEN.replace("k1", "k" * 33),
    _TOKEN.upper(),
]  # fmt: skip
_NO_SECRETS = [
    "",
    "ab",
    "0" * 63,
    "0" * 65,
    "g" * 64,
    " " + "0" * 63,
    NUL,
    SURROGATE,
    LONG,
    7,
    b"0" * 64,
    "\uff10" * 64,
]


@dataclass(frozen=True)
class Role:
    """The role of an argument: values that it must reject, and unusual values that it accepts."""

    bad: list[Any]
    good: tuple[Any, ...] = ()


_JSON_SCHEMA = "Mapping[str, Any] | str"
ROLES = {
    "UUID | str": Role(_NO_IDS),
    "Grant | UUID | str": Role([*_NO_IDS, *_GRANTS]),
    "str": Role(_NO_NAMES),
    "str | Submission": Role(_NO_NAMES),
    "int": Role(["1", b"1", -1, *_HUGE, math.nan, math.inf]),
    "float": Role(["2", 0, 0.5, -1, math.nan, math.inf, *_HUGE], good=(1.5,)),
    "bool": Role([0, 1, "yes", b""], good=(True,)),
    "bytes": Role(["text", bytearray(b"x"), memoryview(b"x"), 7, bytes(2**20 + 1)]),
    "datetime": Role(_NO_MOMENTS),
    "limits.Duration": Role(_NO_DURATIONS, good=(1.5,)),
    "validation.Duration": Role(_NO_DURATIONS, good=(1.5,)),
    "Mapping[str, str]": Role([*_NO_TAGS, {"a.b": None}], good=({},)),
    "Mapping[str, str | None]": Role(_NO_TAGS, good=({},)),
    "Collection[str]": Role(_NO_TOKENS, good=([], {})),
    "Sequence[str]": Role(_NO_NAME_LISTS),
    "DeclaredSignals": Role([*_NO_NAME_LISTS, {"a": 7}, {"a": "{"}, {7: None}], good=({},)),
    _JSON_SCHEMA: Role(["{", "[]", "7", 7, b"{}", ["a"], {"a": math.nan}], good=({},)),
    "Sequence[EventFamily | str]": Role(["lease", b"lease", 7, ["nonsense"], [NUL], [None], [7]], good=([],)),
    "Submission": Role(["x", 7, b"job", [Submission(kind="a")], Submission]),
    "Sequence[Submission]": Role(_NO_SUBMISSIONS, good=([],)),
    "Sequence[Step]": Role(_NO_STEPS, good=([],)),
    "Sequence[Fence]": Role(_NO_FENCE_LISTS, good=([],)),
    "Sequence[tuple[Fence, bytes]]": Role(_NO_RESULTS, good=([],)),
    "Fence": Role(_NO_FENCES),
    "WorkerId | str": Role(_NO_WORKERS),
    "Policy": Role(["policy", 7, b""]),
    "Backoff": Role(["backoff", 7, {"kind": "fixed"}]),
    "Sequence[Bound | str]": Role(_NO_BINDINGS, good=([],)),
    "Sequence[NewWaitpoint | str]": Role(
        [*(bad for bad in _NO_BINDINGS if bad != [f"k{n}" for n in range(65)]), [PendingWaitpoint("a")]], good=([],)
    ),
    "Mapping[str, int]": Role(_NO_PLACES, good=({},)),
    "Condition": Role(_NO_CONDITIONS),
    "str | Secret": Role(_NO_WAITPOINT_TOKENS),
    "UUID | str | Secret": Role([*_NO_IDS, *(bad for bad in _NO_WAITPOINT_TOKENS if bad != ID)]),
    "ApprovalPrompt": Role(["prompt", 7, b"x", {"title": "x"}, ApprovalPrompt]),
    "Graph": Role(["graph", 7, Graph, {"a": []}]),
    "Join": Role(["all_of", 7, JoinKind.ALL_OF]),
    "Sequence[Member | Edge | str]": Role(
        ["a", b"a", 7, Member("a"), Edge("a"), [None], [7], [""], [NUL], [LONG]], good=([],)
    ),
    "Member | UUID | str": Role(_NO_NAMES),
    "Sequence[ChildSubmission]": Role(
        ["x", 7, [None], [Submission(kind="a")], [ChildSubmission("a", Submission(kind="a"))] * 2], good=([],)
    ),
    "Sequence[int]": Role(["x", b"x", 7, ["1"], [0], [-1], [True], [None], [10**30]], good=([],)),
    "State | str | Collection[State | str]": Role(
        ["", "nonsense", "ACTIVE", NUL, SURROGATE, LONG, 7, b"active", ["nonsense"], [7]], good=([], {})
    ),
    "Sequence[StepRetry]": Role(["x", b"x", 7, [None], [7], ["step"]], good=([],)),
    "LockListener": Role([]),
    "Sequence[UUID | str]": Role(["x", b"x", 7, *([bad] for bad in _NO_IDS)], good=([],)),
    "Callable[[Any], Any]": Role(["function", 7, b"x"]),
    "Callable[[Any], Step]": Role(["function", 7, b"x"]),
    "Callable[[StateSnapshot], bool]": Role(["function", 7, b"x"]),
    "Clock": Role(["clock", 7, _WHEN]),
    **dict.fromkeys(
        [
            "State | str",
            "FailureClass | str",
            "StepStatus",
            "OnAttemptTimeout",
            "OnLeaseLoss",
            "BackoffKind",
            "SuspensionReason | str",
            "OnTimeout | str",
            "UnusedWaitpoints | str",
            "EdgeKind | str",
            "CancelPolicy | str",
            "FlowState | str",
            "Start | str",
            "DecisionWord",
        ],
        Role(["", "nonsense", "ACTIVE", NUL, SURROGATE, LONG, 7, b"active"]),
    ),
}

_FREE_TEXT = Role([NUL, SURROGATE, LONG, 7, b"x"])
# Roles by argument name, for arguments whose annotation does not determine which values are valid.
BY_NAME = {
    "reason": _FREE_TEXT,
    "message": _FREE_TEXT,
    "hold_reason": _FREE_TEXT,
    "comment": _FREE_TEXT,
    "report": _FREE_TEXT,
    "url": Role(["", NUL, SURROGATE, LONG, 7, b"jobs.db", "http://x/y", "sqlite://host/x", "sqlite:///a%00b", "x://["]),
    "schema": Role(["", "A", "a b", 'x"; DROP SCHEMA public; --', "1a", "ü", "x" * 64, NUL, SURROGATE, LONG, 7, b"a"]),
    "secret": Role(_NO_SECRETS),
    "kid": Role(["", "a b", "a:b", "a.b", "x" * 33, "ü", "a\n", NUL, SURROGATE, RIGHT_TO_LEFT, LONG, 7, b"a"]),
    "key_file": Role(["", ".", "no/such/file", NUL, SURROGATE, LONG, 7, b"keys"]),
    "listen_url": Role(["", "x", NUL, SURROGATE, LONG, 7, b"postgresql://x/y", "http://x/y", "jobs.db"]),
    "cursor": Role(["", "x", "a" * 32, NUL, SURROGATE, LONG, 7, b"x", "+" * 32, "===="]),
    "retryable_categories": Role(
        ["net", b"net", 7, [None], [""], [NUL], [SURROGATE], [LONG], [7], [[]]], good=([], {})
    ),
    "failed": Role([False, "yes", 7, b"true", [True]], good=(True,)),
    # Priorities are clamped, so every integer is valid.
    "priority": Role(["1", b"1", math.nan, math.inf]),
}
# More bad values for arguments with special bounds.
FURTHER: dict[str, list[Any]] = {
    "limit": [0, 10**9],
    "percent": [101],
    "pool_size": [0, 1001],
    "slots": [1_000_001],
    "busy": [1_000_001],
    "subscriber_expiry": [0, "999ms"],
    "lease_ttl": [0, 0.049, "999ms", 10**12, "8d"],
    "ttl": [0, 0.049, "999ms", 10**12, "8d"],
    "statement_timeout": [0, 0.5],
    "attempt_timeout": [0],
    "max_retries": [1_000_001, 2**31],
    "multiplier": [1001],
}


def parameters(call: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function, method or class, without `self`."""
    return [item for item in inspect.signature(call).parameters.values() if item.name != "self"]


def role_of(parameter: inspect.Parameter) -> Role | None:
    """Return the role of an argument, or None if its annotation is unknown."""
    annotation = str(parameter.annotation).removesuffix(" | None")
    # A schema of JSON has the same name as the schema of a database.
    return ROLES[annotation] if annotation == _JSON_SCHEMA else BY_NAME.get(parameter.name) or ROLES.get(annotation)


def bad_values(parameter: inspect.Parameter) -> Iterator[Any]:
    """Return all values that the argument must reject."""
    role = role_of(parameter)
    assert role is not None, f"give the annotation of {parameter} a role"
    good: list[Any] = [*role.good, *([None] if "None" in str(parameter.annotation) else [])]
    yield from (value for value in ODD if not any(_same(value, fine) for fine in good))
    yield from role.bad
    yield from FURTHER.get(parameter.name, ())


def shown(value: object) -> str:
    """Return a short form of a value for the message of a test."""
    return ascii(value)[:60]


def _same(one: object, two: object) -> bool:
    return type(one) is type(two) and one == two
