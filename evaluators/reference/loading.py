"""Loads references: reads the source, checks its format, runs it as a module.

The format is KernelBench's: `Model`, `get_inputs()`, `get_init_inputs()`, sizes as module globals.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import linecache
import logging
import random
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluators import PACKAGE
from evaluators.base.nearest import nearest
from evaluators.base.source_file import as_utf8, read_source
from evaluators.records.problem import DTYPES, Case, Problem, Size, content_id
from evaluators.reference.containers import map_tensors
from evaluators.reference.gradients import FORMS, upstream_gradients, with_gradients
from evaluators.reference.inputs.strided_layouts import clone, laid_out
from evaluators.reference.neighbours import with_neighbours

if TYPE_CHECKING:
    import torch
    from torch import nn

logger = logging.getLogger(__name__)

PROBLEMS = PACKAGE / "problems"
REQUIRED = ("Model", "get_inputs", "get_init_inputs")
KEEPS_TYPES = "KEEPS_TYPES"
"""Module global of a mixed-precision reference: its floating-point inputs keep the dtypes it makes them
in."""
LEAVES_UNREAD = "LEAVES_UNREAD"
"""Module global of a reference that may leave inputs unread, as an operator does in one of its modes."""
KEEPS_INTEGERS = "KEEPS_INTEGERS"
"""Module global of a reference whose integer inputs must not be changed: unique indices to write to, for
example, or the ascending offsets of bags."""


USERS_ERRORS = (Exception, SystemExit)
"""What the user's code may raise: anything. A script's `sys.exit()` must not end the command."""


class BadReference(ValueError):
    """A file is not a valid reference; the message says why in one line."""


def load_problem(name: str, *, path: str | None = None, **rules: Any) -> Problem:
    """The problem `name`: a shipped reference (`level1/conv2d`), or the user's own file at `path`.

    `rules` are arguments of `make_problem`. Raises BadReference if the file cannot be read or is not valid.
    """
    file = Path(path).expanduser() if path else PROBLEMS / f"{name}.py"
    source = read_reference(file)
    if path:
        try:
            source = with_neighbours(source, file.parent)
        except (OSError, ValueError) as error:
            raise BadReference(f"a module that {file} imports cannot be read: {error}") from error
    return make_problem(source, where=str(file), name=f"file/{file.stem}" if path else name, **rules)


def read_reference(file: Path) -> str:
    """The source of the reference in a file. Raises BadReference."""
    try:
        return read_source(file)
    except OSError as error:
        raise BadReference(f"the reference {file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadReference(f"the reference {file} cannot be read: {error}") from error


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
    """The problem whose reference has this source; `where` names its origin in messages.

    `dtype` is that of floating-point inputs and weights; None takes the reference's (see `own_dtype`).
    `sizes` replaces module globals of the reference. On a CPU `cpu_sizes` is applied before it, and
    `cpu_precision` replaces `precision`. Half-precision problems ignore both precisions. Each of `cases` has
    the fields of a `Case`; None takes the reference's own (see `own_cases`). `fields` are other fields of
    `Problem`. Raises BadReference for a source that is not a valid reference, and ValueError for an invalid
    field.
    """
    source = as_utf8(source)
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
    """The cases of the reference's `get_cases()`, if it has one. Raises BadReference if that fails."""
    if "get_cases" not in _names(ast.parse(source), _names_bound):
        return ()
    try:
        return list(load_module(source, overrides).get_cases())
    except USERS_ERRORS as error:
        raise BadReference(f"the reference's get_cases() fails: {type(error).__name__}: {error}") from error


def own_held_out(problem: Problem, generator: random.Random) -> Callable[[Case], Mapping[str, Size]] | None:
    """A function that draws sizes for a case similar to a given one, using the reference's
    `get_held_out(generator)`; None if it has none."""
    if "get_held_out" not in _names(ast.parse(problem.source), _names_bound):
        return None

    def drawn(like: Case) -> Mapping[str, Size]:
        module = load_module(problem.source, {**problem.overrides, **like.sizes})
        sizes: Mapping[str, Size] = module.get_held_out(generator)
        return sizes

    return drawn


