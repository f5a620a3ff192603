"""A kernel of the folder `optimized/`, and the operators that it replaces.

This file is copied unchanged into `optimized/`; it needs only torch.
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
    """A kernel (`run`) and the operators that it replaces (`reference`). In compiled code the kernel is the
    custom `operator`; None for a kernel for training, whose code the compiler follows. `supports`: whether
    the kernel accepts some inputs; None: all. `on` and `in_compiled` switch it off everywhere or in compiled
    code. `calls`: how often it ran outside compiled code."""

    name: str
    run: Callable[..., Any]
    reference: Callable[..., Any]
    operator: Callable[..., Any] | None
    supports: Callable[..., Any] | None = None
    on: bool = True
    in_compiled: bool = True
    calls: int = 0

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """Runs the kernel (its custom operator in compiled code), or the operators where it is off or does
        not support the inputs."""
        if not self.on or (self.supports is not None and not self.supports(*inputs)):
            return self.reference(*inputs)
        if torch.compiler.is_compiling():
            return (self.operator or self.run)(*inputs) if self.in_compiled else self.reference(*inputs)
        self.calls += 1
        return self.run(*inputs)


_KERNELS: dict[tuple[str, str], InstalledKernel] = {}


def load_kernel(
    folder: Path, name: str, results: int, device: torch.device, *, trains: bool = False
) -> InstalledKernel:
    """Loads a kernel of the folder, once per process. `trains`: it is differentiable."""
    key = str(folder.resolve()), name
    if key not in _KERNELS:
        reference = load_module(folder / "references" / f"{name}.py").Model()
        source = load_module(folder / "kernels" / f"{name}.py")
        module = source.ModelNew().to(device).train(trains)
        _KERNELS[key] = InstalledKernel(
            name=name,
            run=module,
            reference=reference,
            operator=None if trains else _operator(key, module, reference, results),
            supports=getattr(source, "supports", None),
        )
    return replace(_KERNELS[key])


def _operator(
    key: tuple[str, str], run: Callable[..., Any], reference: nn.Module, results: int
) -> Callable[..., Any]:
    """The kernel as a custom operator, which `torch.compile` does not look into. Its results are made
    contiguous, because compiled code relies on their strides."""
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
    """A short hash, the same in every process, because caches use it as a key."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def load_module(file: Path) -> Any:
    """Imports a file; torch extensions that it builds go to a separate folder."""
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
