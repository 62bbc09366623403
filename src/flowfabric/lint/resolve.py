"""The meaning of expressions: durable calls, called functions, and the origin of objects."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from flowfabric.lint.scopes import BoundName, Function, PythonScope, walk_own_nodes


class CallKind(StrEnum):
    """The kinds of durable calls. A wait may be awaited only in a branch of the task."""

    STEP = "step"
    WAIT = "wait"
    CHILD = "child"
    SUBMIT = "submit"
    GROUP = "group"


_KINDS = {
    "step": CallKind.STEP, "step.tx": CallKind.STEP, "sleep": CallKind.WAIT, "sleep_until": CallKind.WAIT,
    "poll": CallKind.WAIT,
    "wait_signal": CallKind.WAIT, "wait_for": CallKind.WAIT, "approval": CallKind.WAIT, "callback": CallKind.WAIT,
    "gather": CallKind.GROUP, "settle": CallKind.GROUP, "race": CallKind.GROUP,
}  # fmt: skip
_TASK_CALLS = {"run": CallKind.CHILD, "submit": CallKind.SUBMIT}
_PREFIXES = ("flowfabric.sync.", "flowfabric.")
# Other libraries that have a `.task` decorator.
_OTHER_LIBRARIES = frozenset({"airflow", "celery", "dramatiq", "huey", "invoke", "locust", "prefect", "taskiq"})
_SETS = frozenset({"set", "frozenset"})
_SET_TYPES = frozenset({"set", "frozenset", "Set", "AbstractSet", "FrozenSet", "MutableSet"})
_SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference", "copy"})
# How many assignments the resolver follows. The limit stops it if names are assigned in a cycle.
_MAX_HOPS = 4
_ORDER_PRESERVING = frozenset({"list", "tuple", "enumerate", "reversed", "iter"})


def decorator_name(node: ast.expr) -> ast.expr:
    """Return the decorator itself, without its arguments."""
    return node.func if isinstance(node, ast.Call) else node


def is_task(function: Function) -> bool:
    """Return True for a function with the decorator `@<name>.task` or `.task(…)`, unless it is another library's."""
    names = NameResolver(function.outer)
    for decorator in map(decorator_name, function.node.decorator_list):
        if isinstance(decorator, ast.Attribute) and decorator.attr == "task":
            origin = names.origin(decorator.value) or ""
            return origin.partition(".")[0] not in _OTHER_LIBRARIES
    return False