def read_cases(cases: Sequence[Mapping[str, Any]], source: str, where: str) -> tuple[Case, ...]:
    """The cases with these fields. Raises BadReference for an invalid or repeated case."""
    found: dict[str, Case] = {}
    known = [each.name for each in dataclasses.fields(Case)]
    for number, fields in enumerate(cases):
        try:
            if unknown := next((name for name in fields if name not in known), None):
                near = nearest(unknown, known, similar=0.6)
                raise ValueError(f"unknown field {unknown}" + (f"; did you mean {near}?" if near else ""))
            case = Case.from_json(dict(fields))
        except (TypeError, ValueError) as error:
            raise BadReference(f"case {number} of {where} is not valid: {error}") from error
        if case.name in found:
            raise BadReference(f"{where} has the case {case.name} twice")
        found[case.name] = case
    check_source(
        source, where, {name: value for case in found.values() for name, value in case.sizes.items()}
    )
    return tuple(found.values())


def check_source(source: str, file: str, overrides: Mapping[str, Size]) -> None:
    """Checks the source without running it. Raises BadReference."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise BadReference(f"{file} is not Python: line {error.lineno}: {error.msg}") from error
    except (RecursionError, ValueError) as error:  # deeply nested, or with a null byte
        raise BadReference(f"{file} is not Python: {error}") from error
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
    """The module globals that the source assigns at its top level."""
    return _names(ast.parse(source), _names_assigned)


def own_dtype(source: str, overrides: Mapping[str, Size]) -> str:
    """The floating-point type of the inputs and weights that the reference makes. Of several types it is the
    widest, or with KEEPS_TYPES the narrowest. It is float32 if there is none, or if the reference cannot run
    on the meta device."""
    import torch

    found: set[torch.dtype] = set()
    try:
        module = load_module(source, overrides)
        with torch.device("meta"), torch.no_grad():
            model = constructor_arguments(module).make(module.Model)
            map_tensors(lambda tensor: found.add(tensor.dtype), inputs_of(module))
            found.update(each.dtype for each in (*model.parameters(), *model.buffers()))
    except USERS_ERRORS as error:
        logger.info("the dtypes of a reference are unknown: %s: %s", type(error).__name__, error)
    names = reversed(DTYPES) if KEEPS_TYPES in assigned_names(source) else DTYPES
    return next((name for name in names if getattr(torch, name) in found), "float32")


def load_module(source: str, overrides: Mapping[str, Size], name: str = "reference") -> types.ModuleType:
    """Runs the source as a new module and replaces the overridden globals.

    Each size is replaced right after the statement that assigns it, so that globals computed from it follow.
    """
    module = types.ModuleType(name)
    module.__file__ = f"<{name} {content_id(source)}>"
    sys.modules[name] = module
    # Here `inspect.getsource` finds the source, and with it TorchScript.
    lines = source.splitlines(keepends=True)
    linecache.cache[module.__file__] = len(source), None, lines, module.__file__
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


class ConstructorArguments(list[Any]):
    """The arguments of a constructor: a list of the positional ones, and those that are given by name."""

    def __init__(self, positional: Iterable[Any] = (), named: Mapping[str, Any] | None = None) -> None:
        super().__init__(positional)
        self.named = dict(named or {})

    def make(self, cls: Callable[..., Any]) -> Any:
        """An instance of the class."""
        return cls(*self, **self.named)

    def fit(self, cls: Callable[..., Any]) -> bool:
        """Whether the class takes them."""
        try:
            inspect.signature(cls).bind(*self, **self.named)
        except TypeError:
            return False
        return True


def constructor_arguments(module: types.ModuleType) -> ConstructorArguments:
    """What `get_init_inputs()` returns: a sequence of arguments (KernelBench), a sequence and a mapping in a
    list (KernelBook), a mapping, or a single value. `[[4, 8], {}]` is KernelBook's form unless `Model` takes
    these two."""
    given = module.get_init_inputs()
    if given is None:
        return ConstructorArguments()
    if isinstance(given, Mapping):
        return ConstructorArguments(named=given)
    plain = ConstructorArguments(given if _is_sequence(given) else (given,))
    match plain:
        case [list() | tuple() as positional, Mapping() as named] if all(isinstance(k, str) for k in named):
            both = ConstructorArguments(positional, named)
            if both.fit(module.Model) and (named or not positional or not plain.fit(module.Model)):
                return both
    return plain


def inputs_of(module: types.ModuleType) -> list[Any]:
    """What `get_inputs()` returns, as positional arguments of `forward`: a sequence, a mapping by names, or a
    single tensor. Raises BadReference."""
    given = module.get_inputs()
    if isinstance(given, Mapping):
        try:
            bound = inspect.signature(module.Model.forward).bind(None, **given)
        except TypeError as error:
            raise BadReference(f"get_inputs() does not suit Model.forward: {error}") from error
        if bound.kwargs:
            raise BadReference(
                f"get_inputs() names {next(iter(bound.kwargs))}, which Model.forward takes by name only; "
                "return a list of positional arguments"
            )
        return list(bound.args[1:])
    if given is None or isinstance(given, str | bytes):
        raise BadReference(f"get_inputs() returns {given!r}; it must return a list of inputs")
    return list(given) if _is_sequence(given) else [given]


def _is_sequence(value: Any) -> bool:
    """Whether a value consists of arguments. A tensor, a text or a module is one argument."""
    alone = isinstance(value, str | bytes) or hasattr(value, "shape") or callable(value)
    return isinstance(value, Iterable) and not alone


def make_model(
    module: types.ModuleType,
    cls: str,
    arguments: Sequence[Any],
    *,
    seed: int,
    device: str,
    dtype: str,
    backward: bool = False,
) -> nn.Module:
    """An instance of `cls` with these arguments (see `init_inputs`) on the device, at the dtype, with weights
    drawn from `seed`. Modules that draw in the same order get the same weights. `backward`: with its
    gradients (see `with_gradients`)."""
    import torch

    seed_all(seed)
    named = arguments.named if isinstance(arguments, ConstructorArguments) else {}
    model: nn.Module = getattr(module, cls)(*arguments, **named)
    model = model.to(device=device, dtype=getattr(torch, dtype))
    return with_gradients(model) if backward else model


def init_inputs(module: types.ModuleType, seed: int) -> ConstructorArguments:
    """The constructor's arguments, drawn from `seed` if they are random."""
    seed_all(seed)
    return constructor_arguments(module)


