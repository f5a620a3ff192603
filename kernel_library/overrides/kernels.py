"""A kernel for an operator, from a function, a file or a folder of files.

A file has a function that takes the operator's arguments and returns its results. It is looked for
under the names `<op>__<overload>_kernel_impl` (BackendBench's), `<op>` and `kernel`, then as a module
class `ModelNew` that is made without arguments. Beside it there may be

    supports(*args, **kwargs) -> bool     whether the kernel is for such a call: of its shapes, types and
                                          layouts; asked once for calls that are alike in these
    backward(gradients, results, *args, **kwargs) -> gradients
                                          in place of the original's: tuples of the results and of their
                                          gradients, and what the kernel was called with; it returns a
                                          gradient or None for each positional argument

A folder is laid out as BackendBench's: `<op>__<overload>/<op>__<overload>_implementation*.py`, of which
the last version is taken, in the natural order of numbers.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import itertools
import logging
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch

from kernel_library.overrides.operators import Operator, is_in_place, operator, out_names, overload

logger = logging.getLogger(__name__)

DEVICES = ("cpu", "cuda")
_NUMBERS = itertools.count()
"""Of the functions that were given: their sources need not tell them apart."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OperatorKernel:
    """A kernel that takes the arguments of an operator's functional form and returns its results. `id` is
    the same in every process. `backward`: see the top of the file."""

    name: str
    id: str
    run: Callable[..., Any]
    backward: Callable[..., Any] | None = None


class KernelSource(Protocol):
    """What an override has for an operator on some devices: one kernel, or several to choose from."""

    @property
    def devices(self) -> tuple[str, ...]:
        """`cpu`, `cuda` or both."""

    def kernels(self) -> tuple[OperatorKernel, ...]:
        """All that may be picked."""

    def pick(self, *args: Any, **kwargs: Any) -> OperatorKernel | str:
        """The kernel for such a call, or why there is none. It may look at shapes, types, layouts and
        devices alone: it is asked once for calls that are alike in these, and with fakes under
        `torch.compile`."""


@dataclass(frozen=True, kw_only=True)
class OneKernel:
    """A kernel that somebody gave, with the function `supports` that says which calls it is for."""

    kernel: OperatorKernel
    supports: Callable[..., Any] | None = None
    devices: tuple[str, ...] = DEVICES

    def kernels(self) -> tuple[OperatorKernel, ...]:
        """The one."""
        return (self.kernel,)

    def pick(self, *args: Any, **kwargs: Any) -> OperatorKernel | str:
        """The kernel, unless it declines or cannot say."""
        if self.supports is None:
            return self.kernel
        try:
            return self.kernel if self.supports(*args, **kwargs) else "its supports(...) says no"
        except Exception as error:  # the kernel's code, which may raise anything
            return f"its supports(...) raised {type(error).__name__}: {error}"


def given(name: str, what: Callable[..., Any] | str | Path, devices: tuple[str, ...]) -> OneKernel:
    """The kernel for the operator of this name that a function or a file is. A file is loaded here.

    Raises ValueError for a name that is no operator's or is that of an `out=` form, and for a file that has
    no such function; OSError for one that cannot be read; whatever the file raises.
    """
    named = overload(name)
    if out_names(named):
        raise ValueError(f"{named} is a form of {operator(name).name}: name that, all forms come with it")
    if callable(what):
        run, module, source = what, None, f"function {next(_NUMBERS)}"
    else:
        path = Path(what)
        module = load_module(path)
        run, source = _function(module, named, path), path.read_text(encoding="utf-8")
    if is_in_place(named):
        run = _on_a_copy(run)
    label = Path(what).stem if isinstance(what, str | Path) else getattr(what, "__name__", "kernel")
    return OneKernel(
        kernel=OperatorKernel(
            name=label,
            id=hashlib.sha256(f"{named}\n{source}".encode()).hexdigest()[:12],
            run=run,
            backward=getattr(module, "backward", None),
        ),
        supports=getattr(module, "supports", None),
        devices=devices,
    )


def load_module(path: Path) -> ModuleType:
    """A file's module, under a name that no other file's has. Raises OSError, and whatever the file does."""
    name = f"kernel_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a file of Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def folder_name(form: torch._ops.OpOverload) -> str:
    """`add___Tensor` for `aten.add_.Tensor`, as BackendBench names folders."""
    return f"{form.overloadpacket.__name__}__{form._overloadname}"


def files_of(folder: Path) -> Iterator[tuple[str, Path]]:
    """The last version for each operator that the folder has, by the operator's name. What is no operator's,
    or that of a form whose functional form is there, too, is logged and left out. Raises OSError."""
    found: dict[str, tuple[bool, str, Path]] = {}
    for each in sorted(path for path in folder.iterdir() if path.is_dir()):
        versions = sorted(each.glob(f"{each.name}_implementation*.py"), key=_natural)
        if not versions:
            continue
        packet, _, which = each.name.rpartition("__")
        try:
            named = overload(f"{packet}.{which}")
            whole: Operator = operator(str(named))
            if out_names(named):
                raise ValueError(f"{named} is a form of {whole.name}: name that, all forms come with it")
        except ValueError as error:
            logger.warning("%s is left out: %s", each, error)
            continue
        here = (is_in_place(named), str(named), versions[-1])
        found[whole.name] = min(found.get(whole.name, here), here)
    for _, name, path in found.values():
        yield name, path


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    """Numbers in a name count as numbers: v2 comes before v10."""
    return [
        (part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", path.stem)
    ]


def _function(module: ModuleType, named: torch._ops.OpOverload, path: Path) -> Callable[..., Any]:
    packet = named.overloadpacket.__name__
    names = (f"{folder_name(named)}_kernel_impl", packet, "kernel")
    for name in names:
        found = getattr(module, name, None)
        if callable(found):
            function: Callable[..., Any] = found
            return function
    if (model := getattr(module, "ModelNew", None)) is not None:
        made: Callable[..., Any] = model()
        return made
    raise ValueError(f"{path} has no function {', '.join(names)} and no class ModelNew")


def _on_a_copy(run: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that writes into its first argument as one that does not."""

    @functools.wraps(run)
    def functional(first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return run(first.clone(), *args, **kwargs)

    return functional