@dataclass(frozen=True, slots=True)
class NameResolver:
    """A resolver of expressions in one scope, which follows at most `hops` assignments."""

    scope: PythonScope
    hops: int = _MAX_HOPS

    def resolve(self, node: ast.expr) -> str | None:
        """Return the full dotted name of an imported name or of its attribute, such as `asyncio.sleep`."""
        match node:
            case ast.Name(id=name):
                binding = self.scope.find(name)
                return binding if isinstance(binding, str) else None
            case ast.Attribute(value=value, attr=attribute):
                base = self.resolve(value)
                return None if base is None else f"{base}.{attribute}"
        return None

    def function(self, node: ast.expr) -> Function | None:
        """Return the function of this module that a name refers to."""
        binding = self.scope.find(node.id) if isinstance(node, ast.Name) else None
        return binding if isinstance(binding, Function) else None

    def helper(self, node: ast.AST) -> Function | None:
        """Return the undecorated function of this module that a call runs."""
        function = self.function(node.func) if isinstance(node, ast.Call) else None
        return function if function is not None and function.is_plain else None

    def is_builtin(self, node: ast.expr, names: frozenset[str]) -> bool:
        """Return True if the expression is one of these names and the module does not rebind that name."""
        return isinstance(node, ast.Name) and node.id in names and self.scope.find(node.id) is None

    def public(self, node: ast.expr) -> str | None:
        """Return the public name of an object of `flowfabric` or `flowfabric.sync`."""
        origin = self.resolve(node)
        prefix = next((prefix for prefix in _PREFIXES if origin is not None and origin.startswith(prefix)), None)
        return None if origin is None or prefix is None else origin.removeprefix(prefix)

    def durable(self, node: ast.AST) -> CallKind | None:
        """Return the kind of a durable call, or None for any other node."""
        if not isinstance(node, ast.Call):
            return None
        if isinstance(node.func, ast.Call):
            return CallKind.STEP if self.public(node.func.func) == "step.options" else None
        if isinstance(node.func, ast.Attribute) and node.func.attr in _TASK_CALLS and self._is_task(node.func.value):
            return _TASK_CALLS[node.func.attr]
        public = self.public(node.func)
        return None if public is None else _KINDS.get(public)

    def is_sync(self, node: ast.Call) -> bool:
        """Return True for a durable call that returns its result without an await."""
        inner = node.func.func if isinstance(node.func, ast.Call) else node.func
        through_sync = any(isinstance(each, ast.Attribute) and each.attr == "sync" for each in ast.walk(inner))
        return through_sync or (self.resolve(inner) or "").startswith("flowfabric.sync.")

    def origin(self, node: ast.expr) -> str | None:
        """Return the dotted name of the import from which an object, its annotation or its constructor comes."""
        match node:
            case ast.Call(func=called):
                return self.resolve(called) or self.origin(called)
            case ast.Await(value=inner) | ast.Subscript(value=inner):
                return self.origin(inner)
            case ast.Attribute(value=inner):
                return self.resolve(node) or self.origin(inner)
            case ast.Name(id=name):
                binding = self.scope.find(name)
                return self._origin_of(binding) if isinstance(binding, BoundName) else self.resolve(node)
        return None

    def is_set(self, node: ast.expr) -> bool:
        """Return True for an expression that is certainly a set, or that keeps the iteration order of a set."""
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right=right):
                return self.is_set(left) or self.is_set(right)
            case ast.Call(func=ast.Attribute(value=base, attr=method)) if method in _SET_METHODS:
                return self.is_set(base)
            case ast.Call(func=called, args=arguments):
                wraps = self.is_builtin(called, _ORDER_PRESERVING) and len(arguments) > 0
                return self.is_builtin(called, _SETS) or (wraps and self.is_set(arguments[0]))
            case ast.Name(id=name):
                binding = self.scope.find(name)
                return isinstance(binding, BoundName) and self._holds_set(binding)
        return False

    def _is_task(self, node: ast.expr) -> bool:
        match node:
            case ast.Call(func=ast.Attribute(value=inner, attr="options")) | ast.Attribute(value=inner, attr="sync"):
                return self._is_task(inner)
        function = self.function(node)
        return function is not None and is_task(function)

    def _origin_of(self, bound: BoundName) -> str | None:
        if bound.annotation is not None:
            return NameResolver(bound.scope).resolve(bound.annotation)
        names = self._follow(bound)
        origins = {None if value is None or names is None else names.origin(value) for value in bound.values}
        return origins.pop() if len(origins) == 1 else None

    def _holds_set(self, bound: BoundName) -> bool:
        if bound.annotation is not None:
            inner = bound.annotation.value if isinstance(bound.annotation, ast.Subscript) else bound.annotation
            return (inner.id if isinstance(inner, ast.Name) else getattr(inner, "attr", "")) in _SET_TYPES
        names = self._follow(bound)
        are_sets = [value is not None and names is not None and names.is_set(value) for value in bound.values]
        return bool(are_sets) and all(are_sets)

    def _follow(self, bound: BoundName) -> NameResolver | None:
        return NameResolver(bound.scope, self.hops - 1) if self.hops else None


def find_durable_calls(function: Function) -> Iterator[tuple[ast.Call, CallKind]]:
    """Yield the durable calls in the body of a function, without those in nested functions."""
    names = NameResolver(function.scope)
    for node in walk_own_nodes(function.node.body):
        if (kind := names.durable(node)) is not None and isinstance(node, ast.Call):
            yield node, kind


def makes_durable_calls(function: Function) -> bool:
    """Return True if a function makes durable calls, directly or in helpers of this module."""
    return any(next(find_durable_calls(each), None) is not None for each in iter_with_helpers(function))


def iter_with_helpers(function: Function, enters: Callable[[Function], bool] = lambda _: True) -> Iterator[Function]:
    """Yield a function and all helpers that it calls, directly or in other helpers.

    Leave out functions that `enters` rejects.
    """
    visited, pending = {function}, [function]
    while pending:
        current = pending.pop()
        yield current
        names = NameResolver(current.scope)
        for node in walk_own_nodes(current.node.body):
            helper = names.helper(node)
            if helper is not None and helper not in visited and enters(helper):
                visited.add(helper)
                pending.append(helper)