def make_inputs(
    module: types.ModuleType,
    *,
    seed: int | None,
    device: str,
    dtype: str,
    drawn_on: str = "",
    layout: str = "",
    backward: bool = False,
) -> list[Any]:
    """One set of inputs, drawn from `seed` (None: from the generators in their current state) on `drawn_on`
    (default: `device`). Floating-point tensors get the dtype, unless the reference has KEEPS_TYPES; integers
    and plain values stay as they are. `layout` is that of `Problem`. With `backward`, the last is a list of
    gradients of the outputs."""
    import torch

    kept = "" if getattr(module, KEEPS_TYPES, False) else dtype

    def drawn() -> list[Any]:
        with torch.device(drawn_on or device):
            return [as_task(value, device, kept) for value in inputs_of(module)]

    def model() -> nn.Module:
        return make_model(module, "Model", init_inputs(module, 0), seed=0, device=device, dtype=dtype)

    if backward and not hasattr(module, FORMS):
        upstream_gradients(module, model, drawn)  # learns their forms, before the seed counts
    if seed is not None:
        seed_all(seed)
    values = drawn()
    if backward:
        with torch.device(drawn_on or device):
            values.append(as_task(upstream_gradients(module, model, drawn), device, ""))
    return list(map_tensors(partial(laid_out, layout=layout), values)) if layout else values


def as_task(value: Any, device: str, dtype: str) -> Any:
    """The value with its tensors moved to the device; floating-point ones get the dtype ("": keep theirs).
    Layouts, `requires_grad` and other values are unchanged."""
    import torch

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        wanted = getattr(torch, dtype) if dtype and tensor.is_floating_point() else tensor.dtype
        found = tensor.detach()
        if tensor.device.type != torch.device(device).type or tensor.dtype != wanted:
            found = clone(found, device=device, dtype=wanted)
        return found.requires_grad_(tensor.requires_grad)

    return map_tensors(moved, value)


def seed_all(seed: int) -> None:
    """Seeds every random generator that a reference might use."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    # `torch.manual_seed` records the caller's stack for each kind of device that is missing: 0.2 ms a call
    torch.default_generator.manual_seed(seed)
    if torch.version.cuda:
        torch.cuda.manual_seed_all(seed)


def _as_size(value: Any) -> Any:
    """JSON turns tuples into lists; this turns them back."""
    return tuple(_as_size(each) for each in value) if isinstance(value, list | tuple) else value


def _names(tree: ast.Module, of: Callable[[ast.stmt], list[str]]) -> set[str]:
    """The names that `of` finds in a module's top-level statements."""
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
