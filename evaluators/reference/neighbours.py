"""A reference may import modules from its folder. They are put into its source, because it runs in processes,
and on machines, that do not see the folder; and a problem with another helper is another problem."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from evaluators.base.source_file import read_source

IMPORTER = '''
class _Neighbours:
    """Imports the modules that were next to this reference."""

    sources = {{
{sources}
    }}
    packages = {packages!r}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        import importlib.util

        if name in cls.sources:
            return importlib.util.spec_from_loader(name, cls, is_package=name in cls.packages)

    @staticmethod
    def create_module(spec):
        return None

    @classmethod
    def exec_module(cls, module):
        exec(compile(cls.sources[module.__name__], f"<{{module.__name__}}>", "exec"), module.__dict__)

    @classmethod
    def install(cls):
        import sys

        for name in cls.sources:
            sys.modules.pop(name, None)
        sys.meta_path.insert(0, cls)


_Neighbours.install()
'''


def with_neighbours(source: str, folder: Path) -> str:
    """The source of a reference with the modules of its folder that it imports, directly or not. The source
    itself if there are none, or if it is not Python. Raises OSError and ValueError for a module that cannot
    be read."""
    found: dict[str, Path] = {}
    sources: dict[str, str] = {}
    _collect(source, "", folder, found, sources)
    if not found:
        return source
    packages = tuple(name for name, file in found.items() if file.name == "__init__.py")
    written = "\n".join(f"        {name!r}: {text!r}," for name, text in sources.items())
    lines = source.splitlines(keepends=True)
    start = _first_line(source)
    importer = IMPORTER.format(sources=written, packages=packages)
    return f"{''.join(lines[:start])}{importer}\n{''.join(lines[start:])}"


def _collect(
    source: str, package: str, folder: Path, found: dict[str, Path], sources: dict[str, str]
) -> None:
    """Adds the modules of the folder that the source of a module in this package imports."""
    try:
        names = [*_imported(ast.parse(source), package)]
    except (RecursionError, SyntaxError, ValueError):
        return  # the error is reported where the source is checked
    for name in names:
        parts = name.split(".")
        for count in range(1, len(parts) + 1):  # a package before its modules
            each = ".".join(parts[:count])
            if each in found or (count == 1 and _is_installed(each)):
                continue
            place = folder.joinpath(*parts[:count])
            file = next(
                (it for it in (place / "__init__.py", place.with_suffix(".py")) if it.is_file()), None
            )
            if file is None:
                break
            found[each], sources[each] = file, read_source(file)
            inside = each if file.name == "__init__.py" else each.rpartition(".")[0]
            _collect(sources[each], inside, folder, found, sources)


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    """The names of modules that a module of this package may import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if package else []
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join(filter(None, [*above, node.module]))
            if base:
                yield base
            yield from (".".join(filter(None, [base, each.name])) for each in node.names if each.name != "*")


def _is_installed(name: str) -> bool:
    """Whether the module is Python's, or installed: not only in the current folder."""
    places = [each for each in sys.path if each and Path(each) != Path(os.getcwd())]
    return name in sys.builtin_module_names or PathFinder.find_spec(name, places) is not None


def _first_line(source: str) -> int:
    """The number of lines before the first statement after the docstring and imports from the future."""
    for node in ast.parse(source).body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not docstring and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            parts: list[ast.stmt | ast.expr] = [node, *getattr(node, "decorator_list", [])]
            return min(each.lineno for each in parts) - 1
    return 0
