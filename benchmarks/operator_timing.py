"""Times the kernels for one case of `benchmarks/operators.py` in one process. The kernels are trusted, which
saves most of the evaluator's time.

The processes of many cases prepare their kernels concurrently (imports, builds, compilers, a comparison with
float64). Then the cases are timed one after the other, each alone on the GPU: all kernels and eager PyTorch
in turn, a block of calls each. The GPU is paused while a block's calls are queued, so the host's time does
not count; the calls rotate through enough inputs that none is still in the cache.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Lock
from typing import Any

from benchmarks.operator_cases import case_named
from evaluators.judge.timing.speed_limits import SpeedLimits
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from evaluators.records.timing import timing_of
from evaluators.reference.answer import Draw
from evaluators.reference.containers import tensors_in, tensors_of
from evaluators.reference.cost.machine_peaks import device_name
from evaluators.reference.loading import init_inputs, load_module, make_model
from evaluators.reference.reference_model import ReferenceModel
from evaluators.system.user_cache import cache_folder
from kernel_library.catalogue.best import ROOT, module_of
from kernel_library.catalogue.entry import architecture_of
from kernel_library.catalogue.library import FolderLibrary

SPAWN = multiprocessing.get_context("spawn")
ROUNDS = 11
BLOCK_MS, MOST_CALLS = 5.0, 128
CYCLES_A_MS = 2e6
"""Of a GPU's clock, at least."""
LONGEST_PAUSE_MS = 30.0
MEASURING_S = 60.0
"""Time limit for a case alone on the GPU."""
EAGER = "eager"
Run = Callable[..., Any]
Block = Callable[[int, float], tuple[float, float]]
Found = dict[str, Evaluation]
Prepared = tuple[Problem, Mapping[str, Kernel]]
Prepare = Callable[[str], Prepared]
"""Makes the problem and the kernels for a compute capability ("" for a CPU), where they are timed."""


