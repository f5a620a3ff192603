"""What the judge process owns: secret inputs, right answers, the baselines, and the shared memory."""

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
from evaluators.records.evaluation import Stage
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
"""Calls of shared buffers if they fit, so that leftovers of a call are exposed by the next one, on another
distribution."""
SLOW_MS = 50.0
"""A reference call that takes longer than this is timed only once."""
RECENT_S = 10.0
"""How old the baseline's time may be that a quick measurement relies on, in s."""
HINT = "(problem.allow_degenerate=true accepts it all the same)"
"""Ends the message about a reference that accepts lazy answers. Other references cannot be accepted."""


class ReferenceSession:
    """One open problem: the reference in two precisions, the shared buffers and, if it is timed, its
    baselines."""

    eager: RunnerClient
    calibration: Calibration
    """Calibration of the baseline; like the baseline, missing if the problem is not timed."""
    clock: Steps
    """Times the stages of the present evaluation."""
    isolation = ""
    """Isolation level of the baseline's runner, if there is one."""

    def __init__(
        self,
        problem: Problem,
        options: SessionOptions,
        baseline: tuple[Channel, int] | None,
        steps: Steps | None = None,
    ) -> None:
        """`baseline` is channel and process id of the eager baseline's runner, None if the problem is not
        timed. `steps` is the clock of the opening. Raises UnfitReference, MemoryError if others use the
        device's memory, CandidateRefused if the reference does not run there, ChannelClosed if it died."""
        import torch

        self._torch = torch
        self.problem, self._options = problem, options
        self.device = problem.device
        self._cache = Path(options.cache)
        self._steps = steps or Steps()
        self.start_clock()
        self.reference = ReferenceModel(problem, keep_range=options.keep_range, steps=self._steps)
        self.compiled: RunnerClient | None = None
        self._alone: tuple[float, list[Block]] | None = None
        """When `eager_alone` was last measured, and what."""
        self.vendor_kernels: VendorKernels | None = None
        """On a GPU, the kernels that a candidate may not use. None if it may use any, or if the device's
        trace does not even show the reference's."""
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
        """Counts the reference's work and examines whether it can judge. Returns about how many ms it takes.
        Raises UnfitReference."""
        step, reference = self._steps.step, self.reference
        with step(OpeningStep.TIMING):
            rough_ms = self._rough_ms()
        with step(OpeningStep.COUNTING):
            work = reference.count_work()
        if self.problem.allow_degenerate:
            open_distributions(reference)
            reference.shifts_on("")  # now, because later there is less memory
        else:
            with step(OpeningStep.LAZY_ANSWERS):
                if findings := examine(reference):
                    raise UnfitReference(f"{'; '.join(findings)} {HINT}")
        if self.device == "cuda":
            self._torch.cuda.empty_cache()  # candidates need the memory
        with step(OpeningStep.PEAKS):
            self.limits = SpeedLimits(self.problem, work, self._cache)
        return rough_ms

    def _make_buffers(self) -> None:
        """Creates the shared buffers and the staging area for them. Raises TooLarge and MemoryError."""
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
        """Starts eager's runner, traces it if candidates may not use libraries, and calibrates."""
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
                    logger.warning("the device cannot be traced, so it is unknown whose kernels run")
        self._calibrate()
        self.memory.note_baseline(self.memory.others_bytes() - others_bytes, self.capacity)

    def _calibrate(self) -> None:
        plan = self._options.plan
        with self._steps.step(OpeningStep.CALIBRATION):
            if isinstance(self.eager, GpuRunnerClient):
                chains = dependent_calls.can_stir(tensors_in(self.reference.sample))
                self.calibration = GpuCalibration(self.eager, self._staging, plan, chains=chains)
            else:
                self.calibration = CpuCalibration(self.eager, self._staging, plan)

    def close(self) -> None:
        """Frees the memory; the runners must have ended."""
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
        """A client for a runner of ours that is `ready`, with the reference loaded. All baselines share one
        set of buffers."""
        kind = GpuRunnerClient if self.device == "cuda" else CpuRunnerClient
        client = kind(channel, self._baseline_buffers, pid, ours=True)
        self.load(client)
        return client

    @contextlib.contextmanager
    def buffer_sets(self, count: int) -> Iterator[list[SharedBuffers]]:
        """One set of shared buffers for each of `count` concurrent candidates, which could otherwise spoil
        each other's outputs. Meanwhile blocks have as many calls as fit in all of them. Raises MemoryError if
        there is no room."""
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
        """A client for a candidate's runner that is `ready`, with nothing of this problem loaded. `buffers`:
        None for the session's own."""
        buffers = buffers or self.buffers
        if self.problem.timed:
            return self.calibration.connect(channel, buffers, pid)
        if self.device == "cpu":
            return CpuRunnerClient(channel, buffers, pid)
        client = GpuRunnerClient(channel, buffers, pid)
        client.expected_ms = self._reference_ms
        return client

    def eager_calls(self, plan: Plan) -> int:
        """Calls per block of the baseline."""
        return self.calibration.eager_calls(plan, self.capacity)

    def call_ms(self, block: Block) -> float:
        """ms per call in a block; includes the block's overhead if the problem is not timed."""
        return block.call_ms(self.calibration.overhead(block.calls).total_ms if self.problem.timed else 0.0)

    def times_ms(self, blocks: Sequence[Block]) -> list[float]:
        """`call_ms` of each block, by the present knowledge of the overhead."""
        return [self.call_ms(each) for each in blocks]

    def fair_ms(self, before: Sequence[Block], alongside: Sequence[Block]) -> list[float]:
        """Times of the baseline's blocks next to a candidate, limited by those from before it was loaded (see
        `Calibration.credible_ms`)."""
        most_ms = self.calibration.credible_ms(self.times_ms(before), alongside[0].calls)
        return [min(each, most_ms) for each in self.times_ms(alongside)]

    def eager_alone(self, plan: Plan, *, renew: bool = True) -> list[Block]:
        """Blocks of the baseline while no candidate has run anything, after the overhead of blocks was
        measured again. Without `renew`, on a GPU, those of the same size count that are RECENT_S old at
        most."""
        if not renew and self.calibration.queues and self._alone is not None:
            measured_at, blocks = self._alone
            if time.monotonic() - measured_at < RECENT_S and blocks[0].calls == self.eager_calls(plan):
                return blocks
        with self.clock.step(Stage.CALIBRATING):
            self.calibration.renew_overhead()
        with self.clock.step(Stage.BASELINE):
            blocks = self.calibration.eager_alone(self.eager_calls(plan))
        self._alone = time.monotonic(), blocks
        return blocks

    def baseline_block(self, client: RunnerClient, calls: int) -> Block:
        """A baseline's block on fresh inputs, like a candidate's."""
        return client.block(self.stage_fresh(calls, client))

    def load(self, client: RunnerClient) -> None:
        """Loads the client's module. Raises CandidateRefused or ChannelClosed."""
        client.load(
            Load(
                problem=self.problem,
                seed=self.reference.seed,
                buffers=client.buffers.description,
                arguments=self.reference.template,
                form=self.reference.form,
                inputs=client.buffers.inputs,
                outputs=client.buffers.outputs,
                returned=self.reference.returned_inputs,
                lean=self.memory.is_lean,
            )
        )

    def stage_fresh(self, calls: int, client: RunnerClient, *, own: bool = False) -> Batch:
        """Draws new inputs for `calls` calls and poisons the client's outputs. The inputs are the problem's
        `own` (see `ReferenceModel.own_draws`), or else near to them (see `near`), different for each call."""
        near = self.reference.near
        draws = self.reference.own_draws(calls) if own else [near() for _ in range(calls)]
        return self._stage(draws, client)

    def staged(self, calls: int) -> Batch:
        """The inputs that happen to be staged, for `calls` calls."""
        return self._staging.batch(calls)

    def stage_distributions(self, names: list[str], client: RunnerClient) -> Batch:
        """Stages inputs of one distribution per call, whose answers are known."""
        draws = [Draw(seed=self.reference.seed_on(name), distribution=name) for name in names]
        return self._stage(draws, client)

    def stage_given(self, given: Sequence[list[Any]], draw: Draw, client: RunnerClient) -> Batch:
        """Stages these inputs, one set per call, with the random numbers that follow `draw`."""
        return self._stage([draw] * len(given), client, given)

    def _stage(self, draws: list[Draw], client: RunnerClient, given: Sequence[list[Any]] = ()) -> Batch:
        with self.clock.step(Stage.DRAWING):
            for call, draw in enumerate(draws):
                inputs = given[call] if given else self._draw(draw.seed, draw.distribution)
                self._staging.place(call, inputs)
            if self.reference.draws_numbers:
                self._staging.seeds = [self.reference.call_seed(draw.seed) for draw in draws]
            client.buffers.poison(len(draws))
            self.memory.trim()
            self.synchronize()  # as every block on a GPU does next
            return self._staging.batch(len(draws), draws)

    def start_clock(self) -> None:
        """Times the stages of an evaluation from now on."""
        self.clock = Steps(rest=Stage.OTHER)

    def answer_after(self, before: list[torch.Tensor], draw: Draw) -> ReferenceAnswer | None:
        """The right outputs of a call of a chain, whose inputs the answer before has changed; None if eager
        itself fails on those."""
        try:
            return self.reference.answer(draw, stirred=lambda each: self._stirred(each, before), spot=True)
        except (RuntimeError, ValueError):
            return None

    def spoilt_input(self, client: RunnerClient, batch: Batch, calls: Iterable[int]) -> int | None:
        """The index of an input tensor that was changed by these calls of the last block although the
        reference leaves it unchanged."""
        for call in calls:
            found = client.buffers.altered(self._staging.memory, call)
            if found is not None and not self.reference.writes_to(found, batch.draws[call]):
                return found
        return None

    def _stirred(self, inputs: list[Any], after: list[torch.Tensor]) -> list[Any]:
        """The inputs as the runner had them: laid out as in the shared buffers, one copy per argument."""
        tensors = [clone(each) for each in tensors_in(inputs)]
        dependent_calls.stir(tensors, dependent_calls.shares_of(after))
        return list(replaced(inputs, tensors))

    def too_fast(self, kernel_ms: float, eager_ms: float, calls: int) -> str | None:
        """See `SpeedLimits`; for a kernel in blocks of `calls` calls."""
        return self.limits.too_fast(kernel_ms, eager_ms, calls * self.buffers.inputs.call_bytes)

    def canary_ms(self) -> float | None:
        """See `Canary`. None if the problem is not timed, and on a CPU, where it would only show what other
        processes do."""
        return None if self._canary is None else self._canary.ms()

    def synchronize(self) -> None:
        """Waits for the device."""
        if self.device == "cuda":
            self._torch.cuda.synchronize()

    def _rough_ms(self) -> float:
        """About how long the warm reference takes in ms, from a single call if it is slow."""

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
        """The number of calls that shared buffers should have room for."""
        rough_ms = self._reference_ms
        if not self.problem.timed:
            return LEAST_CALLS
        floor_ms = self.limits.roofline().floor_ms if self.device == "cuda" else rough_ms
        wanted = self._options.plan.capacity(rough_ms, floor_ms, self._options.max_calls)
        return max(wanted, LEAST_CALLS)


def _free(buffers: SharedBuffers) -> None:
    """Frees buffers; if the device is lost, so is its memory."""
    with contextlib.suppress(RuntimeError):
        buffers.free()
