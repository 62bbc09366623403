"""Rules about re-runs: what a task does outside of steps happens again each time, and must then come out the same."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from flowfabric.sdk.checking.awaiting import Found, durables_in, flattened
from flowfabric.sdk.checking.meaning import Names, makes_durable
from flowfabric.sdk.checking.scopes import Function, own_nodes

_NOW, _UUID, _RNG = "flowfabric.now()", "flowfabric.uuid4()", "flowfabric.rng()"
_CLOCKS = frozenset({
    "time.time", "time.time_ns", "time.localtime", "time.gmtime", "datetime.datetime.now", "datetime.datetime.utcnow",
    "datetime.datetime.today", "datetime.date.today",
})  # fmt: skip
_UUIDS = frozenset({"uuid.uuid1", "uuid.uuid4", "uuid.uuid6", "uuid.uuid7"})
_CHANCE = ("random.", "secrets.", "numpy.random.")
_SEEDED = frozenset({"random.Random", "numpy.random.default_rng"})
_SLEEPS = frozenset({"asyncio.sleep", "time.sleep", "anyio.sleep", "trio.sleep"})
_CLOSING = frozenset({"aclose", "close", "wait_closed"})
_OURS = frozenset({
    "run", "submit", "submit_many", "result", "outcome", "signal", "cancel", "status", "tokens", "links", "token",
    "url", "approve", "reject",
})  # fmt: skip
_TOGETHER = frozenset({"asyncio.gather", "asyncio.wait", "asyncio.wait_for", "asyncio.shield", "asyncio.as_completed"})


def clocks_and_chance(function: Function) -> Iterator[Found]:
    """Times and random values that would be others in the next run."""
    names = Names(function.scope)
    for node in own_nodes(function.node.body):
        called = names.resolve(node.func) if isinstance(node, ast.Call) else None
        if not isinstance(node, ast.Call) or called is None:
            continue
        if called in _CLOCKS:
            yield node, "clock", f"{called}() is another time in each run; use {_NOW}"
        elif called in _UUIDS:
            yield node, "randomness", f"{called}() differs in each run; use {_UUID}"
        elif called == "os.urandom" or (called.startswith(_CHANCE) and not (called in _SEEDED and node.args)):
            yield node, "randomness", f"{called}() differs in each run; use {_RNG}, or draw it in a step"


def sleeps(function: Function) -> Iterator[Found]:
    """Sleeps that keep the slot and start anew in each run."""
    names = Names(function.scope)
    for node in own_nodes(function.node.body):
        called = names.resolve(node.func) if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and called in _SLEEPS and not _is_zero(node):
            use = "flowfabric.sleep" if function.is_async else "flowfabric.sync.sleep"
            yield node, "plain_sleep", f"{called} keeps its slot and starts anew in each run; use {use}"


def set_orders(function: Function) -> Iterator[Found]:
    """Durable calls that are made in the order of a set, which may differ between two processes."""
    names = Names(function.scope)
    for node in own_nodes(function.node.body):
        loops: list[tuple[ast.expr, list[ast.AST]]] = []
        match node:
            case ast.For(iter=over, body=body) | ast.AsyncFor(iter=over, body=body):
                loops = [(over, list(body))]
            case ast.ListComp(elt=made) | ast.GeneratorExp(elt=made) | ast.SetComp(elt=made):
                loops = [(each.iter, [made]) for each in node.generators]
            case ast.DictComp(key=key, value=value):
                loops = [(each.iter, [key, value]) for each in node.generators]
        for over, inner in loops:
            if names.is_set(over) and any(durables_in(names, inner)):
                yield over, "set_order", "the order of a set may differ in each run; go through sorted(…)"


def plain_awaits(function: Function, path: Path) -> Iterator[Found]:
    """Awaits of what is known not to be durable."""
    judge = _Judge(Names(function.scope), path)
    for node in own_nodes(function.node.body):
        match node:
            case ast.Await(value=awaited):
                what = judge.why_not_durable(awaited)
            case ast.AsyncFor(iter=awaited) | ast.comprehension(iter=awaited, is_async=1):
                what = judge.foreign_call(awaited)
            case _:
                continue
        if what is not None:
            yield awaited, "not_durable", f"{what} is no durable call and runs again in each run; put it in a step"


class _Judge:
    """Says of an awaited expression that it is not durable, if that is certain."""

    def __init__(self, names: Names, path: Path) -> None:
        self._names, self._path = names, path

    def why_not_durable(self, node: ast.expr) -> str | None:
        """The words for what is awaited; None if it is durable, or if nobody can tell."""
        if not isinstance(node, ast.Call) or self._names.durable(node) is not None:
            return None
        helper = self._names.helper(node)
        if helper is not None:
            return f"{helper.name}()" if helper.is_async and not makes_durable(helper) else None
        called = self._names.resolve(node.func)
        if called in _SLEEPS or (called in _TOGETHER and self._has_durable(node)):
            return None
        return self.foreign_call(node)

    def foreign_call(self, node: ast.expr) -> str | None:
        """The words for a call of another library, or of a method of one of its objects."""
        if not isinstance(node, ast.Call) or self._names.function(node.func) is not None:
            return None
        origin = self._names.resolve(node.func) or self._names.origin(node.func)
        if origin is None or not self._is_foreign(origin) or _may_be_meant(node.func, origin):
            return None
        return f"{ast.unparse(node.func)}()"

    def _has_durable(self, node: ast.Call) -> bool:
        return any(durables_in(self._names, list(flattened(node.args)))) or any(
            helper is not None and makes_durable(helper)
            for helper in (self._names.helper(each) for each in flattened(node.args))
        )

    def _is_foreign(self, origin: str) -> bool:
        """True for the standard library and for packages that do not stand beside the file: what is the user's own may
        make durable calls that cannot be seen from here."""
        root = origin.partition(".")[0]
        if root in ("", "flowfabric"):
            return False
        if root in sys.stdlib_module_names:
            return True
        beside = (place for folder in self._path.parents for place in (folder, folder / "src"))
        return not any((place / root).is_dir() or (place / f"{root}.py").is_file() for place in beside)


def _may_be_meant(called: ast.expr, origin: str) -> bool:
    """True for what belongs into every run, such as closing a client, and for methods that tasks and handles have too:
    those of another package may be tasks."""
    method = called.attr if isinstance(called, ast.Attribute) else None
    root = origin.partition(".")[0]
    return method in _CLOSING or root == "contextlib" or (method in _OURS and root not in sys.stdlib_module_names)


def _is_zero(node: ast.Call) -> bool:
    """True for `sleep(0)`, which only lets others go first."""
    return bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
