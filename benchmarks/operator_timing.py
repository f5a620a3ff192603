"""Times the kernels for one case of `benchmarks/operators.py` in one process. The kernels are trusted, which
saves most of the evaluator's time.

The processes of many cases prepare their kernels concurrently (imports, builds, compilers), and compare them
with float64 one after the other. Then the cases are timed, each alone on the GPU: all kernels and eager
PyTorch in turn, a block of calls each. The calls rotate through enough inputs that none is still in the
cache.

The GPU is paused while a block's calls are queued, so the host's time does not count. This includes backward
passes: autograd queues them from a thread of its own, but on the stream of the forward pass. If a call itself
waits for the GPU, the pause is over before all calls are queued. Then the host's time counts, and the
kernel's log says so.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import multiprocessing
import os
import random
import secrets
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Lock
from typing import Any

from benchmarks.operator_cases import Case
from evaluators.judge.timing.speed_limits import SpeedLimits
from evaluators.records.evaluation import Evaluation, Passes, Status
from evaluators.records.problem import Kernel, Problem
from evaluators.records.timing import timing_of
from evaluators.reference.accuracy.differences import spread_of
from evaluators.reference.answer import Draw, ReferenceAnswer
from evaluators.reference.containers import tensors_in, tensors_of
from evaluators.reference.cost.machine_peaks import device_name
from evaluators.reference.gradients import saved_bytes
from evaluators.reference.loading import init_inputs, load_module, make_inputs, make_model
from evaluators.reference.reference_model import ReferenceModel
from evaluators.system.user_cache import cache_folder
from kernel_library.catalogue.best import ROOT, module_of
from kernel_library.catalogue.entry import architecture_of
from kernel_library.catalogue.library import FolderLibrary

SPAWN = multiprocessing.get_context("spawn")
ROUNDS = 11
BLOCK_MS, MOST_CALLS, MOST_TRAINED = 5.0, 128, 32
"""MOST_TRAINED: the most calls of both passes; a GPU's queue has room for about 1,000 launches."""
CYCLES_A_MS = 2e6
"""Of a GPU's clock, at least."""
LONGEST_PAUSE_MS = 60.0
FORWARD_ROUNDS = 3
WAITS = "a call waits for the GPU, so that its time includes the host's"
IMPORTS = (
    "torch._inductor.compile_fx",
    "triton",
    "liger_kernel.ops",
    "quack.rmsnorm",
    "quack.gemm_interface",
)
"""What the kernels import; it takes longer than anything but compiling them."""
MEASURING_S = 60.0
"""Time limit for a case alone on the GPU."""
EAGER = "eager"
Run = Any
"""A kernel's module, or eager PyTorch's."""
Plan = tuple[int, float]
"""The calls of a block, and how long the GPU waits for them, in ms."""
Block = Callable[[int, float], tuple[float, float, bool]]
Found = dict[str, Evaluation]
Prepared = tuple[Problem, Mapping[str, Kernel]]
Cases = Callable[[str], Sequence[Case]]
"""All cases for a device."""
Prepare = Callable[[str], Prepared]
"""Makes the problem and the kernels for a compute capability ("" for a CPU), where they are timed."""


