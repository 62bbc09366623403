"""Rules about waits: a suspended task is unwound, so nothing may catch that, and no raw task may wait in its place."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from flowfabric.sdk.checking.meaning import Kind, Names, durable_calls, makes_durable, with_helpers
from flowfabric.sdk.checking.scopes import Function, own_nodes

Found = tuple[ast.AST, str, str]

_EVERYTHING = frozenset({"BaseException"})
_RAW_TASKS = frozenset({
    "asyncio.create_task", "asyncio.ensure_future", "asyncio.gather", "asyncio.wait", "asyncio.as_completed",
    "asyncio.shield", "asyncio.run_coroutine_threadsafe", "anyio.create_task_group",
})  # fmt: skip
_RAW_METHODS = frozenset({"create_task", "start_soon"})
_TIMERS = frozenset({"asyncio.timeout", "asyncio.timeout_at", "async_timeout.timeout", "anyio.fail_after"})
_WAITS = (Kind.WAIT, Kind.CHILD)


def durables_in(names: Names, nodes: Sequence[ast.AST]) -> Iterator[Kind]:
    """The kinds of durable calls that run when these do, helpers included."""
    for node in own_nodes(nodes):
        kind = names.durable(node)
        helper = names.helper(node) if kind is None else None
        if kind is not None:
            yield kind
        elif helper is not None:
            yield from (inner for each in with_helpers(helper) for _, inner in durable_calls(each))


def flattened(arguments: Iterable[ast.expr]) -> Iterator[ast.expr]:
    """The single arguments of a call, out of lists, stars and comprehensions."""
    for argument in arguments:
        match argument:
            case ast.Starred(value=inner):
                yield from flattened([inner])
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                yield from flattened(items)
            case ast.ListComp(elt=made) | ast.GeneratorExp(elt=made) | ast.SetComp(elt=made):
                yield from flattened([made])
            case _:
                yield argument


def swallowed(function: Function) -> Iterator[Found]:
    """Places where the unwinding of a suspended task is caught."""
    names = Names(function.scope)
    for node in own_nodes(function.node.body):
        match node:
            case ast.Try() | ast.TryStar() if any(durables_in(names, node.body)):
                yield from _handlers(names, node)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                for item in items:
                    if _suppresses_all(names, item.context_expr) and any(durables_in(names, body)):
                        yield item.context_expr, "swallowed_unwind", _catches("suppress(BaseException)")
            case ast.Call(args=arguments) if _returns_exceptions(names, node) and any(durables_in(names, arguments)):
                what = "asyncio.gather(return_exceptions=True) catches the unwinding of a suspended task"
                yield node, "swallowed_unwind", f"{what}; use flowfabric.settle"


def raw_tasks(function: Function) -> Iterator[Found]:
    """Tasks of asyncio over coroutines that make durable calls, or over waits."""
    names = Names(function.scope)
    for node in own_nodes(function.node.body):
        if not isinstance(node, ast.Call) or not _starts_tasks(names, node):
            continue
        for argument in flattened(node.args):
            helper = names.helper(argument) or names.function(argument)
            if helper is not None and helper.is_async and makes_durable(helper):
                what = f"{helper.name} makes durable calls, and their order would depend on timing"
                yield argument, "raw_task", f"{what}; use flowfabric.gather, settle or race"
            elif names.durable(argument) in (*_WAITS, Kind.GROUP):
                what = "a wait in a task of asyncio can never suspend"
                yield argument, "raw_task", f"{what}; use flowfabric.gather, settle or race"


def timers(function: Function) -> Iterator[Found]:
    """Timers of asyncio around durable waits: they die with the run."""
    names = Names(function.scope)
    for node in own_nodes(function.node.body):
        match node:
            case ast.AsyncWith(items=items, body=body) | ast.With(items=items, body=body):
                timed = [item.context_expr for item in items if _is_timer(names, item.context_expr)]
                if timed and any(kind in _WAITS for kind in durables_in(names, body)):
                    yield timed[0], "asyncio_timeout", _TIMER_WORDS
            case ast.Call(func=called, args=[first, *_]) if names.resolve(called) == "asyncio.wait_for":
                if any(kind in _WAITS for kind in durables_in(names, [first])):
                    yield node, "asyncio_timeout", _TIMER_WORDS


def not_awaited(function: Function) -> Iterator[Found]:
    """Durable calls that are made and never awaited."""
    names = Names(function.scope)
    loaded = {
        node.id for node in ast.walk(function.node) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    for node in own_nodes(function.node.body):
        match node:
            case ast.Expr(value=ast.Call() as call):
                made = call
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Call() as call)
            ) if name not in loaded:
                made = call
            case _:
                continue
        if _is_coroutine(names, made):
            yield made, "not_awaited", f"{ast.unparse(made.func)}(…) is made but never awaited; await it"


_TIMER_WORDS = "the timer dies with the run while the wait goes on; use timeout= of the wait"


def _handlers(names: Names, node: ast.Try | ast.TryStar) -> Iterator[Found]:
    for handler in node.handlers:
        if handler.type is not None and names.public(handler.type) == "Unwind" and _raises(handler.body):
            break
        if _catches_all(names, handler.type) and not _raises(handler.body):
            caught = "bare except" if handler.type is None else "except BaseException"
            yield handler, "swallowed_unwind", _catches(caught)
    for inner in own_nodes(node.finalbody):
        if isinstance(inner, ast.Return):
            yield inner, "swallowed_unwind", _catches("return in finally")


def _catches(what: str) -> str:
    return f"{what} catches the unwinding of a suspended task; catch Exception, or raise it again"


def _catches_all(names: Names, kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(each is None or names.is_builtin(each, _EVERYTHING) for each in kinds)


def _raises(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Raise)


def _suppresses_all(names: Names, node: ast.expr) -> bool:
    match node:
        case ast.Call(func=called, args=kinds) if names.resolve(called) == "contextlib.suppress":
            return any(names.is_builtin(kind, _EVERYTHING) for kind in kinds)
    return False


def _returns_exceptions(names: Names, node: ast.Call) -> bool:
    told = any(each.arg == "return_exceptions" and getattr(each.value, "value", None) for each in node.keywords)
    return told and names.resolve(node.func) == "asyncio.gather"


def _starts_tasks(names: Names, node: ast.Call) -> bool:
    by_method = isinstance(node.func, ast.Attribute) and node.func.attr in _RAW_METHODS
    return names.resolve(node.func) in _RAW_TASKS or by_method


def _is_timer(names: Names, node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and names.resolve(node.func) in _TIMERS


def _is_coroutine(names: Names, node: ast.Call) -> bool:
    """True for what does nothing unless it is awaited."""
    if names.durable(node) is not None:
        return not names.is_sync(node)
    helper = names.helper(node)
    return helper is not None and helper.is_async and makes_durable(helper)
