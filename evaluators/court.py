"""What the referee knows and holds: secret inputs, right answers, shared memory, its ends of the runners."""

from __future__ import annotations

import copy
import logging
import os
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from evaluators.arena import Layout, create_shared
from evaluators.channel import Channel, Message, ProtocolError, printable
from evaluators.correctness import FAMILIES, Comparison, compare
from evaluators.evaluation import Status
from evaluators.reference import init_inputs, load_module, make_inputs, make_model, tensors_of
from evaluators.timing import Block, Plan, dropped_calls

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

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


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9
