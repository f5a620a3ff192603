"""The parts of a reference's source that a kernel keeps: its constructor, and the names it needs."""

from __future__ import annotations

import ast

from evaluators.records.problem import Problem, Size


def constructor_of(problem: Problem) -> tuple[str, str] | None:
    """Header and constructor of a `Workload`; None if the constructor uses other members of its class."""
    tree = ast.parse(problem.source)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model"]
    body = classes[-1].body
    methods = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    others = {name for node in body for name in _bound(node)} - {"__init__", "forward"}
    init = methods.get("__init__")
    if init is None:
        return "", ""
    touched = {node.attr for node in ast.walk(init) if isinstance(node, ast.Attribute)}
    if touched & others or init.decorator_list:
        return None
    text = _dedented(_renamed(problem.source, init), init.col_offset)
    return _header(problem, tree, _globals_of(init) - {"Model"}), text


def _globals_of(init: ast.FunctionDef) -> set[str]:
    """The names that a function takes from its module."""
    outside = [*init.args.defaults, *(each for each in init.args.kw_defaults if each), *_annotations(init)]
    own = {each.arg for each in ast.walk(init) if isinstance(each, ast.arg)}
    for statement in init.body:
        own |= _bound(statement)
    inside = {name for statement in init.body for name in _names(statement)} - own
    return inside | {name for each in outside for name in _names(each)}


def _annotations(init: ast.FunctionDef) -> list[ast.expr]:
    arguments = [each.annotation for each in ast.walk(init.args) if isinstance(each, ast.arg)]
    return [each for each in [*arguments, init.returns] if each is not None]


def _renamed(source: str, init: ast.FunctionDef) -> str:
    """The lines of the constructor, with `Model` (as in `super(Model, self)`) renamed `ModelNew`."""
    lines = [line.encode() for line in source.splitlines()]
    uses = [node for node in ast.walk(init) if isinstance(node, ast.Name) and node.id == "Model"]
    for use in sorted(uses, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        line = lines[use.lineno - 1]
        lines[use.lineno - 1] = line[: use.col_offset] + b"ModelNew" + line[use.end_col_offset :]
    return b"\n".join(lines[init.lineno - 1 : init.end_lineno]).decode()


def _dedented(text: str, columns: int) -> str:
    return "\n".join(line[columns:] if not line[:columns].strip() else line for line in text.splitlines())


def _header(problem: Problem, tree: ast.Module, wanted: set[str]) -> str:
    """The top-level statements that bind the wanted names, and the names those need in turn."""
    kept: set[int] = set()
    while True:
        more = {
            place
            for place, node in enumerate(tree.body)
            if place not in kept and (_bound(node) & wanted or _is_future(node))
        }
        if not more:
            break
        kept |= more
        wanted = wanted | {name for place in more for name in _names(tree.body[place])}
    return "\n".join(_statement(problem, tree.body[place]) for place in sorted(kept))


def _statement(problem: Problem, node: ast.stmt) -> str:
    """A statement's source. An assignment to an overridden size gets the override's value."""
    overridden: dict[str, Size] = {
        name: problem.overrides[name] for name in sorted(_bound(node)) if name in problem.overrides
    }
    if overridden and isinstance(node, ast.Assign | ast.AnnAssign):
        return "\n".join(f"{name} = {value!r}" for name, value in overridden.items())
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(each.lineno for each in decorators)])
    return "\n".join(problem.source.splitlines()[first - 1 : node.end_lineno])


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _bound(node: ast.stmt) -> set[str]:
    """The names that a statement binds."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
    return {each.id for each in names if isinstance(each.ctx, ast.Store)}
