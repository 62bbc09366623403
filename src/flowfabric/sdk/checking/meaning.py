"""What an expression means: whether it is a durable call, which function it calls, and where an object comes from."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from flowfabric.sdk.checking.scopes import Bound, Function, Scope, own_nodes


class Kind(StrEnum):
    """The kinds of durable calls; waits cannot be awaited outside of the task's own branches."""

    STEP = "step"
    WAIT = "wait"
    CHILD = "child"
    SUBMIT = "submit"
    GROUP = "group"


_KINDS = {
    "step": Kind.STEP, "step.tx": Kind.STEP, "sleep": Kind.WAIT, "sleep_until": Kind.WAIT, "poll": Kind.WAIT,
    "wait_signal": Kind.WAIT, "wait_for": Kind.WAIT, "approval": Kind.WAIT, "callback": Kind.WAIT,
    "gather": Kind.GROUP, "settle": Kind.GROUP, "race": Kind.GROUP,
}  # fmt: skip
_TASK_CALLS = {"run": Kind.CHILD, "submit": Kind.SUBMIT}
_FACES = ("flowfabric.sync.", "flowfabric.")
# Others who decorate with `.task`.
_NOT_OURS = frozenset({"airflow", "celery", "dramatiq", "huey", "invoke", "locust", "prefect", "taskiq"})
_SETS = frozenset({"set", "frozenset"})
_SET_TYPES = frozenset({"set", "frozenset", "Set", "AbstractSet", "FrozenSet", "MutableSet"})
_SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference", "copy"})
# How many names are followed to what they were made of, so that a name made of itself is not followed for ever.
_HOPS = 4
_ORDER_KEPT = frozenset({"list", "tuple", "enumerate", "reversed", "iter"})


def decorator_name(node: ast.expr) -> ast.expr:
    """The thing that decorates, with or without arguments."""
    return node.func if isinstance(node, ast.Call) else node


def is_task(function: Function) -> bool:
    """True for a function under `@<something>.task` or `.task(…)`, unless that something is known to be another's."""
    names = Names(function.outer)
    for decorator in map(decorator_name, function.node.decorator_list):
        if isinstance(decorator, ast.Attribute) and decorator.attr == "task":
            origin = names.origin(decorator.value) or ""
            return origin.partition(".")[0] not in _NOT_OURS
    return False


