"""Loads references: finds their source, checks their form, runs them as modules.

The form is KernelBench's: `Model`, `get_inputs()`, `get_init_inputs()`, sizes as module globals.
"""

from __future__ import annotations

import ast
import dataclasses
import logging
import random
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluators import PACKAGE
from evaluators.base.nearest import nearest
from evaluators.records.problem import DTYPES, Case, Problem, Size
from evaluators.reference.containers import map_tensors
from evaluators.reference.inputs.strided_layouts import clone, laid_out

if TYPE_CHECKING:
    import torch
    from torch import nn

logger = logging.getLogger(__name__)

PROBLEMS = PACKAGE / "problems"
REQUIRED = ("Model", "get_inputs", "get_init_inputs")
KEEPS_TYPES = "KEEPS_TYPES"
"""The module global of a reference of mixed precision: its floating inputs keep the types in which it makes
them."""
LEAVES_UNREAD = "LEAVES_UNREAD"
"""The module global of a reference that may leave inputs unread, as an operator does in one of its modes."""
KEEPS_INTEGERS = "KEEPS_INTEGERS"
"""The module global of a reference whose integer inputs have to be as it makes them: indices to which it
writes, of which none may be there twice, or the places where bags begin, in ascending order."""


class BadReference(ValueError):
    """A file that is no reference, with one line that says why."""


def load_problem(name: str, *, path: str | None = None, **rules: Any) -> Problem:
    """The problem `name`: a shipped reference (`level1/conv2d`), or the user's own file at `path`.

    `rules`: of `make_problem`. Raises BadReference, in one line, where there is no such file, and as that.
    """
    file = Path(path).expanduser() if path else PROBLEMS / f"{name}.py"
    try:
        source = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadReference(f"the reference {file} cannot be read: {error}") from error
    return make_problem(source, where=str(file), name=f"file/{file.stem}" if path else name, **rules)


def make_problem(
    source: str,
    *,
    where: str,
    name: str,
    sizes: Mapping[str, Size] | None = None,
    cpu_sizes: Mapping[str, Size] | None = None,
    dtype: str | None = None,
    precision: str = "",
    cpu_precision: str = "",
    device: str = "cpu",
    cases: Sequence[Mapping[str, Any]] | None = None,
    **fields: Any,
) -> Problem:
    """The problem of a reference with this source, which is found at `where`.

    `dtype` is that of floating inputs and weights; None takes the reference's own (see `own_dtype`). `sizes`
    replaces module globals of the reference; on a CPU `cpu_sizes` does so first, and a `cpu_precision` takes
    the place of `precision`; for inputs of half precision neither counts. `cases` has the fields of a `Case`
    each; None takes those that the reference names itself (see `own_cases`). `fields`: others of `Problem`.
    Raises BadReference, in one line, where the source lacks what a reference must have, and ValueError for a
    field that is none.
    """
    overrides = {**((cpu_sizes or {}) if device == "cpu" else {}), **(sizes or {})}
    check_source(source, where, overrides)
    dtype = dtype or own_dtype(source, overrides)
    precision = cpu_precision if cpu_precision and device == "cpu" else precision
    return Problem(
        name=name,
        source=source,
        overrides=overrides,
        dtype=dtype,
        precision=precision if dtype in ("float32", "float64") else "",
        device=device,
        cases=read_cases(own_cases(source, overrides) if cases is None else cases, source, where),
        **fields,
    )


def own_cases(source: str, overrides: Mapping[str, Size]) -> Sequence[Mapping[str, Any]]:
    """What the reference's `get_cases()` says; none where it has none. Raises BadReference where it fails."""
    if "get_cases" not in _names(ast.parse(source), _names_bound):
        return ()
    try:
        return list(load_module(source, overrides).get_cases())
    except Exception as error:  # the reference is the user's code, and may raise anything
        raise BadReference(f"the reference's get_cases() fails: {type(error).__name__}: {error}") from error


def own_held_out(problem: Problem, generator: random.Random) -> Callable[[Case], Mapping[str, Size]] | None:
    """What draws the sizes of a case like another by the reference's `get_held_out(generator)`; None where it
    has none."""
    if "get_held_out" not in _names(ast.parse(problem.source), _names_bound):
        return None

    def drawn(like: Case) -> Mapping[str, Size]:
        module = load_module(problem.source, {**problem.overrides, **like.sizes})
        sizes: Mapping[str, Size] = module.get_held_out(generator)
        return sizes

    return drawn


def read_cases(cases: Sequence[Mapping[str, Any]], source: str, where: str) -> tuple[Case, ...]:
    """The cases with these fields. Raises BadReference where one is none, or stands there twice."""
    found: dict[str, Case] = {}
    known = [each.name for each in dataclasses.fields(Case)]
    for number, fields in enumerate(cases):
        try:
            if unknown := next((name for name in fields if name not in known), None):
                near = nearest(unknown, known, similar=0.6)
                raise ValueError(f"there is no {unknown}" + (f"; did you mean {near}?" if near else ""))
            case = Case.from_json(dict(fields))
        except (TypeError, ValueError) as error:
            raise BadReference(f"case {number} of {where} is none: {error}") from error
        if case.name in found:
            raise BadReference(f"the case {case.name} of {where} stands there twice")
        found[case.name] = case
    check_source(
        source, where, {name: value for case in found.values() for name, value in case.sizes.items()}
    )
    return tuple(found.values())


