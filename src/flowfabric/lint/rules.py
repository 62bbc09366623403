"""Rules about re-runs: code outside of steps runs again in each run and must make the same durable calls."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from flowfabric.lint.awaits import RawFinding, durable_kinds, flatten_arguments
from flowfabric.lint.resolve import CallKind, NameResolver, decorator_name, find_durable_calls, makes_durable_calls
from flowfabric.lint.scopes import Function, Module, all_parameters, walk_own_nodes

_NOW, _UUID, _RNG = "flowfabric.now()", "flowfabric.uuid4()", "flowfabric.rng()"
_CLOCKS = frozenset({
    "time.time", "time.time_ns", "time.localtime", "time.gmtime", "datetime.datetime.now", "datetime.datetime.utcnow",
    "datetime.datetime.today", "datetime.date.today",
})  # fmt: skip
_UUIDS = frozenset({"uuid.uuid1", "uuid.uuid4", "uuid.uuid6", "uuid.uuid7"})
_RANDOM_PREFIXES = ("random.", "secrets.", "numpy.random.")
_SEEDED = frozenset({"random.Random", "numpy.random.default_rng"})
_SLEEPS = frozenset({"asyncio.sleep", "time.sleep", "anyio.sleep", "trio.sleep"})
_CLOSING = frozenset({"aclose", "close", "wait_closed"})
_TASK_METHODS = frozenset({
    "run", "submit", "submit_many", "result", "outcome", "signal", "cancel", "status", "tokens", "links", "token",
    "url", "approve", "reject",
})  # fmt: skip
_WRAPPERS = frozenset({"asyncio.gather", "asyncio.wait", "asyncio.wait_for", "asyncio.shield", "asyncio.as_completed"})


def find_clocks_and_randomness(names: NameResolver, node: ast.AST) -> Iterator[RawFinding]:
    """Find clock readings and random values, which differ in the next run."""
    if not isinstance(node, ast.Call):
        return
    called = names.resolve(node.func) or ""
    if called in _CLOCKS:
        yield node, "clock", f"{called}() differs in each run; use {_NOW}"
    elif called in _UUIDS:
        yield node, "randomness", f"{called}() differs in each run; use {_UUID}"
    elif called == "os.urandom" or (called.startswith(_RANDOM_PREFIXES) and not (called in _SEEDED and node.args)):
        yield node, "randomness", f"{called}() differs in each run; use {_RNG}, or call it in a step"


def find_plain_sleeps(function: Function) -> Iterator[RawFinding]:
    """Find sleeps that are not durable: they occupy a slot of the worker and start over in each run."""
    names = NameResolver(function.scope)
    for node in walk_own_nodes(function.node.body):
        called = names.resolve(node.func) if isinstance(node, ast.Call) and not _is_zero(node) else None
        if called in _SLEEPS:
            use = "flowfabric.sleep" if function.is_async else "flowfabric.sync.sleep"
            yield node, "plain_sleep", f"{called} occupies the slot and starts over in each run; use {use}"


def find_set_orders(names: NameResolver, node: ast.AST) -> Iterator[RawFinding]:
    """Find durable calls in a loop over a set, whose order may differ between processes."""
    loops: list[tuple[ast.expr, list[ast.AST]]] = []
    match node:
        case ast.For(iter=over, body=body) | ast.AsyncFor(iter=over, body=body):
            loops = [(over, list(body))]
        case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element) | ast.SetComp(elt=element):
            loops = [(each.iter, [element]) for each in node.generators]
        case ast.DictComp(key=key, value=value):
            loops = [(each.iter, [key, value]) for each in node.generators]
    for over, inner in loops:
        if names.is_set(over) and any(durable_kinds(names, inner)):
            yield over, "set_order", "the order of a set may differ in each run; iterate over sorted(…)"


def find_plain_awaits(function: Function, path: Path) -> Iterator[RawFinding]:
    """Find awaits that are certainly not durable."""
    checker = _AwaitChecker(NameResolver(function.scope), path)
    for node in walk_own_nodes(function.node.body):
        match node:
            case ast.Await(value=awaited):
                what = checker.why_not_durable(awaited)
            case ast.AsyncFor(iter=awaited) | ast.comprehension(iter=awaited, is_async=1):
                what = checker.foreign_call(awaited)
            case _:
                continue
        if what is not None:
            yield awaited, "not_durable", f"{what} is not durable and runs again in each run; call it in a step"


class _AwaitChecker:
    """Decides whether an awaited expression is certainly not durable."""

    def __init__(self, names: NameResolver, path: Path) -> None:
        self._names, self._path = names, path

    def why_not_durable(self, node: ast.expr) -> str | None:
        """Return the name of the awaited call if it is certainly not durable, otherwise None."""
        if not isinstance(node, ast.Call) or self._names.durable(node) is not None:
            return None
        helper = self._names.helper(node)
        if helper is not None:
            return f"{helper.name}()" if helper.is_async and not makes_durable_calls(helper) else None
        called = self._names.resolve(node.func)
        if called in _SLEEPS or (called in _WRAPPERS and self._has_durable(node)):
            return None
        return self.foreign_call(node)

    def foreign_call(self, node: ast.expr) -> str | None:
        """Return the name of a call to a function or object of another library; None for any other expression."""
        if not isinstance(node, ast.Call) or self._names.function(node.func) is not None:
            return None
        origin = self._names.resolve(node.func) or self._names.origin(node.func)
        if origin is None or not self._is_foreign(origin) or _may_be_intended(node.func, origin):
            return None
        return f"{ast.unparse(node.func)}()"

    def _has_durable(self, node: ast.Call) -> bool:
        return any(durable_kinds(self._names, list(flatten_arguments(node.args)))) or any(
            helper is not None and makes_durable_calls(helper)
            for helper in (self._names.helper(each) for each in flatten_arguments(node.args))
        )

    def _is_foreign(self, origin: str) -> bool:
        """Return True for the standard library and for packages that are not next to the file.

        Packages next to the file belong to the user, and may make durable calls that this module does not show.
        """
        root = origin.partition(".")[0]
        if root in ("", "flowfabric"):
            return False
        if root in sys.stdlib_module_names:
            return True
        beside = (place for folder in self._path.parents for place in (folder, folder / "src"))
        return not any((place / root).is_dir() or (place / f"{root}.py").is_file() for place in beside)


def _may_be_intended(called: ast.expr, origin: str) -> bool:
    """Return True for a call that the author may want to make in every run.

    Calls that close a client belong in every run. A method with the same name as a method of tasks or handles may be
    called on a task or handle.
    """
    method = called.attr if isinstance(called, ast.Attribute) else None
    root = origin.partition(".")[0]
    return (
        method in _CLOSING or root == "contextlib" or (method in _TASK_METHODS and root not in sys.stdlib_module_names)
    )


def _is_zero(node: ast.Call) -> bool:
    """Return True for `sleep(0)`, which only yields to other coroutines."""
    return bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0


# These rules check the functions of tasks and steps: they need annotations, and a step cannot contain a step.


_SELF_NAMES = frozenset({"self", "cls"})
# For each durable call that runs a step: the index of the argument with the step's function.
_STEP_ARGUMENTS = {"step": 0, "step.tx": 0, "poll": 1}
_SAGA_NAMES = frozenset({"flowfabric.saga", "flowfabric.sync.saga"})


def find_step_functions(module: Module) -> list[Function]:
    """Return the functions of the module that run as steps: those passed to a call and those with `@step.policy(…)`."""
    decorated = {function for function in module.functions if _has_policy(function)}
    return [*decorated, *sorted(_find_step_callees(module) - decorated, key=lambda function: function.node.lineno)]


def find_missing_annotations(function: Function) -> Iterator[RawFinding]:
    """Find parameters and results without an annotation; their values cannot be restored exactly."""
    missing = [each.arg for each in all_parameters(function.node) if each.annotation is None]
    if missing and missing[0] in _SELF_NAMES:
        missing = missing[1:]
    if function.node.returns is None:
        missing.append("return")
    if missing:
        what = ", ".join(missing)
        yield function.node, "no_annotation", f"{function.name} has no annotation for {what}; add one"


def find_nested_steps(function: Function) -> Iterator[RawFinding]:
    """Find durable calls in a step. Submitting is allowed there."""
    for call, kind in find_durable_calls(function):
        if kind is not CallKind.SUBMIT:
            yield call, "step_in_step", f"the step {function.name} cannot contain durable calls; {_STEP_REMEDY}"
    names = NameResolver(function.scope)
    for node in walk_own_nodes(function.node.body):
        helper = names.helper(node)
        if helper is not None and helper is not function and makes_durable_calls(helper):
            what = f"the step {function.name} cannot call {helper.name}, which makes durable calls"
            yield node, "step_in_step", f"{what}; {_STEP_REMEDY}"


_STEP_REMEDY = "call the function directly or move the call to the task"


def _has_policy(function: Function) -> bool:
    names = NameResolver(function.outer)
    return any(names.public(decorator_name(each)) == "step.policy" for each in function.node.decorator_list)


def _find_step_callees(module: Module) -> set[Function]:
    functions: set[Function] = set()
    for caller in module.functions:
        names = NameResolver(caller.scope)
        for node in walk_own_nodes(caller.node.body):
            used = _find_step_argument(names, node) if isinstance(node, ast.Call) else None
            function = None if used is None else names.function(used)
            if function is not None:
                functions.add(function)
    return functions


def _find_step_argument(names: NameResolver, call: ast.Call) -> ast.expr | None:
    """Return the function that a call runs as a step."""
    public = names.public(call.func)
    if public == "approval":
        return next((keyword.value for keyword in call.keywords if keyword.arg == "notify"), None)
    if isinstance(call.func, ast.Call):
        place = 0 if names.public(call.func.func) == "step.options" else None
    elif isinstance(call.func, ast.Attribute) and call.func.attr == "add":
        place = 0 if names.origin(call.func.value) in _SAGA_NAMES else None
    else:
        place = _STEP_ARGUMENTS.get(public or "")
    return call.args[place] if place is not None and len(call.args) > place else None