@dataclass(frozen=True, slots=True)
class Names:
    """Reads expressions within a scope. `hops`: how many names may still be followed."""

    scope: Scope
    hops: int = _HOPS

    def resolve(self, node: ast.expr) -> str | None:
        """The dotted origin of a name or of an attribute of one, if it was imported: `asyncio.sleep`."""
        match node:
            case ast.Name(id=name):
                found = self.scope.find(name)
                return found if isinstance(found, str) else None
            case ast.Attribute(value=value, attr=attribute):
                base = self.resolve(value)
                return None if base is None else f"{base}.{attribute}"
        return None

    def function(self, node: ast.expr) -> Function | None:
        """The function of this module that a name stands for."""
        found = self.scope.find(node.id) if isinstance(node, ast.Name) else None
        return found if isinstance(found, Function) else None

    def helper(self, node: ast.AST) -> Function | None:
        """The function whose body runs where this call is: of this module, not decorated."""
        found = self.function(node.func) if isinstance(node, ast.Call) else None
        return found if found is not None and found.is_plain else None

    def is_builtin(self, node: ast.expr, names: frozenset[str]) -> bool:
        """True for one of these names that nothing in the module has bound."""
        return isinstance(node, ast.Name) and node.id in names and self.scope.find(node.id) is None

    def public(self, node: ast.expr) -> str | None:
        """What a name is called in `flowfabric`, or in `flowfabric.sync`."""
        origin = self.resolve(node)
        face = next((face for face in _FACES if origin is not None and origin.startswith(face)), None)
        return None if origin is None or face is None else origin.removeprefix(face)

    def durable(self, node: ast.AST) -> Kind | None:
        """The kind of a durable call; None for everything else."""
        if not isinstance(node, ast.Call):
            return None
        if isinstance(node.func, ast.Call):
            return Kind.STEP if self.public(node.func.func) == "step.options" else None
        if isinstance(node.func, ast.Attribute) and node.func.attr in _TASK_CALLS and self._is_task(node.func.value):
            return _TASK_CALLS[node.func.attr]
        public = self.public(node.func)
        return None if public is None else _KINDS.get(public)

    def is_sync(self, node: ast.Call) -> bool:
        """True for a durable call that gives its value at once."""
        inner = node.func.func if isinstance(node.func, ast.Call) else node.func
        through_sync = any(isinstance(each, ast.Attribute) and each.attr == "sync" for each in ast.walk(inner))
        return through_sync or (self.resolve(inner) or "").startswith("flowfabric.sync.")

    def origin(self, node: ast.expr) -> str | None:
        """Where an object comes from: what it was imported as, or what made it or annotates it was."""
        match node:
            case ast.Call(func=made_by):
                return self.resolve(made_by) or self.origin(made_by)
            case ast.Await(value=inner) | ast.Subscript(value=inner):
                return self.origin(inner)
            case ast.Attribute(value=inner):
                return self.resolve(node) or self.origin(inner)
            case ast.Name(id=name):
                found = self.scope.find(name)
                return self._origin_of(found) if isinstance(found, Bound) else self.resolve(node)
        return None

    def is_set(self, node: ast.expr) -> bool:
        """True for an expression that is known to be a set, or that goes through one in its order."""
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right=right):
                return self.is_set(left) or self.is_set(right)
            case ast.Call(func=ast.Attribute(value=base, attr=method)) if method in _SET_METHODS:
                return self.is_set(base)
            case ast.Call(func=made_by, args=arguments):
                wraps = self.is_builtin(made_by, _ORDER_KEPT) and len(arguments) > 0
                return self.is_builtin(made_by, _SETS) or (wraps and self.is_set(arguments[0]))
            case ast.Name(id=name):
                found = self.scope.find(name)
                return isinstance(found, Bound) and self._holds_set(found)
        return False

    def _is_task(self, node: ast.expr) -> bool:
        match node:
            case ast.Call(func=ast.Attribute(value=inner, attr="options")) | ast.Attribute(value=inner, attr="sync"):
                return self._is_task(inner)
        found = self.function(node)
        return found is not None and is_task(found)

    def _origin_of(self, found: Bound) -> str | None:
        if found.annotation is not None:
            return Names(found.scope).resolve(found.annotation)
        names = self._within(found)
        origins = {None if value is None or names is None else names.origin(value) for value in found.values}
        return origins.pop() if len(origins) == 1 else None

    def _holds_set(self, found: Bound) -> bool:
        if found.annotation is not None:
            inner = found.annotation.value if isinstance(found.annotation, ast.Subscript) else found.annotation
            return (inner.id if isinstance(inner, ast.Name) else getattr(inner, "attr", "")) in _SET_TYPES
        names = self._within(found)
        known = [value is not None and names is not None and names.is_set(value) for value in found.values]
        return bool(known) and all(known)

    def _within(self, found: Bound) -> Names | None:
        return Names(found.scope, self.hops - 1) if self.hops else None


def durable_calls(function: Function) -> Iterator[tuple[ast.Call, Kind]]:
    """The durable calls that a function makes itself."""
    names = Names(function.scope)
    for node in own_nodes(function.node.body):
        if (kind := names.durable(node)) is not None and isinstance(node, ast.Call):
            yield node, kind


def makes_durable(function: Function) -> bool:
    """True if a function makes durable calls, itself or by helpers of this module."""
    return any(next(durable_calls(each), None) is not None for each in with_helpers(function))


def with_helpers(function: Function, enters: Callable[[Function], bool] = lambda _: True) -> Iterator[Function]:
    """A function, and all whose bodies run when it does, each once; those that are not entered are left out."""
    seen, waiting = {function}, [function]
    while waiting:
        found = waiting.pop()
        yield found
        names = Names(found.scope)
        for node in own_nodes(found.node.body):
            helper = names.helper(node)
            if helper is not None and helper not in seen and enters(helper):
                seen.add(helper)
                waiting.append(helper)