class KernelProcess:
    """A process for the kernels of one problem, seen from the one that started it."""

    def __init__(self, prepare: Prepare, gpu: str, turn: Lock) -> None:
        """`gpu`: the value of CUDA_VISIBLE_DEVICES, "" for a CPU. `turn`: who has it may fill the device's
        memory."""
        self._connection, theirs = SPAWN.Pipe()
        self._process = SPAWN.Process(target=_serve, args=(prepare, gpu, turn, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def found(self, timeout_s: float) -> Found | None:
        """The next that it tells: None when it is ready to measure, then the evaluations of the kernels.
        Raises EOFError or TimeoutError."""
        if not self._connection.poll(max(0.0, timeout_s)):
            raise TimeoutError(f"no answer in {timeout_s:.0f} s")
        found: Found | None = self._connection.recv()
        return found

    def measure(self) -> Found:
        """What it tells, with the GPU to itself meanwhile. Raises as `found` does."""
        self._connection.send(None)
        found = self.found(MEASURING_S)
        assert found is not None
        return found

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()
        self._connection.close()


def _serve(prepare: Prepare, gpu: str, turn: Lock, connection: Connection) -> None:
    import torch

    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
        torch.set_num_threads(1)
    capability = ".".join(map(str, torch.cuda.get_device_capability())) if gpu else ""
    problem, kernels = prepare(capability)
    with torch.no_grad():
        ready = ReadyKernels(problem, kernels, capability, turn)
        connection.send(None)
        while True:  # until the connection is closed
            connection.recv()
            connection.send(ready.evaluations())


def kernels_of_case(name: str, device: str, peers: Sequence[str], capability: str) -> Prepared:
    """The problem of a case, with the library's kernels and the peers' by name."""
    case = case_named(name, device)
    problem = case.to_problem()
    architecture = architecture_of(device, capability)
    ours = {each.id: each.kernel for each in case.ours(FolderLibrary(ROOT).entries(), architecture)}
    return problem, {**ours, **{name: peer for name in peers if (peer := case.peer(name, problem))}}


class ReadyKernels:
    """Those for a problem that have given the right answer once, and eager PyTorch."""

    def __init__(self, problem: Problem, kernels: Mapping[str, Kernel], capability: str, turn: Lock) -> None:
        import torch

        self._problem, self._on_gpu = problem, problem.device == "cuda"
        self._environment = {"device": device_name(problem.device), "architecture": capability}
        draw = Draw.fresh()
        with turn:  # attention in float64 needs 20 GB for a short time
            self._reference = ReferenceModel(problem)
            self._work = self._reference.count_work()
            answer, inputs = self._reference.answer(draw), self._reference.draw(draw.seed)
            if self._on_gpu:
                torch.cuda.empty_cache()
        self._failed: dict[str, Evaluation] = {}
        self._runs: dict[str, Run] = {EAGER: self._reference.eager}
        for name, kernel in kernels.items():
            try:
                run = self._loaded(kernel)
                wrong = self._reference.judge_draw(tensors_of(run(*inputs)), answer, own=True).problem
            except Exception as error:  # other people's code may raise anything
                self._fail(name, Status.CRASHED, f"{type(error).__name__}: {error}")
                continue
            if wrong:
                self._fail(name, Status.INCORRECT, wrong)
            else:
                self._runs[name] = run

    def evaluations(self) -> dict[str, Evaluation]:
        """Measures each kernel; nothing else may use the device meanwhile."""
        roofline = SpeedLimits(self._problem, self._work, cache_folder()).roofline()
        samples = self._samples(self._inputs())
        eager = samples.pop(EAGER)
        return self._failed | {
            name: Evaluation(
                status=Status.CORRECT,
                timing=timing_of(own, eager),
                environment=self._environment,
                roofline=roofline,
            )
            for name, own in samples.items()
        }

    def _fail(self, name: str, status: Status, log: str) -> None:
        self._failed[name] = Evaluation(status=status, log=log, environment=self._environment)

    def _loaded(self, kernel: Kernel) -> Run:
        """The kernel's module, with the reference's weights."""
        problem, seed = self._problem, self._reference.seed
        values = init_inputs(load_module(problem.source, problem.overrides), seed)
        model: Run = make_model(
            module_of(kernel), "ModelNew", values, seed=seed, device=problem.device, dtype=problem.dtype
        )
        return model

    def _inputs(self) -> list[list[Any]]:
        """Enough sets of inputs that two caches' worth of data lies between two uses of a set."""
        import torch

        sets, least = [self._reference.draw(0)], 2
        if self._on_gpu:
            nbytes = sum(each.nbytes for each in tensors_in(sets[0]))
            least = max(2, math.ceil(2 * torch.cuda.get_device_properties(0).L2_cache_size / nbytes))
        return sets + [self._reference.draw(seed) for seed in range(1, min(least, MOST_CALLS))]

    def _samples(self, inputs: list[list[Any]]) -> dict[str, list[float]]:
        """Milliseconds per call of each kernel in each round: in random order, then in reverse, so that drift
        affects all equally."""
        blocks = {name: partial(self._block_ms, run, inputs) for name, run in self._runs.items()}
        plans = {name: self._plan(block) for name, block in blocks.items()}
        samples: dict[str, list[float]] = {name: [] for name in blocks}
        order = list(blocks)
        for number in range(ROUNDS):
            if number % 2 == 0:
                random.shuffle(order)
            for name in order if number % 2 == 0 else order[::-1]:
                calls, pause_ms = plans[name]
                samples[name].append(blocks[name](calls, pause_ms)[0])
        return samples

    def _plan(self, block: Block) -> tuple[int, float]:
        """How many calls make a block, and how long the host takes to queue them, in ms."""

        def calls(call_ms: float) -> int:
            return min(max(1, round(BLOCK_MS / call_ms)), MOST_CALLS)

        rough = calls(min(block(1, 0.0)[0] for _ in range(3)))
        for _ in range(2):  # the first call warms up
            call_ms, host_ms = block(rough, 0.0)
        return calls(call_ms), min(1.5 * host_ms, LONGEST_PAUSE_MS)

    def _block_ms(
        self, run: Run, inputs: list[list[Any]], calls: int, pause_ms: float
    ) -> tuple[float, float]:
        """The time of a call, and how long the host needed for the block, in ms."""
        import torch

        def queued_ms() -> float:
            start = time.perf_counter()
            for number in range(calls):
                run(*inputs[number % len(inputs)])
            return (time.perf_counter() - start) * 1e3

        if not self._on_gpu:
            host_ms = queued_ms()
            return host_ms / calls, host_ms
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(int(pause_ms * CYCLES_A_MS))
        before.record()
        host_ms = queued_ms()
        after.record()
        after.synchronize()
        return before.elapsed_time(after) / calls, host_ms
