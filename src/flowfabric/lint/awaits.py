"""Rules about waits: no code may catch the `Unwind` of a suspended task, or make a durable wait in an asyncio task."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from flowfabric.lint.resolve import CallKind, NameResolver, find_durable_calls, iter_with_helpers, makes_durable_calls
from flowfabric.lint.scopes import Function, walk_own_nodes

RawFinding = tuple[ast.AST, str, str]

_BASE_EXCEPTION = frozenset({"BaseException"})
_RAW_TASKS = frozenset({
    "asyncio.create_task", "asyncio.ensure_future", "asyncio.gather", "asyncio.wait", "asyncio.as_completed",
    "asyncio.shield", "asyncio.run_coroutine_threadsafe", "anyio.create_task_group",
})  # fmt: skip
_RAW_METHODS = frozenset({"create_task", "start_soon"})
_TIMERS = frozenset({"asyncio.timeout", "asyncio.timeout_at", "async_timeout.timeout", "anyio.fail_after"})
_WAITS = (CallKind.WAIT, CallKind.CHILD)


def durable_kinds(names: NameResolver, nodes: Sequence[ast.AST]) -> Iterator[CallKind]:
    """Yield the kind of each durable call in these nodes and in the helpers that they call."""
    for node in walk_own_nodes(nodes):
        kind = names.durable(node)
        helper = names.helper(node) if kind is None else None
        if kind is not None:
            yield kind
        elif helper is not None:
            yield from (inner for each in iter_with_helpers(helper) for _, inner in find_durable_calls(each))


def flatten_arguments(arguments: Iterable[ast.expr]) -> Iterator[ast.expr]:
    """Yield each argument of a call; lists, starred arguments and comprehensions are replaced by their elements."""
    for argument in arguments:
        match argument:
            case ast.Starred(value=inner):
                yield from flatten_arguments([inner])
            case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
                yield from flatten_arguments(elements)
            case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element) | ast.SetComp(elt=element):
                yield from flatten_arguments([element])
            case _:
                yield argument


def find_swallowed_unwinds(names: NameResolver, node: ast.AST) -> Iterator[RawFinding]:
    """Find code that catches the `Unwind` exception of a suspended task."""
    match node:
        case ast.Try() | ast.TryStar() if any(durable_kinds(names, node.body)):
            yield from _check_handlers(names, node)
        case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
            for item in items:
                if _suppresses_all(names, item.context_expr) and any(durable_kinds(names, body)):
                    yield item.context_expr, "swallowed_unwind", _catches_message("suppress(BaseException)")
        case ast.Call(args=arguments) if _returns_exceptions(names, node) and any(durable_kinds(names, arguments)):
            what = "asyncio.gather(return_exceptions=True) catches the unwinding of a suspended task"
            yield node, "swallowed_unwind", f"{what}; use flowfabric.settle"


def find_raw_tasks(names: NameResolver, node: ast.AST) -> Iterator[RawFinding]:
    """Find asyncio tasks that run durable waits, or coroutines that make durable calls."""
    if not isinstance(node, ast.Call) or not _starts_tasks(names, node):
        return
    for argument in flatten_arguments(node.args):
        helper = names.helper(argument) or names.function(argument)
        if helper is not None and helper.is_async and makes_durable_calls(helper):
            what = f"the order of the durable calls in {helper.name} would depend on timing"
            yield argument, "raw_task", f"{what}; use flowfabric.gather, settle or race"
        elif names.durable(argument) in (*_WAITS, CallKind.GROUP):
            what = "a wait in an asyncio task cannot suspend"
            yield argument, "raw_task", f"{what}; use flowfabric.gather, settle or race"


def find_asyncio_timers(names: NameResolver, node: ast.AST) -> Iterator[RawFinding]:
    """Find asyncio timers around durable waits.

    An asyncio timer is lost when the run ends, but the durable wait continues.
    """
    match node:
        case ast.AsyncWith(items=items, body=body) | ast.With(items=items, body=body):
            timed = [item.context_expr for item in items if _is_timer(names, item.context_expr)]
            if timed and any(kind in _WAITS for kind in durable_kinds(names, body)):
                yield timed[0], "asyncio_timeout", _TIMER_MESSAGE
        case ast.Call(func=called, args=[first, *_]) if names.resolve(called) == "asyncio.wait_for":
            if any(kind in _WAITS for kind in durable_kinds(names, [first])):
                yield node, "asyncio_timeout", _TIMER_MESSAGE


def find_unawaited_calls(function: Function) -> Iterator[RawFinding]:
    """Find durable calls that are never awaited."""
    names = NameResolver(function.scope)
    loaded = {
        node.id for node in ast.walk(function.node) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    for node in walk_own_nodes(function.node.body):
        match node:
            case ast.Expr(value=ast.Call() as call):
                pass
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Call() as call)
            ) if name not in loaded:
                pass
            case _:
                continue
        if _is_coroutine(names, call):
            yield call, "not_awaited", f"{ast.unparse(call.func)}(…) is never awaited; await it"


_TIMER_MESSAGE = "the timer ends with the run, but the wait continues; use timeout= of the wait"


def _check_handlers(names: NameResolver, node: ast.Try | ast.TryStar) -> Iterator[RawFinding]:
    for handler in node.handlers:
        if handler.type is not None and names.public(handler.type) == "Unwind" and _ends_with_raise(handler.body):
            break
        if _catches_all(names, handler.type) and not _ends_with_raise(handler.body):
            caught = "bare except" if handler.type is None else "except BaseException"
            yield handler, "swallowed_unwind", _catches_message(caught)
    for inner in walk_own_nodes(node.finalbody):
        if isinstance(inner, ast.Return):
            yield inner, "swallowed_unwind", _catches_message("return in finally")


def _catches_message(what: str) -> str:
    return f"{what} catches the unwinding of a suspended task; catch Exception or re-raise it"


def _catches_all(names: NameResolver, kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(each is None or names.is_builtin(each, _BASE_EXCEPTION) for each in kinds)


def _ends_with_raise(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Raise)


def _suppresses_all(names: NameResolver, node: ast.expr) -> bool:
    match node:
        case ast.Call(func=called, args=kinds) if names.resolve(called) == "contextlib.suppress":
            return any(names.is_builtin(kind, _BASE_EXCEPTION) for kind in kinds)
    return False


def _returns_exceptions(names: NameResolver, node: ast.Call) -> bool:
    has_option = any(each.arg == "return_exceptions" and getattr(each.value, "value", None) for each in node.keywords)
    return has_option and names.resolve(node.func) == "asyncio.gather"


def _starts_tasks(names: NameResolver, node: ast.Call) -> bool:
    by_method = isinstance(node.func, ast.Attribute) and node.func.attr in _RAW_METHODS
    return names.resolve(node.func) in _RAW_TASKS or by_method


def _is_timer(names: NameResolver, node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and names.resolve(node.func) in _TIMERS


def _is_coroutine(names: NameResolver, node: ast.Call) -> bool:
    """Return True if the call has no effect unless it is awaited."""
    if names.durable(node) is not None:
        return not names.is_sync(node)
    helper = names.helper(node)
    return helper is not None and helper.is_async and makes_durable_calls(helper)
