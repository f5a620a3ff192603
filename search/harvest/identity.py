"""Recognises references that compute the same thing with different sizes, names or layout."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from functools import lru_cache

from evaluators.records.problem import Problem, content_id

BUILTINS = frozenset(dir(builtins))
NOT_THE_MODEL = ("get_inputs", "get_init_inputs")
NOT_OPERATORS = [
    "module",
    "modulelist",
    "sequential",
    "parameter",
    "super",
    "init",
    "register_buffer",
    "view",
    "reshape",
    "size",
    "shape",
    "contiguous",
    "to",
    "float",
    "half",
    "rand",
    "randn",
    "zeros",
    "ones",
    "tensor",
    "len",
    "range",
    "list",
    "tuple",
    "append",
]
"""Calls in a model that compute nothing themselves, or only create inputs of computations."""
SYNONYMS = {"mm": "matmul", "bmm": "matmul", "matmult": "matmul", "mult": "mul"}


@lru_cache(maxsize=4096)
def canonical(source: str) -> str:
    """The reference's classes and functions as normalised tokens: without comments, annotations, sizes, input
    functions and its own names, and with all numbers replaced. Text that is not Python stays as it is."""
    try:
        return " ".join(_Words(ast.parse(source)).all())
    except (SyntaxError, ValueError):
        return source


def fingerprint(source: str) -> str:
    """Twelve hexadecimal digits, equal for references that differ only in sizes, names or layout."""
    return content_id("structure", canonical(source))


@lru_cache(maxsize=4096)
def operators(source: str) -> tuple[str, ...]:
    """The operations that the reference calls, sorted, with repetitions. `nn.ReLU`, `F.relu` and `x.relu_()`
    are the same operation."""
    try:
        words = _Words(ast.parse(source))
    except (SyntaxError, ValueError):
        return ()
    return tuple(sorted(words.operators()))


def sized(problem: Problem) -> str:
    """The reference with the problem's sizes written into it, as it was measured. Raises SyntaxError."""
    lines = [line.encode() for line in problem.source.splitlines(keepends=True)]
    for node in reversed(ast.parse(problem.source).body):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
        sizes = [f"{name} = {problem.overrides[name]!r}" for name in names if name in problem.overrides]
        if not sizes:
            continue
        # An assignment to one name is replaced; one to several names is followed by the new assignments.
        first, last, end = node.lineno - 1, (node.end_lineno or node.lineno) - 1, node.end_col_offset
        kept = (
            lines[first][: node.col_offset]
            if len(names) == 1
            else b"".join(lines[first:last]) + lines[last][:end]
        )
        glue = b"; " if len(names) > 1 else b""
        lines[first : last + 1] = [kept + glue + "; ".join(sizes).encode() + lines[last][end:]]
    return b"".join(lines).decode()


class _Words:
    """Turns a module's classes and functions into normalised tokens, resolving imported names."""

    def __init__(self, tree: ast.Module) -> None:
        self._imported: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._imported[alias.asname or alias.name.split(".")[0]] = (
                        alias.name if alias.asname else alias.name.split(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self._imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        self._body = [
            node
            for node in tree.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name not in NOT_THE_MODEL
        ]
        stored = (each for node in self._body for each in ast.walk(node) if isinstance(each, ast.Attribute))
        self._own_attributes = {each.attr for each in stored if isinstance(each.ctx, ast.Store)}
        self._numbers: dict[str, str] = {}

    def all(self) -> Iterator[str]:
        for node in self._body:
            yield from self._of(node)

    def operators(self) -> Iterator[str]:
        for node in (each for top in self._body for each in ast.walk(top)):
            if isinstance(node, ast.Call):
                name = self._dotted(node.func) or ""
                if name.startswith("torch.") or (isinstance(node.func, ast.Attribute) and not name):
                    yield from _operator(name or getattr(node.func, "attr", ""))
            elif isinstance(node, ast.BinOp):
                yield from _operator(type(node.op).__name__)

    def _dotted(self, node: ast.expr) -> str | None:
        """The full dotted name of an imported name, such as `torch.nn.functional.relu`; "own" for an
        attribute that the model assigns; None for others."""
        if isinstance(node, ast.Name):
            return self._imported.get(node.id)
        if isinstance(node, ast.Attribute) and (base := self._dotted(node.value)):
            return f"{base}.{node.attr}"
        if isinstance(node, ast.Attribute) and node.attr in self._own_attributes:
            return "own"
        return None

    def _name(self, name: str) -> str:
        """Numbers the reference's own names in order of appearance; builtins keep their names."""
        if name in BUILTINS:
            return name
        return self._numbers.setdefault(name, f"#{len(self._numbers)}")

    def _of(self, node: object) -> Iterator[str]:
        match node:
            case ast.Constant(value=bool() | str() | None):
                yield repr(node.value)
            case ast.Constant() | ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
                yield "number"
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                return
            case ast.FunctionDef(name="__init__") if self._is_trivial(node):
                return
            case ast.Call(func=ast.Name(id="super")):
                yield "super"
            case ast.Name():
                yield self._imported.get(node.id) or self._name(node.id)
            case ast.Attribute() if dotted := self._dotted(node):
                yield self._name(node.attr) if dotted == "own" else dotted
            case ast.arg():
                yield self._name(node.arg)
            case ast.AST():
                yield from self._children(node)
            case list():
                for each in node:
                    yield from self._of(each)
            case str():
                yield node
            case _:
                return

    def _children(self, node: ast.AST) -> Iterator[str]:
        yield f"({type(node).__name__}"
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "ctx", "kind", "type_comment", "type_params"):
                continue
            if field == "name" and node in self._body:
                yield self._name(value)
            else:
                yield from self._of(value)
        yield ")"

    @staticmethod
    def _is_trivial(node: ast.FunctionDef) -> bool:
        """Whether an `__init__` only calls its base class's."""
        calls = [each for each in node.body if not isinstance(each, ast.Pass)]
        calls = [e for e in calls if not (isinstance(e, ast.Expr) and isinstance(e.value, ast.Constant))]
        return all("super" in ast.unparse(each) and isinstance(each, ast.Expr) for each in calls)


def _operator(name: str) -> Iterator[str]:
    last = re.sub(r"[^a-z0-9]", "", name.rpartition(".")[2].lower())
    if last not in NOT_OPERATORS and name.rpartition(".")[2] not in NOT_OPERATORS:
        yield SYNONYMS.get(last, last)
