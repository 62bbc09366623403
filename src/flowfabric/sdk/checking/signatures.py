"""Rules about functions that are tasks or steps: their types must be known, and a step cannot contain another."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from flowfabric.sdk.checking.awaiting import Found
from flowfabric.sdk.checking.meaning import Kind, Names, decorator_name, durable_calls, makes_durable
from flowfabric.sdk.checking.scopes import Function, Module, all_arguments, own_nodes

_HOLDERS = frozenset({"self", "cls"})
# Which argument of a call is the function that it runs as a step.
_PLACES = {"step": 0, "step.tx": 0, "poll": 1}
_SAGAS = frozenset({"flowfabric.saga", "flowfabric.sync.saga"})


def step_functions(module: Module) -> list[Function]:
    """The functions of the module that are used as steps, by a call or by `@step.policy(…)`."""
    found = {function for function in module.functions if _has_policy(function)}
    return [*found, *sorted(_used_as_steps(module) - found, key=lambda function: function.node.lineno)]


def missing_annotations(function: Function) -> Iterator[Found]:
    """What has no type, and so cannot be stored and restored as what it is."""
    missing = [each.arg for each in all_arguments(function.node) if each.annotation is None]
    if missing and missing[0] in _HOLDERS:
        missing = missing[1:]
    if function.node.returns is None:
        missing.append("return")
    if missing:
        what = ", ".join(missing)
        yield function.node, "no_annotation", f"{function.name} has no annotation for {what}; say what is stored"


def steps_in_steps(function: Function) -> Iterator[Found]:
    """Durable calls inside a function that is a step. Submitting is allowed there."""
    for call, kind in durable_calls(function):
        if kind is not Kind.SUBMIT:
            yield call, "step_in_step", f"the step {function.name} cannot contain durable calls; {_INSTEAD}"
    names = Names(function.scope)
    for node in own_nodes(function.node.body):
        helper = names.helper(node)
        if helper is not None and helper is not function and makes_durable(helper):
            what = f"the step {function.name} cannot call {helper.name}, which makes durable calls"
            yield node, "step_in_step", f"{what}; {_INSTEAD}"


_INSTEAD = "call the function directly, or await this in the task"


def _has_policy(function: Function) -> bool:
    names = Names(function.outer)
    return any(names.public(decorator_name(each)) == "step.policy" for each in function.node.decorator_list)


def _used_as_steps(module: Module) -> set[Function]:
    found: set[Function] = set()
    for caller in module.functions:
        names = Names(caller.scope)
        for node in own_nodes(caller.node.body):
            used = _step_of(names, node) if isinstance(node, ast.Call) else None
            function = None if used is None else names.function(used)
            if function is not None:
                found.add(function)
    return found


def _step_of(names: Names, call: ast.Call) -> ast.expr | None:
    """The function that a call runs as a step."""
    public = names.public(call.func)
    if public == "approval":
        return next((keyword.value for keyword in call.keywords if keyword.arg == "notify"), None)
    if isinstance(call.func, ast.Call):
        place = 0 if names.public(call.func.func) == "step.options" else None
    elif isinstance(call.func, ast.Attribute) and call.func.attr == "add":
        place = 0 if names.origin(call.func.value) in _SAGAS else None
    else:
        place = _PLACES.get(public or "")
    return call.args[place] if place is not None and len(call.args) > place else None
