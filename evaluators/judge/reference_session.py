"""What the judge process knows and holds: secret inputs, right answers, the baselines, and the shared
memory."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluators.judge.attribution.vendor_kernels import VendorKernels, installed
from evaluators.judge.canary import Canary
from evaluators.judge.device_memory import DeviceMemory
from evaluators.judge.graphed_draws import quick_draw
from evaluators.judge.runner_client import RunnerClient, ready
from evaluators.judge.session_options import SessionOptions
from evaluators.judge.staging import Batch, Staging
from evaluators.judge.timing.calibration import Calibration
from evaluators.judge.timing.cpu_timing import CpuCalibration, CpuRunnerClient
from evaluators.judge.timing.gpu_timing import GpuCalibration, GpuRunnerClient
from evaluators.judge.timing.speed_limits import SpeedLimits
from evaluators.records.opening import OpeningStep, Steps
from evaluators.records.problem import Problem
from evaluators.records.timing import Block, Plan
from evaluators.reference.answer import Draw, ReferenceAnswer
from evaluators.reference.containers import replaced, tensors_in
from evaluators.reference.inputs import dependent_calls
from evaluators.reference.inputs.strided_layouts import clone
from evaluators.reference.inputs.usable_distributions import open_distributions
from evaluators.reference.reference_model import ReferenceModel
from evaluators.reference.running_reference import UnfitReference
from evaluators.reference.validation import examine
from evaluators.runner.messages import Load
from evaluators.runner.shared_buffers import SharedBuffers
from evaluators.system.channel import Channel

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

LEAST_CALLS = 5
"""Of shared buffers, where they fit: what a call leaves behind is seen by the next, on another
distribution."""
SLOW_MS = 50.0
"""Of a call of the reference: another tells no more of how long it takes."""


class ReferenceSession:
    """One problem, opened: the reference in two precisions, the shared buffers and, where it is timed, its
    baselines."""

    eager: RunnerClient
    calibration: Calibration
    """Of the baseline: there are neither where nothing is timed."""
    isolation = ""
    """Of the baseline's runner, where there is one."""

    def __init__(
        self,
        problem: Problem,
        options: SessionOptions,
        baseline: tuple[Channel, int] | None,
        steps: Steps | None = None,
    ) -> None:
        """`baseline`: the channel and the process id of the eager baseline's runner, None for a problem that
        is not timed. `steps`: the clock of the opening. Raises UnfitReference, MemoryError where others hold
        the device's memory, Refused when the reference does not run there, ChannelClosed when it died."""
        import torch

        self._torch = torch
        self.problem, self._options = problem, options
        self.device = problem.device
        self._cache = Path(options.cache)
        self._steps = steps or Steps()
        self.reference = ReferenceModel(problem, keep_range=options.keep_range, steps=self._steps)
        self.compiled: RunnerClient | None = None
        self.vendor_kernels: VendorKernels | None = None
        """On a GPU: what a candidate's kernels may not be. None where that is not asked, or where
        the device's trace shows not even the reference's."""
        self.memory = DeviceMemory(self.device)
        self._reference_ms = self._examine()
        """About how long a call of the reference takes."""
        with contextlib.ExitStack() as self._owned:
            self._make_buffers()
            if baseline is not None:
                self._start_baseline(*baseline)
            self._owned = self._owned.pop_all()
        self.reference.forget_sample()
        self.memory.trim()

    def _examine(self) -> float:
        """Counts the reference's work and has it examined. Returns about how many ms it takes. Raises
        UnfitReference."""
        step, reference = self._steps.step, self.reference
        with step(OpeningStep.TIMING):
            rough_ms = self._rough_ms()
        with step(OpeningStep.COUNTING):
            work = reference.count_work()
        if self.problem.allow_degenerate:
            open_distributions(reference)
            reference.shifts_on("")  # now: later there is less memory
        else:
            with step(OpeningStep.LAZY_ANSWERS):
                self._require_judge()
        if self.device == "cuda":
            self._torch.cuda.empty_cache()  # candidates need the memory
        with step(OpeningStep.PEAKS):
            self.limits = SpeedLimits(self.problem, work, self._cache)
        return rough_ms

    def _make_buffers(self) -> None:
        """The shared buffers, and what is staged for them. Raises TooLarge and MemoryError."""
        with self._steps.step(OpeningStep.BUFFERS):
            self.capacity = self.memory.calls(self.reference, self._wanted_calls())
            self._staging = Staging(tensors_in(self.reference.sample), self.capacity, self.device)
            for call in range(self.capacity):
                self._staging.place(call, self.reference.sample)
            self.buffers = self._own_buffers()
            self._canary = Canary() if self.device == "cuda" and self.problem.timed else None
            self._draw = quick_draw(self.reference, self._staging)

    def _own_buffers(self) -> SharedBuffers:
        inputs, changed = tensors_in(self.reference.sample), self.reference.changed_inputs
        buffers = SharedBuffers(inputs, self.reference.outputs, self.capacity, self.device, changed)
        self._owned.callback(_free, buffers)
        return buffers

    def _start_baseline(self, channel: Channel, pid: int) -> None:
        """Eager's, what its trace shows where candidates may not use libraries, and what its calls cost."""
        with self._steps.step(OpeningStep.BUFFERS):
            self._baseline_buffers = self._own_buffers()
        others_bytes = self.memory.others_bytes()
        with self._steps.step(OpeningStep.BASELINE):
            self.isolation = ready(channel)
            self.eager = self.baseline(channel, pid)
        with self._steps.step(OpeningStep.WARMING):
            self.eager.block(self.staged(1))
        if self.problem.libraries == "no_library" and isinstance(self.eager, GpuRunnerClient):
            with self._steps.step(OpeningStep.ATTRIBUTION):
                if self.eager.trace(self.staged(1)):
                    self.vendor_kernels = installed(self._cache)
                else:
                    logger.warning("no trace of the device: nobody can tell whose kernels run")
        self._calibrate()
        self.memory.know_baseline(self.memory.others_bytes() - others_bytes, self.capacity)

    def _calibrate(self) -> None:
        plan = self._options.plan
        with self._steps.step(OpeningStep.CALIBRATION):
            if isinstance(self.eager, GpuRunnerClient):
                chains = dependent_calls.can_stir(tensors_in(self.reference.sample))
                self.calibration = GpuCalibration(self.eager, self._staging, plan, chains=chains)
            else:
                self.calibration = CpuCalibration(self.eager, self._staging, plan)

    def close(self) -> None:
        """Gives the memory back; the runners must be gone."""
        if self.problem.timed:
            self.eager.close()
        if self.compiled is not None:
            self.compiled.close()
        self._owned.close()
        if self.device == "cuda":
            self._staging.free()
            del self._draw
            self._torch.cuda.empty_cache()

    def baseline(self, channel: Channel, pid: int) -> RunnerClient:
        """A runner of ours, which is `ready` and loads the reference; they all share one shared buffers."""
        kind = GpuRunnerClient if self.device == "cuda" else CpuRunnerClient
        client = kind(channel, self._baseline_buffers, pid, ours=True)
        self.load(client)
        return client

    @contextlib.contextmanager
    def buffer_sets(self, count: int) -> Iterator[list[SharedBuffers]]:
        """One for each of so many candidates that are there at once: what shares memory could spoil the
        other's outputs. Meanwhile blocks have as many calls as there is room for in all of them. Raises
        MemoryError where there is none."""
        whole = self.capacity
        calls = self.memory.calls_of_each(whole, count)
        inputs, outputs = self._staging.places[0], self.buffers.output_views[0]
        more: list[SharedBuffers] = []
        try:
            for _ in range(count - 1):
                more.append(SharedBuffers(inputs, outputs, calls, self.device))
            self.capacity = calls
            yield [self.buffers, *more]
        finally:
            self.capacity = whole
            for each in more:
                each.free()

    def candidate(self, channel: Channel, pid: int, buffers: SharedBuffers | None = None) -> RunnerClient:
        """The candidate's runner, which is `ready`; nothing of this problem is loaded yet. `buffers`: where
        it is not the session's own."""
        buffers = buffers or self.buffers
        if self.problem.timed:
            return self.calibration.connect(channel, buffers, pid)
        if self.device == "cpu":
            return CpuRunnerClient(channel, buffers, pid)
        client = GpuRunnerClient(channel, buffers, pid)
        client.expected_ms = self._reference_ms
        return client

    def eager_calls(self, plan: Plan) -> int:
        """Calls of the baseline's blocks."""
        return self.calibration.eager_calls(plan, self.capacity)

    def call_ms(self, block: Block) -> float:
        """ms a call in a block; where nothing is timed, with what the block costs besides."""
        return block.call_ms(self.calibration.overhead(block.calls).total_ms if self.problem.timed else 0.0)

    def times_ms(self, blocks: Sequence[Block]) -> list[float]:
        """`call_ms` of each, by what is known by now of what a block costs besides."""
        return [self.call_ms(each) for each in blocks]

    def fair_ms(self, before: Sequence[Block], beside: Sequence[Block]) -> list[float]:
        """The same of the baseline's blocks beside a candidate, as they count by those before it was loaded
        (see `Calibration.credible_ms`)."""
        most_ms = self.calibration.credible_ms(self.times_ms(before), beside[0].calls)
        return [min(each, most_ms) for each in self.times_ms(beside)]

    def baseline_block(self, client: RunnerClient, calls: int) -> Block:
        """A baseline's block on fresh inputs, as a candidate's."""
        return client.block(self.stage_fresh(calls, client))

    def load(self, client: RunnerClient) -> None:
        """Its module. Raises Refused or ChannelClosed."""
        client.load(
            Load(
                problem=self.problem,
                seed=self.reference.seed,
                buffers=client.buffers.description,
                arguments=self.reference.template,
                inputs=client.buffers.inputs,
                outputs=client.buffers.outputs,
                returned=self.reference.returned_inputs,
                lean=self.memory.is_lean,
            )
        )

    def stage_fresh(self, calls: int, client: RunnerClient, *, own: bool = False) -> Batch:
        """Draws inputs for so many calls, which nobody has seen, and poisons the client's outputs. They are
        the problem's `own` (see `ReferenceModel.own_draws`), or near to them (see `near`), each call's
        otherwise."""
        near = self.reference.near
        draws = self.reference.own_draws(calls) if own else [near() for _ in range(calls)]
        return self._stage(draws, client)

    def staged(self, calls: int) -> Batch:
        """The inputs of so many calls that are there already, where it does not matter which."""
        return self._staging.batch(calls)

    def stage_distributions(self, names: list[str], client: RunnerClient) -> Batch:
        """The same with inputs of one distribution a call, whose answers are known."""
        draws = [Draw(seed=self.reference.seed_on(name), distribution=name) for name in names]
        return self._stage(draws, client)

    def _stage(self, draws: list[Draw], client: RunnerClient) -> Batch:
        for call, draw in enumerate(draws):
            self._staging.place(call, self._draw(draw.seed, draw.distribution))
        if self.reference.draws_numbers:
            self._staging.seeds = [self.reference.call_seed(draw.seed) for draw in draws]
        client.buffers.poison()
        self.memory.trim()
        return self._staging.batch(len(draws), draws)

    def answer_after(self, before: list[torch.Tensor], draw: Draw) -> ReferenceAnswer | None:
        """The right outputs of a call of a chain, whose inputs are stirred by the answer before; None where
        eager itself has none for those."""
        try:
            return self.reference.answer(draw, stirred=lambda each: self._stirred(each, before), spot=True)
        except (RuntimeError, ValueError):
            return None

    def spoilt_input(self, client: RunnerClient, batch: Batch, calls: Iterable[int]) -> int | None:
        """The number of an input tensor that is not as it was before these calls of the last block, though
        the reference leaves it alone."""
        for call in calls:
            found = client.buffers.altered(self._staging.memory, call)
            if found is not None and not self.reference.writes_to(found, batch.draws[call]):
                return found
        return None

    def _stirred(self, inputs: list[Any], after: list[torch.Tensor]) -> list[Any]:
        """As the runner had them: laid out as in the shared buffers, one copy an argument."""
        tensors = [clone(each) for each in tensors_in(inputs)]
        dependent_calls.stir(tensors, dependent_calls.shares_of(after))
        return list(replaced(inputs, tensors))

    def too_fast(self, kernel_ms: float, eager_ms: float, calls: int) -> str | None:
        """See `SpeedLimits`, of a kernel in blocks of so many calls."""
        return self.limits.too_fast(kernel_ms, eager_ms, calls * self.buffers.inputs.call_bytes)

    def canary_ms(self) -> float | None:
        """See `Canary`. None where nothing is timed, and on a CPU, where a slow one would tell of the other
        processes."""
        return None if self._canary is None else self._canary.ms()

    def synchronize(self) -> None:
        """Waits for the device."""
        if self.device == "cuda":
            self._torch.cuda.synchronize()

    def _require_judge(self) -> None:
        """Raises UnfitReference."""
        if findings := examine(self.reference):
            raise UnfitReference("; ".join(findings))

    def _rough_ms(self) -> float:
        """About how long the reference takes in ms, which is warm; of a slow one a single call tells."""

        def call_ms(calls: int) -> float:
            self.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                self.reference.run(self.reference.sample)
            self.synchronize()
            return (time.perf_counter() - start) / calls * 1e3

        first_ms = call_ms(1)
        return first_ms if first_ms > SLOW_MS else call_ms(2)

    def _wanted_calls(self) -> int:
        """Calls that shared buffers are to have room for."""
        rough_ms = self._reference_ms
        if not self.problem.timed:
            return LEAST_CALLS
        floor_ms = self.limits.roofline().floor_ms if self.device == "cuda" else rough_ms
        wanted = self._options.plan.capacity(rough_ms, floor_ms, self._options.max_calls)
        return max(wanted, LEAST_CALLS)


def _free(buffers: SharedBuffers) -> None:
    """Where the device is lost, its memory is."""
    with contextlib.suppress(RuntimeError):
        buffers.free()
