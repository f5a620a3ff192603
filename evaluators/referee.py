"""The trusted process: draws secret inputs, knows the right answers, holds the clock, gives the verdict.

It never has a candidate in its address space; it speaks with runners over channels that its parent, the
worker, hands to it, and with the worker:

    -> open {problem, ...} + eager runner's channel                      <- opened {facts} | failed {error}
    -> judge {thorough} + candidate's channel (+ the compiled baseline's)  <- verdict {status, ...}

It waits for a runner without a limit of its own: the worker holds the deadlines and kills the runner, which
closes the channel.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import secrets
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from evaluators import sandbox
from evaluators.arena import Layout, create_shared
from evaluators.channel import Channel, ChannelClosed, Message, ProtocolError, printable
from evaluators.correctness import FAMILIES, Comparison, compare
from evaluators.evaluation import Status, Timing
from evaluators.reference import init_inputs, load_module, make_inputs, make_model, tensors_of
from evaluators.timing import Block, Plan, audit, dropped_calls, median_interval

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

CHECKED_CALLS = 3
SETTLE_S = 0.01
"""On a CPU, a pause before each block: the OpenMP threads of the block before spin for some 7 ms."""
MEMORY_SHARE = 0.2
"""Of the device's memory, for the arena of a candidate, and the same again for the baseline's."""


class Refused(Exception):
    """The candidate's verdict is in: it is not correct."""

    def __init__(self, status: Status, log: str, rule: str = "") -> None:
        super().__init__(log)
        self.status, self.log, self.rule = status, log, rule


