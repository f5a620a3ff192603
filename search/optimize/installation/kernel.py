"""A kernel of the folder `optimized/`, and the operators that it stands for.

This file is copied there as it is; it needs torch alone.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree


@dataclass(eq=False)
class InstalledKernel:
    """A kernel and the operators that it stands for; `on` says which of them runs, `in_compiled` which in
    compiled code, and `supports`, where the kernel has that, for which tensors it is. `calls`: how often the
    kernel did, outside of compiled code."""

    name: str
    run: Callable[..., Any]
    reference: Callable[..., Any]
    operator: Callable[..., Any]
    supports: Callable[..., Any] | None = None
    on: bool = True
    in_compiled: bool = True
    calls: int = 0

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """The kernel, in compiled code as an operator; what it stands for where it is off or declines."""
        if not self.on or (self.supports is not None and not self.supports(*inputs)):
            return self.reference(*inputs)
        if torch.compiler.is_compiling():
            return self.operator(*inputs) if self.in_compiled else self.reference(*inputs)
        self.calls += 1
        return self.run(*inputs)


_KERNELS: dict[tuple[str, str], InstalledKernel] = {}


def load_kernel(folder: Path, name: str, results: int, device: torch.device) -> InstalledKernel:
    """A kernel of the folder, loaded once in a process."""
    key = str(folder.resolve()), name
    if key not in _KERNELS:
        reference = load_module(folder / "references" / f"{name}.py").Model()
        source = load_module(folder / "kernels" / f"{name}.py")
        module = source.ModelNew().to(device).eval()
        _KERNELS[key] = InstalledKernel(
            name=name,
            run=module,
            reference=reference,
            operator=_operator(key, module, reference, results),
            supports=getattr(source, "supports", None),
        )
    return replace(_KERNELS[key])


def _operator(
    key: tuple[str, str], run: Callable[..., Any], reference: nn.Module, results: int
) -> Callable[..., Any]:
    """The kernel as an operator that `torch.compile` calls as a whole. Compiled code relies on the strides of
    what it gives: whatever a kernel leaves is contiguous there."""
    inputs = reference.forward.__code__.co_varnames[1 : reference.forward.__code__.co_argcount]
    returned = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
    schema = f"({', '.join(f'Tensor {name}' for name in inputs)}) -> {returned}"
    space = f"optimized_{_short(key[0])}"

    def called(*tensors: torch.Tensor) -> Any:
        return pytree.tree_map(torch.Tensor.contiguous, run(*tensors))

    def fake(*tensors: torch.Tensor) -> Any:
        return pytree.tree_map(torch.Tensor.contiguous, reference(*tensors))

    made = torch.library.custom_op(f"{space}::kernel_{key[1]}", called, mutates_args=(), schema=schema)
    made.register_fake(fake)
    return made


def _short(text: str) -> str:
    """The same for the same text, in every process: caches go by it."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def load_module(file: Path) -> Any:
    """A file's module; what torch builds for it is kept in a folder of its own."""
    name = f"optimized_{_short(str(file.resolve()))}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    built = os.environ.get("TORCH_EXTENSIONS_DIR")
    os.environ["TORCH_EXTENSIONS_DIR"] = str(Path(file).parent / "build" / file.stem)
    Path(os.environ["TORCH_EXTENSIONS_DIR"]).mkdir(parents=True, exist_ok=True)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        if built is None:
            del os.environ["TORCH_EXTENSIONS_DIR"]
        else:
            os.environ["TORCH_EXTENSIONS_DIR"] = built
    return module
