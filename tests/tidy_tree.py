"""Rules about all modules of a package: their number, their sizes, and their imports."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests import tidy_limits as limits

Graph = Mapping[str, set[str]]


@dataclass(frozen=True, slots=True)
class Module:
    """A module, its size in lines, and the modules of its package that it imports."""

    name: str
    is_package: bool
    lines: int
    imports: frozenset[str]
    # Imports below `if TYPE_CHECKING:`, which never run.
    type_only_imports: frozenset[str]
    # Without imports inside functions, which run later and cannot prevent a module from loading.
    imports_at_load: frozenset[str]

    @property
    def all_imports(self) -> frozenset[str]:
        return self.imports | self.type_only_imports

    def is_below(self, package: str) -> bool:
        return f"{self.name}.".startswith(f"{package}.")


def read_package(folder: Path) -> dict[str, Module]:
    """Return the modules below a folder by their dotted names. The folder itself is `__init__`."""
    paths = {_name(folder, path): path for path in sorted(folder.rglob("*.py"))}
    return {name: _read(name, path, folder.name, frozenset(paths)) for name, path in paths.items()}


def size_problems(modules: Mapping[str, Module]) -> list[str]:
    """Return a problem if there are too many modules or if their median size is too small."""
    problems = []
    if len(modules) > limits.MODULES:
        problems.append(f"{len(modules)} modules, at most {limits.MODULES}")
    median = statistics.median(module.lines for module in modules.values())
    if median < limits.MEDIAN_LINES:
        problems.append(f"the median of the modules is {median:g} lines; the minimum is {limits.MEDIAN_LINES}")
    return problems


def fragment_problems(modules: Mapping[str, Module]) -> list[str]:
    """Return small modules that only one other module imports and that could be a part of it."""
    importers: dict[str, list[str]] = {name: [] for name in modules}
    for module in modules.values():
        for name in module.all_imports:
            importers[name].append(module.name)
    return [
        f"{name} has {module.lines} lines and one importer, {importers[name][0]}; make it a part of that module"
        for name, module in modules.items()
        if len(importers[name]) == 1 and module.lines < limits.FRAGMENT_LINES and not _may_stand_alone(module)
    ]


def cycle_problems(modules: Mapping[str, Module]) -> list[str]:
    """Return import cycles that are too large, cross packages, or prevent a module from loading."""
    at_load = {name: set(module.imports_at_load) for name, module in modules.items()}
    at_run = {name: set(module.imports) for name, module in modules.items()}
    everything = {name: set(module.all_imports) for name, module in modules.items()}
    problems = [f"modules import each other while they load: {', '.join(cycle)}" for cycle in cycles(at_load)]
    for cycle in cycles(everything):
        packages = {name.partition(".")[0] for name in cycle}
        is_home = packages <= limits.CYCLE_PACKAGES
        allowed = limits.CYCLE_MODULES if is_home else limits.SMALL_CYCLE_MODULES
        if len(packages) > 1 or len(cycle) > allowed:
            run = max((len(inner) for inner in cycles(at_run) if set(inner) <= set(cycle)), default=0)
            where = "across packages" if len(packages) > 1 else f"in {min(packages)}, at most {allowed}"
            problems.append(
                f"cycle of {len(cycle)} modules {where} ({run} without type-only imports): {', '.join(cycle)}"
            )
    return problems


def cycles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components with more than one module, largest first (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            place = stack.index(node)
            members, stack[place:] = stack[place:], []
            components.extend([sorted(members)] if len(members) > 1 else [])

    for node in graph:
        if node not in index:
            visit(node)
    return sorted(components, key=lambda members: (-len(members), members))


def _may_stand_alone(module: Module) -> bool:
    return module.is_package or any(module.is_below(package) for package in limits.OWN_FILE_PACKAGES)


def _name(folder: Path, path: Path) -> str:
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] or ("__init__",)) if parts[-1] == "__init__" else ".".join(parts)


def _read(name: str, path: Path, package: str, known: frozenset[str]) -> Module:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    type_only = {node for block in ast.walk(tree) if _is_type_checking(block) for node in _imports(*_body(block))}
    run = [node for node in _imports(tree) if node not in type_only]
    at_load = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    targets = [
        frozenset(target for node in nodes for target in _targets(node, package, known)) - {name}
        for nodes in (run, type_only, at_load)
    ]
    is_package = path.name == "__init__.py"
    return Module(name, is_package, len(text.splitlines()), targets[0], targets[1] - targets[0], targets[2])


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING"


def _body(block: ast.AST) -> list[ast.stmt]:
    return block.body if isinstance(block, ast.If) else []


def _imports(*trees: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for tree in trees:
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))


def _targets(node: ast.Import | ast.ImportFrom, package: str, known: frozenset[str]) -> Iterator[str]:
    """Yield the modules of the package that an import statement names."""
    if isinstance(node, ast.Import):
        names = [alias.name.removeprefix(f"{package}.") for alias in node.names if alias.name.startswith(f"{package}.")]
        yield from (name for name in names if name in known)
    elif node.level == 0 and node.module and f"{node.module}.".startswith(f"{package}."):
        inner = node.module[len(package) + 1 :]
        for alias in node.names:
            whole = f"{inner}.{alias.name}" if inner else alias.name
            target = whole if whole in known else inner or "__init__"
            if target in known:
                yield target