class Runner:
    """The referee's side of a runner: orders and the clock."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.isolation = str(channel.receive().get("isolation", ""))

        self._settle_s = 0.0

    def load(self, order: Message, fd: int | None) -> None:
        """Raises Refused when the module does not load, ChannelClosed when the runner died."""
        fds = () if fd is None else (fd,)
        self._settle_s = SETTLE_S if order["problem"]["device"] == "cpu" else 0.0
        self._channel.send({"op": "load", "fds": len(fds), **order}, fds)
        self._answer("loaded")

    def run(self, calls: int) -> Block:
        """One block: calls 0 to `calls` - 1, timed by the runner (claims) and by this clock (wall)."""
        time.sleep(self._settle_s)
        start = time.perf_counter()
        self._channel.send({"op": "run", "calls": list(range(calls))})
        answer = self._answer("done")
        wall_ms = (time.perf_counter() - start) * 1e3
        claims = answer.get("ms")
        if not (isinstance(claims, list) and len(claims) == calls and all(_is_time(c) for c in claims)):
            raise Refused(
                Status.REJECTED, f"the runner claimed no valid times: {claims!r:.200}", "forged message"
            )
        return Block(claimed_ms=tuple(claims), wall_ms=wall_ms, dropped=dropped_calls(calls))

    def close(self) -> None:
        """Lets the runner end by itself."""
        self._channel.close()

    def _answer(self, expected: str) -> Message:
        try:
            answer = self._channel.receive()
        except ProtocolError as error:
            raise Refused(
                Status.REJECTED, f"the runner broke the protocol: {error}", "forged message"
            ) from error
        if answer.get("op") == expected:
            return answer
        if answer.get("op") != "failed":
            raise Refused(Status.REJECTED, f"unexpected message {answer!r:.200}", "forged message")
        log, kind = printable(answer.get("error", "")), answer.get("kind")
        if kind == "WrongOutput":
            raise Refused(Status.INCORRECT, log)
        phases = {"import": Status.COMPILE_ERROR, "device": Status.CRASHED}
        raise Refused(phases.get(str(answer.get("phase")), Status.RUNTIME_ERROR), log)


@dataclass
class Arena:
    """Shared memory for the calls of one side, with the referee's views of it."""

    inputs: Layout
    outputs: Layout
    memory: torch.Tensor
    description: dict[str, Any]
    fd: int | None
    input_views: list[list[torch.Tensor]] = field(init=False)
    output_views: list[list[torch.Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        self.input_views = self.inputs.views(self.memory)
        self.output_views = self.outputs.views(self.memory[self.inputs.bytes :])

    @classmethod
    def create(
        cls, inputs: list[torch.Tensor], outputs: list[torch.Tensor], calls: int, device: str
    ) -> Arena:
        """Room for `calls` calls with such inputs and outputs."""
        into, out = Layout.of(inputs, calls), Layout.of(outputs, calls)
        memory, description, fd = create_shared(into.bytes + out.bytes, device)
        return cls(inputs=into, outputs=out, memory=memory, description=description, fd=fd)

    def poison(self) -> None:
        """NaN (all bits one) into every output: what is not written cannot pass."""
        self.memory[self.inputs.bytes :].fill_(255)


class Court:
    """One problem, opened: the reference in three precisions of trust, its baseline, and the arenas."""

    def __init__(self, problem: dict[str, Any], baseline: Runner, options: dict[str, Any]) -> None:
        import torch

        self._torch = torch
        self.problem, self._options = problem, options
        self.device: str = problem["device"]
        self._seed = secrets.randbits(62)
        self._module = load_module(problem["source"], problem["overrides"])
        values = init_inputs(self._module, self._seed)
        arguments = (self._module, "Model", values)
        self._eager = make_model(*arguments, seed=self._seed, device=self.device, dtype=problem["dtype"])
        self._exact = copy.deepcopy(self._eager).double()
        sample = self.draw(secrets.randbits(62))
        self._template = [{"tensor": -1} if isinstance(v, torch.Tensor) else {"value": v} for v in sample]
        for number, slot in enumerate(each for each in self._template if "tensor" in each):
            slot["tensor"] = number
        tensors = [v for v in sample if isinstance(v, torch.Tensor)]
        outputs, rough_ms = self._first_calls(sample)
        calls = self._capacity(tensors, outputs, rough_ms)
        self.arena = Arena.create(tensors, outputs, calls, self.device)
        self._baseline_arena = Arena.create(tensors, outputs, calls, self.device)
        for places in self._baseline_arena.input_views:
            self._fill(places, self.draw(secrets.randbits(62)))
        self.synchronize()
        self.baseline = baseline
        self.load_baseline(baseline)
        warm = [baseline.run(min(calls, 2)) for _ in range(3)]
        self.eager_call_ms = min(block.claimed_ms[-1] for block in warm)

    def load_baseline(self, runner: Runner) -> None:
        """Loads the reference in a runner, over the baseline's arena."""
        runner.load(self._load_order(self._baseline_arena), self._baseline_arena.fd)

    def load_candidate(self, runner: Runner) -> None:
        """Loads the candidate in its runner. Raises Refused or ChannelClosed."""
        self.arena.memory.zero_()
        self.synchronize()
        runner.load(self._load_order(self.arena), self.arena.fd)

    def draw(self, seed: int, family: str = "") -> list[Any]:
        """One set of inputs; the same for the same seed and family."""
        values = make_inputs(self._module, seed=seed, device=self.device, dtype=self.problem["dtype"])
        if not family:
            return values
        is_tensor = self._torch.is_tensor
        return [FAMILIES[family](v) if is_tensor(v) and v.is_floating_point() else v for v in values]

    def run_fresh(self, runner: Runner, families: list[str]) -> tuple[Block, list[int]]:
        """A block with one fresh call a family ("": the problem's own); returns it with the secret seeds."""
        seeds = [secrets.randbits(62) for _ in families]
        for places, seed, family in zip(self.arena.input_views, seeds, families, strict=False):
            self._fill(places, self.draw(seed, family))
        self.arena.poison()
        self.synchronize()
        return runner.run(len(families)), seeds

    def check(self, call: int, seed: int, family: str = "") -> Comparison | None:
        """Compares a call's outputs with the reference on inputs drawn anew; None where eager itself has
        no finite answer for the family."""
        outputs = [place.clone() for place in self.arena.output_views[call]]
        inputs = self.draw(seed, family)
        with self._torch.no_grad():
            eager = tensors_of(self._eager(*inputs))
            exact = tensors_of(self._in_double(inputs, eager))
        if family and not all(bool(self._torch.isfinite(e).all()) for e in eager if e.is_floating_point()):
            return None
        found = [
            compare(out, ref, own, self.problem["tolerance"])
            for out, ref, own in zip(outputs, exact, eager, strict=True)
        ]
        return max(found, key=lambda c: (bool(c.problem), c.error))

    def capacity(self) -> int:
        """Calls that fit into the arena."""
        return self.arena.inputs.calls

    def synchronize(self) -> None:
        """Waits for the device."""
        if self.device == "cuda":
            self._torch.cuda.synchronize()

    def _in_double(self, inputs: list[Any], eager: list[torch.Tensor]) -> Any:
        wide = [v.double() if self._torch.is_tensor(v) and v.is_floating_point() else v for v in inputs]
        try:
            return self._exact(*wide)
        except RuntimeError as error:
            logger.warning("the reference does not run in float64, its own dtype stands in: %s", error)
            return eager

    def _fill(self, places: list[torch.Tensor], values: list[Any]) -> None:
        tensors = (v for v in values if self._torch.is_tensor(v))
        for place, value in zip(places, tensors, strict=True):
            place.copy_(value)

    def _load_order(self, arena: Arena) -> Message:
        return {
            "problem": self.problem,
            "seed": self._seed,
            "arena": arena.description,
            "arguments": self._template,
            "inputs": arena.inputs.to_json(),
            "outputs": arena.outputs.to_json(),
        }

    def _first_calls(self, sample: list[Any]) -> tuple[list[torch.Tensor], float]:
        """The reference's outputs, and about how long it takes in ms once it is warm."""
        with self._torch.no_grad():
            outputs = tensors_of(self._eager(*sample))
            self.synchronize()
            start = time.perf_counter()
            for _ in range(3):
                self._eager(*sample)
            self.synchronize()
        return outputs, (time.perf_counter() - start) / 3 * 1e3

    def _capacity(self, inputs: list[torch.Tensor], outputs: list[torch.Tensor], rough_ms: float) -> int:
        call_bytes = sum(t.numel() * t.element_size() for t in (*inputs, *outputs))
        if self.device == "cuda":
            budget = self._torch.cuda.get_device_properties(0).total_memory * MEMORY_SHARE
        else:
            budget = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * MEMORY_SHARE / 4
        room = max(2, int(budget // max(call_bytes, 1)))
        wanted = Plan(**self._options["plan"]).capacity(rough_ms, self._options["max_calls"])
        return min(room, max(wanted, len(FAMILIES)))


class Trial:
    """One candidate before the court."""

    def __init__(self, court: Court, runner: Runner, compiled: Runner | None, plan: Plan) -> None:
        self._court, self._runner, self._compiled, self._plan = court, runner, compiled, plan
        self.families: dict[str, bool] = {}
        self._comparisons: list[Comparison] = []

    def verdict(self) -> Message:
        """Loads, checks and times the candidate; always a verdict. Raises ChannelClosed if it died."""
        timing: Timing | None = None
        status, log, rule = Status.CORRECT, "", ""
        try:
            self._court.load_candidate(self._runner)
            call_ms = self._check()
            timing = self._time(call_ms)
        except Refused as refused:
            status, log, rule = refused.status, refused.log, refused.rule
        return {
            "op": "verdict",
            "status": status.value,
            "log": log or self._notes(),
            "rule": rule,
            "timing": None if timing is None else asdict(timing),
            "correctness": self._correctness(),
        }

    def _check(self) -> float:
        """Correctness on the problem's own inputs, then on the families. Returns ms a call."""
        capacity = self._court.capacity()
        block = self._check_block(1)
        again = self._plan.calls(block.median_ms, min(CHECKED_CALLS, capacity))
        block = self._check_block(again)  # a warm kernel now, and buffers that hold old answers
        names = list(FAMILIES)
        for start in range(0, len(names), capacity):
            chosen = names[start : start + capacity]
            _, seeds = self._court.run_fresh(self._runner, chosen)
            for call, (family, seed) in enumerate(zip(chosen, seeds, strict=True)):
                self._try_family(call, family, seed)
        return statistics.median(block.claimed_ms)

    def _check_block(self, calls: int) -> Block:
        block, seeds = self._court.run_fresh(self._runner, [""] * calls)
        for call, seed in enumerate(seeds):
            self._require(call, seed)
        return block

    def _require(self, call: int, seed: int) -> None:
        comparison = self._court.check(call, seed)
        if comparison is None:
            return
        self._comparisons.append(comparison)
        if comparison.problem:
            raise Refused(Status.INCORRECT, f"wrong on fresh inputs: {comparison.problem}")

    def _try_family(self, call: int, family: str, seed: int) -> None:
        comparison = self._court.check(call, seed, family)
        if comparison is None:
            return
        self.families[family] = not comparison.problem
        if comparison.problem and self._court.problem["tolerance"] == "strict":
            raise Refused(Status.INCORRECT, f"wrong on inputs of the family '{family}': {comparison.problem}")

    def _time(self, call_ms: float) -> Timing:
        """Alternates blocks of kernel and baselines (ABBA) until the interval is narrow enough."""
        court, plan = self._court, self._plan
        kernel_calls = plan.calls(call_ms, court.capacity())
        eager_calls = plan.calls(court.eager_call_ms, court.capacity())
        kernel: list[Block] = []
        eager: list[Block] = []
        compiled: list[Block] = []
        steps: list[Callable[[], None]] = [
            lambda: kernel.append(self._timed_block(kernel_calls)),
            lambda: eager.append(court.baseline.run(eager_calls)),
        ]
        if (other := self._compiled) is not None:
            steps.append(lambda: compiled.append(other.run(eager_calls)))
        start = time.monotonic()
        while True:
            for step in steps if len(kernel) % 2 == 0 else reversed(steps):
                step()
            ratios = [e.median_ms / k.median_ms for k, e in zip(kernel, eager, strict=True)]
            if plan.enough(ratios, time.monotonic() - start):
                break
        if reason := audit(kernel, eager):
            raise Refused(Status.REJECTED, reason, "claimed times")
        speedup, low, high = median_interval(ratios)
        samples = tuple(b.median_ms for b in kernel), tuple(b.median_ms for b in eager)
        return Timing(
            kernel_ms=statistics.median(samples[0]),
            eager_ms=statistics.median(samples[1]),
            compile_ms=statistics.median(b.median_ms for b in compiled) if compiled else None,
            speedup=speedup,
            speedup_low=low,
            speedup_high=high,
            kernel_samples_ms=samples[0],
            eager_samples_ms=samples[1],
        )

    def _timed_block(self, calls: int) -> Block:
        block, seeds = self._court.run_fresh(self._runner, [""] * calls)
        if min(block.claimed_ms) <= 0:
            raise Refused(Status.REJECTED, "the kernel claims to have taken no time", "claimed times")
        call = secrets.randbelow(calls)
        self._require(call, seeds[call])
        return block

    def _correctness(self) -> dict[str, Any] | None:
        finite = [c for c in self._comparisons if c.error != float("inf")]
        if not finite:
            return None
        return {
            "checked_calls": len(self._comparisons),
            "normwise_error": max(c.error for c in finite),
            "eager_error": max(c.eager_error for c in finite),
            "families": self.families,
        }

    def _notes(self) -> str:
        failed = [name for name, passed in self.families.items() if not passed]
        return f"outside the tolerance on inputs of the families: {', '.join(failed)}" if failed else ""


def main() -> None:
    """The referee's process: serves its worker until the channel closes."""
    sandbox.die_with_parent()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(name)s: %(message)s")
    worker = Channel.from_fd(int(sys.argv[1]))
    court: Court | None = None
    with contextlib.suppress(ChannelClosed):
        while True:
            order = worker.receive()
            try:
                if order["op"] == "open":
                    court = None
                    baseline = Runner(Channel.from_fd(worker.take_fds(1)[0]))
                    court = Court(order["problem"], baseline, order["options"])
                    worker.send({"op": "opened", "eager_ms": court.eager_call_ms, **_facts(court.device)})
                elif court is not None:
                    worker.send(_judge(court, worker, order))
            except ChannelClosed:
                worker.send({"op": "lost"})  # a runner died; the worker knows which and why
            except Exception as error:
                # The process's last resort: a fault of ours or of the reference must reach the worker.
                text = str(error) if isinstance(error, Refused) else traceback.format_exc()
                worker.send({"op": "failed", "error": text})


def _judge(court: Court, worker: Channel, order: Message) -> Message:
    fds = worker.take_fds(order["fds"])
    candidate = Runner(Channel.from_fd(fds[0]))
    compiled: Runner | None = None
    if len(fds) > 1:
        compiled = Runner(Channel.from_fd(fds[1]))
        try:
            court.load_baseline(compiled)
            compiled.run(min(2, court.capacity()))
        except (Refused, ChannelClosed) as error:
            logger.warning("torch.compile could not run the reference: %s", error)
            compiled = None
    try:
        verdict = Trial(court, candidate, compiled, Plan(**order["plan"])).verdict()
        return verdict | {"isolation": candidate.isolation}
    finally:
        candidate.close()
        if compiled is not None:
            compiled.close()


def _facts(device: str) -> dict[str, Any]:
    import torch

    facts = {"device": _cpu_name(), "torch": str(torch.__version__)}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        facts["device"] = properties.name
        facts["architecture"] = f"{properties.major}.{properties.minor}"
        facts["cuda"] = torch.version.cuda or ""
    return facts


def _cpu_name() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()}, {os.cpu_count()} cores"
    return f"CPU, {os.cpu_count()} cores"


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9


if __name__ == "__main__":
    main()