class KernelProcess:
    """A process for the kernels of one problem, seen from the one that started it. Until `begin` it only
    imports modules."""

    def __init__(self, prepare: Prepare, gpu: str, turn: Lock) -> None:
        """`gpu`: the value of CUDA_VISIBLE_DEVICES, "" for a CPU. `turn`: who has it may fill the device's
        memory."""
        self._connection, theirs = SPAWN.Pipe()
        self._turn = turn  # it must outlive the start of the process
        self._process = SPAWN.Process(target=_serve, args=(prepare, gpu, turn, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self) -> None:
        """Lets it prepare the kernels, for which it uses the device."""
        self._connection.send(None)

    def found(self, timeout_s: float) -> Found | None:
        """The next that it tells: None when it is ready to measure, then the evaluations of the kernels.
        Raises EOFError or TimeoutError."""
        if not self._connection.poll(max(0.0, timeout_s)):
            raise TimeoutError(f"no answer in {timeout_s:.0f} s")
        try:
            found: Found | None = self._connection.recv()
        except ConnectionResetError as error:
            raise EOFError from error
        return found

    def measure(self) -> Found:
        """What it tells, with the GPU to itself meanwhile. Raises as `found` does."""
        self.begin()
        found = self.found(MEASURING_S)
        assert found is not None
        return found

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()
        self._connection.close()


def _serve(prepare: Prepare, gpu: str, turn: Lock, connection: Connection) -> None:
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # the processes are enough
    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    import torch

    if gpu:
        torch.set_num_threads(1)
    for each in IMPORTS:
        with contextlib.suppress(Exception):  # other people's modules may raise anything
            importlib.import_module(each)
    with contextlib.suppress(EOFError), torch.no_grad():  # until the connection is closed
        connection.recv()
        capability = ".".join(map(str, torch.cuda.get_device_capability())) if gpu else ""
        ready = ReadyKernels(*prepare(capability), capability, turn)
        connection.send(None)
        while True:
            connection.recv()
            connection.send(ready.evaluations())


def kernels_of_case(known: Cases, name: str, device: str, peers: Sequence[str], capability: str) -> Prepared:
    """The problem of a case, with the library's kernels and the peers' by name."""
    case = next(each for each in known(device) if each.name == name)
    problem = case.to_problem()
    ours = case.ours(FolderLibrary(ROOT).entries(), architecture_of(device, capability))
    return problem, {**ours, **case.peers(peers, problem)}


class ReadyKernels:
    """Those for a problem that have given the right answer once, and eager PyTorch."""

    def __init__(self, problem: Problem, kernels: Mapping[str, Kernel], capability: str, turn: Lock) -> None:
        import torch

        self._problem, self._on_gpu = problem, problem.device == "cuda"
        self._environment = {"device": device_name(problem.device), "architecture": capability}
        self._failed: dict[str, Evaluation] = {}
        self._remarks: dict[str, str] = {}
        self._late: set[str] = set()
        """Those whose calls wait for the GPU."""
        seed, draw = secrets.randbits(62), Draw.fresh()
        built = self._built(kernels, seed, turn)
        with turn:  # attention in float64 needs 20 GB for a short time
            self._reference = ReferenceModel(problem, seed=seed)
            self._work = self._reference.count_work()
            answer = self._reference.answer(draw)
            right = {name: run for name, run in built.items() if self._is_right(name, run, draw, answer)}
            del answer
            if self._on_gpu:
                torch.cuda.empty_cache()
        self._runs: dict[str, Run] = {EAGER: self._reference.eager, **right}

    def evaluations(self) -> dict[str, Evaluation]:
        """Measures each kernel; nothing else may use the device meanwhile."""
        roofline = SpeedLimits(self._problem, self._work, cache_folder()).roofline()
        inputs = self._inputs()
        plans = {name: self._plan(partial(self._block, run, inputs)) for name, run in self._runs.items()}
        samples = self._samples(self._runs, inputs, plans, ROUNDS)
        passes = self._passes(inputs, plans) if self._problem.backward else {}
        eager = samples.pop(EAGER)
        self._remarks |= dict.fromkeys(self._late, WAITS)
        return self._failed | {
            name: Evaluation(
                status=Status.CORRECT,
                timing=timing_of(own, eager),
                environment=self._environment,
                roofline=roofline,
                passes=passes.get(name),
                log=self._remarks.get(name, ""),
            )
            for name, own in samples.items()
        }

    def _built(self, kernels: Mapping[str, Kernel], seed: int, turn: Lock) -> dict[str, Run]:
        """The kernels' modules, with the weights of this seed, after calls in which everything is built."""
        import torch

        problem, found = self._problem, {}
        module = load_module(problem.source, problem.overrides)
        where: dict[str, Any] = {
            "seed": seed,
            "device": problem.device,
            "dtype": problem.dtype,
            "backward": problem.backward,
        }

        def built(kernel: Kernel) -> Run:
            run: Run = make_model(module_of(kernel), "ModelNew", init_inputs(module, seed), **where)
            for _ in range(2):
                run(*make_inputs(module, layout=problem.layout, **where))
            return run

        for name, kernel in kernels.items():
            try:
                try:
                    found[name] = built(kernel)
                except torch.OutOfMemoryError:  # other processes use the device, too
                    torch.cuda.empty_cache()
                    with turn:
                        found[name] = built(kernel)
            except Exception as error:  # other people's code may raise anything
                self._fail(name, Status.CRASHED, f"{type(error).__name__}: {error}")
        if self._on_gpu:
            torch.cuda.empty_cache()
        return found

    def _is_right(self, name: str, run: Run, draw: Draw, answer: ReferenceAnswer) -> bool:
        """Whether a kernel's outputs are right for a draw; some kernels overwrite its inputs."""
        try:
            one, other = (tensors_of(run(*self._reference.draw(draw.seed))) for _ in range(2))
            wrong = self._reference.judge_draw(one, answer, own=True).problem
            if not wrong and (spread := spread_of(one, other)):
                self._remarks[name] = f"two answers to the same inputs differ by {spread:.2g} (normwise)"
        except Exception as error:  # other people's code may raise anything
            self._fail(name, Status.CRASHED, f"{type(error).__name__}: {error}")
            return False
        if wrong:
            self._fail(name, Status.INCORRECT, wrong)
        return not wrong

    def _fail(self, name: str, status: Status, log: str) -> None:
        self._failed[name] = Evaluation(status=status, log=log, environment=self._environment)

    def _inputs(self) -> list[list[Any]]:
        """Enough sets of inputs that two caches' worth of data lies between two uses of a set. The gradient
        of a single number is 1, as that of a loss."""
        import torch

        def drawn(seed: int) -> list[Any]:
            inputs = self._reference.draw(seed)
            if self._problem.backward:
                inputs[-1] = [each if each.dim() else torch.ones_like(each) for each in inputs[-1]]
            return inputs

        sets, least = [drawn(0)], 2
        if self._on_gpu:
            nbytes = sum(each.nbytes for each in tensors_in(sets[0]))
            least = max(2, math.ceil(2 * torch.cuda.get_device_properties(0).L2_cache_size / nbytes))
        return sets + [drawn(seed) for seed in range(1, min(least, MOST_CALLS))]

    def _samples(
        self, runs: Mapping[str, Run], inputs: list[list[Any]], plans: Mapping[str, Plan], rounds: int
    ) -> dict[str, list[float]]:
        """Milliseconds per call of each kernel in each round: in random order, then in reverse, so that drift
        affects all equally. A block that was not queued in time is repeated once, with a longer pause."""
        samples: dict[str, list[float]] = {name: [] for name in runs}
        order = list(runs)
        for number in range(rounds):
            if number % 2 == 0:
                random.shuffle(order)
            for name in order if number % 2 == 0 else order[::-1]:
                calls, pause_ms = plans[name]
                call_ms, _, in_time = self._block(runs[name], inputs, calls, pause_ms)
                if not in_time and name not in self._late:
                    call_ms, _, in_time = self._block(runs[name], inputs, calls, LONGEST_PAUSE_MS)
                    self._late |= set() if in_time else {name}
                samples[name].append(call_ms)
        return samples

    def _passes(self, inputs: list[list[Any]], plans: Mapping[str, Plan]) -> dict[str, Passes]:
        """The forward pass of each kernel alone, and what it saves."""
        forward = {name: run.forward_pass for name, run in self._runs.items()}
        samples = self._samples(forward, inputs, plans, FORWARD_ROUNDS)
        forward_ms = {name: statistics.median(each) for name, each in samples.items()}
        saved = {name: saved_bytes(run, inputs[0]) for name, run in self._runs.items()}
        return {
            name: Passes(
                forward_ms=forward_ms[name],
                eager_forward_ms=forward_ms[EAGER],
                saved_bytes=saved[name],
                eager_saved_bytes=saved[EAGER],
            )
            for name in self._runs
        }

    def _plan(self, block: Block) -> Plan:
        """Of the blocks of a kernel."""

        most_calls = MOST_TRAINED if self._problem.backward else MOST_CALLS

        def calls(call_ms: float) -> int:
            return min(max(1, round(BLOCK_MS / call_ms)), most_calls)

        rough = calls(min(block(1, 0.0)[0] for _ in range(3)))
        for _ in range(2):  # the first call warms up
            call_ms, host_ms, _ = block(rough, 0.0)
        pause_ms = 1.5 * host_ms / rough
        most = min(calls(call_ms), max(1, int(LONGEST_PAUSE_MS / pause_ms)))
        return most, most * pause_ms

    def _block(
        self, run: Run, inputs: list[list[Any]], calls: int, pause_ms: float
    ) -> tuple[float, float, bool]:
        """The time of a call and how long the host needed for the block, in ms, and whether all was queued
        before the GPU's pause was over."""
        import torch

        def queued_ms() -> float:
            start = time.perf_counter()
            for number in range(calls):
                run(*inputs[number % len(inputs)])
            return (time.perf_counter() - start) * 1e3

        if not self._on_gpu:
            host_ms = queued_ms()
            return host_ms / calls, host_ms, True
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(int(pause_ms * CYCLES_A_MS))
        before.record()
        host_ms = queued_ms()
        in_time = not before.query()
        after.record()
        after.synchronize()
        return before.elapsed_time(after) / calls, host_ms, in_time