def check_source(source: str, file: str, overrides: Mapping[str, Size]) -> None:
    """Reads the source without running it. Raises BadReference."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise BadReference(f"{file} is not Python: line {error.lineno}: {error.msg}") from error
    defined = _names(tree, _names_bound)
    assigned = _names(tree, _names_assigned)
    missing = [name for name in REQUIRED if name not in defined]
    if missing:
        raise BadReference(
            f"{file} defines no {' and no '.join(missing)}; a reference needs {', '.join(REQUIRED)}"
        )
    for name in overrides:
        if name not in assigned:
            near = nearest(name, assigned, similar=0.6)
            hint = f"; did you mean {near}?" if near else ""
            raise BadReference(f"{file} has no module global {name} to override{hint}")


def assigned_names(source: str) -> set[str]:
    """The module globals that the source assigns, by a statement at its top."""
    return _names(ast.parse(source), _names_assigned)


def own_dtype(source: str, overrides: Mapping[str, Size]) -> str:
    """The floating type of the inputs and weights that the reference makes; where it has several, the widest,
    or the narrowest where it keeps them; float32 where it has none, or cannot be run without numbers."""
    import torch

    found: set[torch.dtype] = set()
    try:
        module = load_module(source, overrides)
        with torch.device("meta"), torch.no_grad():
            model = module.Model(*module.get_init_inputs())
            map_tensors(lambda tensor: found.add(tensor.dtype), list(module.get_inputs()))
            found.update(each.dtype for each in (*model.parameters(), *model.buffers()))
    except Exception as error:  # the reference is the user's code, and may raise anything
        logger.info("the types of a reference cannot be told: %s: %s", type(error).__name__, error)
    names = reversed(DTYPES) if KEEPS_TYPES in assigned_names(source) else DTYPES
    return next((name for name in names if getattr(torch, name) in found), "float32")


def load_module(source: str, overrides: Mapping[str, Size], name: str = "reference") -> types.ModuleType:
    """Runs the source as a module of its own and replaces the overridden globals.

    The sizes are replaced after the very statements that assign them, so that globals computed from them
    follow.
    """
    module = types.ModuleType(name)
    module.__file__ = f"<{name}>"
    sys.modules[name] = module
    tree = ast.parse(source)
    body: list[ast.stmt] = []
    for node in tree.body:
        body.append(node)
        for target in _names_assigned(node):
            if target in overrides:
                body += ast.parse(f"{target} = {_as_size(overrides[target])!r}").body
    tree.body = body
    exec(compile(tree, module.__file__, "exec", dont_inherit=True), module.__dict__)
    return module


def make_model(
    module: types.ModuleType, cls: str, init_inputs: Sequence[Any], *, seed: int, device: str, dtype: str
) -> nn.Module:
    """`cls(*init_inputs)` with weights drawn from `seed`, on the device, at the dtype: the same on every
    side that draws in the same order."""
    import torch

    seed_all(seed)
    model: nn.Module = getattr(module, cls)(*init_inputs)
    return model.to(device=device, dtype=getattr(torch, dtype))


def init_inputs(module: types.ModuleType, seed: int) -> list[Any]:
    """The constructor's arguments, from `seed` should they be random."""
    seed_all(seed)
    return list(module.get_init_inputs())


def make_inputs(
    module: types.ModuleType,
    *,
    seed: int | None,
    device: str,
    dtype: str,
    drawn_on: str = "",
    layout: str = "",
) -> list[Any]:
    """One set of inputs from `seed`, or from the generators as they are, drawn on the device, or on another
    one; floating tensors at the task's dtype unless the reference keeps their own (KEEPS_TYPES), integers
    and plain values as they are. `layout` as of `Problem`."""
    import torch

    if seed is not None:
        seed_all(seed)
    with torch.device(drawn_on or device):
        values = list(module.get_inputs())
    dtype = "" if getattr(module, KEEPS_TYPES, False) else dtype
    values = [as_task(value, device, dtype) for value in values]
    return list(map_tensors(partial(laid_out, layout=layout), values)) if layout else values


def as_task(value: Any, device: str, dtype: str) -> Any:
    """Its tensors on the device, at the dtype if they are floating ("": at their own), in the layout that
    they have and with `requires_grad` as it is; lists, tuples and dicts are gone through, anything else is
    unchanged."""
    import torch

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        wanted = getattr(torch, dtype) if dtype and tensor.is_floating_point() else tensor.dtype
        found = tensor.detach()
        if tensor.device.type != torch.device(device).type or tensor.dtype != wanted:
            found = clone(found, device=device, dtype=wanted)
        return found.requires_grad_(tensor.requires_grad)

    return map_tensors(moved, value)


def seed_all(seed: int) -> None:
    """Seeds every generator that a reference might draw from."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    # `torch.manual_seed` keeps the caller's stack for each kind of device that is not there: 0.2 ms a call
    torch.default_generator.manual_seed(seed)
    if torch.version.cuda:
        torch.cuda.manual_seed_all(seed)


def _as_size(value: Any) -> Any:
    """Lists are tuples that came by way of JSON."""
    return tuple(_as_size(each) for each in value) if isinstance(value, list | tuple) else value


def _names(tree: ast.Module, of: Callable[[ast.stmt], list[str]]) -> set[str]:
    """Of all statements at the top of a module."""
    return {name for node in tree.body for name in of(node)}


def _names_bound(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).split(".")[0] for alias in node.names]
    return _names_assigned(node)


def _names_assigned(node: ast.stmt) -> list[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    stored = (each for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))
    return [name.id for name in stored if isinstance(name.ctx, ast.Store)]
