"""A kernel for an operator, from a function, a file or a folder of files.

A file defines a function that takes the operator's arguments and returns its results. Its name is
`<op>__<overload>_kernel_impl` (BackendBench's), `<op>` or `kernel`; or the file has a module class `ModelNew`
without constructor arguments. Optionally the file also defines

    supports(*args, **kwargs) -> bool     whether the kernel supports a call with such shapes, types and
                                          layouts; called once for calls that agree in these
    backward(gradients, results, *args, **kwargs) -> gradients
                                          replaces the original's backward; takes tuples of the results'
                                          gradients and of the results, and the kernel's arguments; returns
                                          a gradient or None for each positional argument

A folder has BackendBench's layout, `<op>__<overload>/<op>__<overload>_implementation*.py`; the last version
in numeric order is used.
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
"""Distinguishes functions, whose sources may be equal."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OperatorKernel:
    """A kernel that takes the arguments of an operator's functional form and returns its results. `id` is the
    same in every process. `backward` is described at the top of the file."""

    name: str
    id: str
    run: Callable[..., Any]
    backward: Callable[..., Any] | None = None


class KernelSource(Protocol):
    """An override's kernels for an operator: one, or several to choose from."""

    @property
    def devices(self) -> tuple[str, ...]:
        """`cpu`, `cuda` or both."""

    @property
    def trained(self) -> KernelSource | None:
        """Kernels for calls that need a gradient, whose results autograd can go back from by itself."""

    def kernels(self) -> tuple[OperatorKernel, ...]:
        """All kernels that `pick` may return."""

    def pick(self, *args: Any, **kwargs: Any) -> OperatorKernel | str:
        """The kernel for such a call, or the reason why there is none. May depend only on shapes, types,
        layouts, devices and non-tensor arguments: it is called once for calls that agree in these, and with
        fake tensors under `torch.compile`."""


@dataclass(frozen=True, kw_only=True)
class OneKernel:
    """A single kernel; `supports` decides for which calls it is used."""

    kernel: OperatorKernel
    supports: Callable[..., Any] | None = None
    devices: tuple[str, ...] = DEVICES
    trained: KernelSource | None = None

    def kernels(self) -> tuple[OperatorKernel, ...]:
        """The kernel."""
        return (self.kernel,)

    def pick(self, *args: Any, **kwargs: Any) -> OperatorKernel | str:
        """The kernel, unless its `supports` returns False or fails."""
        if self.supports is None:
            return self.kernel
        try:
            return self.kernel if self.supports(*args, **kwargs) else "its supports(...) returned False"
        except Exception as error:  # the kernel's code, which may raise anything
            return f"its supports(...) raised {type(error).__name__}: {error}"


def given(name: str, what: Callable[..., Any] | str | Path, devices: tuple[str, ...]) -> OneKernel:
    """The kernel for the operator with this name, from a function or a file, which is loaded here.

    Raises ValueError for an unknown operator, for an `out=` form, and for a file without such a function;
    OSError for an unreadable file; and what the file raises.
    """
    named = overload(name)
    _refuse_out_form(named)
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
    """A file's module, with a unique name. Raises OSError, and what the file raises."""
    name = f"kernel_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def folder_name(form: torch._ops.OpOverload) -> str:
    """BackendBench's name of an operator's folder: `add___Tensor` for `aten.add_.Tensor`."""
    return f"{form.overloadpacket.__name__}__{form._overloadname}"


def files_of(folder: Path) -> Iterator[tuple[str, Path]]:
    """The last version for each operator in the folder, with the operator's name. Folders that name no
    operator, or a form whose functional form is also there, are left out. Raises OSError."""
    found: dict[str, tuple[bool, str, Path]] = {}
    for each in sorted(path for path in folder.iterdir() if path.is_dir()):
        versions = sorted(each.glob(f"{each.name}_implementation*.py"), key=_natural)
        if not versions:
            continue
        packet, _, which = each.name.rpartition("__")
        try:
            named = overload(f"{packet}.{which}")
            whole: Operator = operator(str(named))
            _refuse_out_form(named)
        except ValueError as error:
            logger.warning("%s is left out: %s", each, error)
            continue
        here = (is_in_place(named), str(named), versions[-1])
        found[whole.name] = min(found.get(whole.name, here), here)
    for _, name, path in found.values():
        yield name, path


def _refuse_out_form(form: torch._ops.OpOverload) -> None:
    if out_names(form):
        whole = operator(str(form)).name
        raise ValueError(f"{form} is a form of {whole}; use that name, which covers all forms")


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    """A sort key that compares numbers in a name as numbers: v2 before v10."""
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
    """Makes a kernel that writes into its first argument functional."""

    @functools.wraps(run)
    def functional(first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return run(first.clone(), *args, **kwargs)

    return functional
