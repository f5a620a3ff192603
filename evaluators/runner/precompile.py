"""Compiles a candidate's kernels without a GPU, during the build, while no device is occupied, if they are in
a language that compiles at the first call: Triton, Gluon, Helion and TileLang.

The module runs once per case, with its backward pass if that is judged, on meta tensors that say they are on
a GPU, with stand-ins that compile and launch nothing. The results are in the languages' caches in the
scratch folder, where the runner finds them. If a module cannot run on meta tensors, its kernels are compiled
at their first call instead. So are those in CuTe DSL and cuTile, unless the module compiles them when it is
imported.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import types
from typing import Any

from evaluators.records.problem import Problem
from evaluators.reference.gradients import with_gradients
from evaluators.reference.loading import init_inputs, load_module, make_inputs, seed_all
from evaluators.runner.as_on_gpu import answer_for_gpu, as_on_gpu
from evaluators.runner.failures import declines

LAUNCHER_ERRORS = (OSError, RuntimeError, AssertionError, ImportError, subprocess.CalledProcessError)
IMPORTED = ("triton", "helion", "tilelang")
"""Parts of a source that may need this."""


def compile_ahead(module: types.ModuleType, problem: Problem, architecture: str) -> None:
    """Compiles the kernels that `module.ModelNew` launches for the problem, or for each of its cases that the
    module supports, on a GPU of this compute capability ("9.0").

    Raises Triton's CompilationError, because it would occur on a GPU too.
    """
    from triton.compiler.errors import CompilationError

    _install_driver(architecture)
    answer_for_gpu(architecture)
    if "tilelang" in sys.modules:
        _launch_nothing()
    for part in [problem.of_case(each) for each in problem.cases] or [problem]:
        try:
            _run_on_meta(module, part)
        except CompilationError:
            raise
        except Exception:
            # Candidate code on tensors that it was not written for: after any failure, it compiles later.
            continue


def _run_on_meta(module: types.ModuleType, problem: Problem) -> None:
    import torch

    reference = load_module(problem.source, problem.overrides)
    inputs = make_inputs(
        reference,
        seed=0,
        device="meta",
        dtype=problem.dtype,
        layout=problem.layout,
        backward=problem.backward,
    )
    values = init_inputs(reference, 0)
    seed_all(0)
    with as_on_gpu(), torch.device("meta"), torch.no_grad():
        if problem.case_of and declines(module, inputs[:-1] if problem.backward else inputs):
            return
        model = values.make(module.ModelNew).to(getattr(torch, problem.dtype))
        (with_gradients(model) if problem.backward else model)(*inputs)


class _Driver:
    """The parts of Triton's CUDA driver that compiling needs."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget
        from triton.backends.nvidia.driver import CudaLauncher

        self._target = GPUTarget("cuda", capability, 32)
        self.launcher_cls = CudaLauncher

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


def _install_driver(architecture: str) -> None:
    from triton.backends.nvidia.driver import CudaUtils
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    major, _, minor = architecture.partition(".")
    stand_in = _Driver(int(major) * 10 + int(minor))
    driver.set_active(stand_in)
    with contextlib.suppress(*LAUNCHER_ERRORS):
        CudaUtils()  # compiles the helper module that every process would compile at its first launch
    compile_only = JITFunction.run

    def run(self: Any, *arguments: Any, grid: Any, warmup: bool = True, **options: Any) -> Any:
        kernel = compile_only(self, *arguments, grid=grid, warmup=True, **options)
        if kernel is not None:
            with contextlib.suppress(*LAUNCHER_ERRORS):
                stand_in.launcher_cls(kernel.src, kernel.metadata)
        return kernel

    def run_all(self: Any, *arguments: Any, **options: Any) -> None:
        for config in self.configs:
            self.fn.run(*arguments, **options, **config.all_kwargs())

    JITFunction.run = run
    Autotuner.run = run_all


def _launch_nothing() -> None:
    """Lets TileLang's kernels launch nothing, and return meta tensors for the outputs that they allocate."""
    import torch
    from tilelang.jit import JITKernel

    def call(self: Any, *arguments: Any, **_: Any) -> Any:
        chosen = self.out_idx if isinstance(self.out_idx, list) else [self.out_idx]
        forms = [self.params[each] for each in chosen if each is not None]
        made = [torch.empty(list(map(int, form.shape)), dtype=form.torch_dtype()) for form in forms]
        return made[0] if len(made) == 1 else made or None

    JITKernel.__call__ = call
