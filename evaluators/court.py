"""What the referee knows and holds: secret inputs, right answers, the baselines, and the shared memory."""

from __future__ import annotations

import copy
import logging
import os
import secrets
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluators import chain, weights
from evaluators.arena import Arena, Layout
from evaluators.ceilings import ceilings_of
from evaluators.census import NEUTRAL_FILES
from evaluators.channel import Channel, Message
from evaluators.correctness import FAMILIES, Comparison, compare, some_of
from evaluators.degenerate import examine
from evaluators.evaluation import Roofline
from evaluators.evenness import Evenness, evenness
from evaluators.library_code import LibraryCode, installed
from evaluators.peek import can_peek
from evaluators.reference import init_inputs, load_module, make_inputs, make_model, tensors_of
from evaluators.roofline import roofline, too_fast
from evaluators.side import Side
from evaluators.timing import SLACK_MS, Block, Overhead, Plan, block_sizes, smoothed
from evaluators.work import count

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

MEMORY_SHARE = 0.15
"""Of the device's memory, for the arena of a candidate; the same again for the baselines' and, at most, for
what is staged."""
ARENAS = 3
"""So many arenas' memory may those of candidates have together that are there at once."""
SINGLES = 4
"""Blocks of one call, against which the blocks of many are held."""
CHAIN_CALLS = 32
"""Of a chain at most, so that a GPU's queue, which has room for a thousand launches, holds them all."""
CANARY_ELEMENTS = 2**26
OVERSTATED = 0.9
"""Of what a block costs besides: less than that is no noise."""


class UnfitReference(Exception):
    """No kernel can be judged by this reference; the message has the findings."""


class Court:
    """One problem, opened: the reference in two precisions, its baselines, and the arenas."""

    def __init__(self, problem: dict[str, Any], channel: Channel, pid: int, options: dict[str, Any]) -> None:
        """`channel` and `pid`: of the eager baseline's runner. Raises UnfitReference, Refused when
        the reference does not run there, ChannelClosed when it died."""
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
        self.weight_forms = weights.forms_of(self._eager)
        self._weights: list[torch.Tensor] = []
        sample = self.draw(secrets.randbits(62))
        self._template = [{"tensor": -1} if isinstance(v, torch.Tensor) else {"value": v} for v in sample]
        for number, slot in enumerate(each for each in self._template if "tensor" in each):
            slot["tensor"] = number
        tensors = [v for v in sample if isinstance(v, torch.Tensor)]
        outputs, rough_ms = self._first_calls(sample)
        if not problem["allow_degenerate"]:
            self._require_judge()
        self.work = count(self._eager, sample, outputs)
        cache = Path(options["cache"])
        self._ceilings_file = cache / "ceilings.json"
        self._ceilings = ceilings_of(self.device, self._ceilings_file)
        self.library_code: LibraryCode | None = None
        """Which a kernel may not run; None where nobody looks."""
        if problem["libraries"] == "no_library" and self.device == "cpu" and can_peek():
            self.library_code = LibraryCode.of(installed(NEUTRAL_FILES), cache)
        self.capacity = self._room(tensors, outputs, rough_ms)
        self.arena = Arena(tensors, outputs, self.capacity, self.device)
        self._baseline_arena = Arena(tensors, outputs, self.capacity, self.device)
        layout = Layout.of(tensors, self.capacity)
        self._staged = torch.empty(layout.bytes, dtype=torch.uint8, device=self.device)
        self._places = layout.views(self._staged)
        for call in range(self.capacity):
            self._stage(call, sample)
        self._canary = torch.rand(CANARY_ELEMENTS, device=self.device) if self.device == "cuda" else None
        self.compiled: Side | None = None
        self.eager = self.baseline(channel, pid)
        self.eager.block(1)  # warms up
        self._calibrate(sample, Plan(**options["plan"]))

    def _calibrate(self, sample: list[Any], plan: Plan) -> None:
        """Takes the baseline's times, and what blocks cost besides, before any candidate is there to make
        them look larger."""
        self.link_ms: dict[bool, float] = {}
        """What a call costs more in a chain, by whether the module waits for the GPU in every call; empty
        where there are no chains."""
        if self.device == "cuda":
            sizes = block_sizes(self.capacity)
            some = (n for n in sizes if n & (n - 1) == 0 or n == self.capacity)
            self._overheads = smoothed({n: self.eager.overhead(n) for n in some}, sizes)
            calls = min(self.capacity, CHAIN_CALLS)
            if calls > 1 and chain.can_stir(sample):
                self.link_ms = {wait: self.eager.link_ms(calls, wait=wait) for wait in (False, True)}
        else:
            self._take_overhead(self.eager.overhead(1))
        calls = min(self.capacity, 2)
        for _ in range(3):
            self.eager_call_ms = self.eager.block(calls).call_ms(self.overhead(calls).total_ms)
            calls = plan.calls(self.eager_call_ms, self.capacity)
        self._eager_room = self.capacity
        if self.device == "cuda":
            if calls > 1:
                longest = max(n for n in block_sizes(self.capacity) if n <= 2 * calls)
                self.eager.block(longest)  # of a thorough measurement
                self._eager_room = self.queue_room(self.eager, longest)
            singles, late = [], []
            for _ in range(SINGLES):
                singles.append(self.eager.block(1).call_ms(self.overhead(1).total_ms))
                late.append(self.eager.late)
            self.eager.fills_queue = all(late)
            self.waking_ms = max(min(singles) - self.eager_call_ms, 0.0)
            """What a call alone takes longer than one of many."""

    def close(self) -> None:
        """Gives the memory back; the runners must be gone."""
        for side in (self.eager, self.compiled):
            if side is not None:
                side.close()
        self.arena.free()
        self._baseline_arena.free()
        if self.device == "cuda":
            del self._staged, self._places
            self._torch.cuda.empty_cache()

    def baseline(self, channel: Channel, pid: int) -> Side:
        """A runner of ours that has loaded the reference; all of them share one arena."""
        side = Side(channel, self._baseline_arena, self._staged, pid, ours=True)
        side.load(self._load_order(self._baseline_arena))
        return side

    @contextmanager
    def arenas(self, count: int) -> Iterator[list[Arena]]:
        """One for each of so many candidates that are there at once: what shares memory could spoil the
        other's outputs. Meanwhile blocks have as many calls as there is room for in all of them."""
        whole = self.capacity
        room = ARENAS * whole // count
        calls = whole if room >= whole else max(n for n in block_sizes(whole) if n <= max(room, 1))
        inputs, outputs = self._places[0], self.arena.output_views[0]
        more: list[Arena] = []
        try:
            for _ in range(count - 1):
                more.append(Arena(inputs, outputs, calls, self.device))
            self.capacity = calls
            yield [self.arena, *more]
        finally:
            self.capacity = whole
            for each in more:
                each.free()

    def candidate(self, channel: Channel, pid: int, arena: Arena | None = None) -> Side:
        """The candidate's runner, nothing loaded yet. `arena`: where it is not the court's own."""
        side = Side(channel, arena or self.arena, self._staged, pid)
        side.expected_ms = self.eager_call_ms
        side.fills_queue = self.eager.fills_queue
        return side

    def overhead(self, calls: int) -> Overhead:
        """What a block of so many calls costs besides; `calls` is one of `block_sizes`."""
        return self._overheads[calls]

    def overstates(self, calls: int) -> bool:
        """On a GPU: whether such a block costs less besides than was measured when the problem was opened. A
        machine that was busy then makes it look more, and every kernel faster."""
        if self.device != "cuda":
            return False
        known_ms, now_ms = self.overhead(calls).total_ms, self.eager.overhead(calls).total_ms
        return now_ms < OVERSTATED * known_ms - SLACK_MS["cuda"]

    def eager_calls(self, plan: Plan) -> int:
        """Calls of the baseline's blocks."""
        return min(plan.calls(self.eager_call_ms, self.capacity), self._eager_room)

    def queue_room(self, side: Side, calls: int) -> int:
        """On a GPU, after a block of so many calls: how many can be queued before a block begins, as far as
        is seen. A queue has room for about a thousand launches. Who is late with a single call waits for the
        GPU, and may have as many as there are."""
        size = calls
        while side.late and size > 1:
            size = max(n for n in block_sizes(self.capacity) if n <= size // 2)
            side.block(size)
        return self.capacity if side.late or size == calls else size

    def baseline_block(self, side: Side, calls: int) -> Block:
        """A baseline's block on fresh inputs, as a candidate's."""
        self.stage_fresh([""] * calls, side)
        return side.block(calls)

    def evenness(self, kernel: Sequence[Block], eager: Sequence[Block]) -> Evenness:
        """Of a kernel's blocks and eager's, which have alternated."""
        overhead_ms = self.overhead(1).total_ms if self.device == "cpu" else 0.0
        return evenness(kernel, eager, overhead_ms=overhead_ms, slack_ms=SLACK_MS[self.device])

    def eager_alone(self, plan: Plan) -> list[float]:
        """The baseline's time a call in ms, while no candidate has run anything."""
        calls = self.eager_calls(plan)
        times = [self.eager.block(calls).call_ms(self.overhead(calls).total_ms) for _ in range(3)]
        if self.device == "cpu":  # a machine that was busy before made it seem longer
            self.eager_call_ms = min(self.eager_call_ms, *times)
        return times

    def lower_overhead(self) -> None:
        """On a CPU: takes a smaller overhead where one is seen now. Noise only adds to it, and one that was
        measured while the machine was busy would be taken off times that do not hold it."""
        if self.device == "cpu":
            seen = self.eager.overhead(1)
            self._take_overhead(min(seen, self.overhead(1), key=lambda each: each.total_ms))

    def change_weights(self, seed: int, turn: list[int] | None, *, alike: bool) -> None:
        """Other weights for the reference, in both precisions (see `weights.change`)."""
        self._weights = weights.change(self._eager, seed, turn, alike=alike)
        self._copy_weights()

    def restore_weights(self) -> None:
        """The reference's own again, if they were changed."""
        if self._weights:
            weights.restore(self._eager, self._weights)
            self._copy_weights()
            self._weights = []

    def _copy_weights(self) -> None:
        exact, eager = weights.weights_of(self._exact), weights.weights_of(self._eager)
        with self._torch.no_grad():
            for wide, narrow in zip(exact, eager, strict=True):
                wide.copy_(narrow)

    def load(self, candidate: Side) -> None:
        """Raises Refused or ChannelClosed."""
        candidate.load(self._load_order(candidate.arena))

    def draw(self, seed: int, family: str = "") -> list[Any]:
        """One set of inputs; the same for the same seed and family."""
        values = make_inputs(self._module, seed=seed, device=self.device, dtype=self.problem["dtype"])
        if not family:
            return values
        is_tensor = self._torch.is_tensor
        return [FAMILIES[family](v) if is_tensor(v) and v.is_floating_point() else v for v in values]

    def stage_fresh(self, families: list[str], side: Side) -> list[int]:
        """Draws inputs for one call a family ("": the problem's own) that nobody has seen, and poisons the
        side's outputs. Returns the secret seeds."""
        seeds = [secrets.randbits(62) for _ in families]
        for call, (seed, family) in enumerate(zip(seeds, families, strict=True)):
            self._stage(call, self.draw(seed, family))
        side.arena.poison()
        return seeds

    def check(
        self,
        outputs: list[torch.Tensor],
        seed: int,
        family: str = "",
        *,
        after: list[torch.Tensor] | None = None,
        spot: bool = False,
    ) -> Comparison | None:
        """Compares outputs with the reference on inputs drawn anew, in a chain stirred by the answer before
        (`after`); None where eager itself has no answer for those, or no finite one for the family. A `spot`
        check looks at some elements of a large output, nobody knows which."""
        inputs = self.draw(seed, family)
        try:
            eager, exact = self.answers(inputs if after is None else self._stirred(inputs, after))
        except (RuntimeError, ValueError):
            if after is None:
                raise
            return None
        if family and not all(self._is_finite(each) for each in eager):
            return None
        tolerance = self.problem["tolerance"]
        found = []
        for three in zip(outputs, exact, eager, strict=True):
            comparison = compare(*(some_of(*three) if spot else three), tolerance)
            if spot and comparison.problem:  # in words about the whole output
                comparison = compare(*three, tolerance)
            found.append(comparison)
        return max(found, key=lambda c: (bool(c.problem), c.error))

    def _stirred(self, inputs: list[Any], after: list[torch.Tensor]) -> list[Any]:
        """As the runner had them: laid out as in the arena, one copy an argument."""
        places = iter(self._places[0])
        found = [
            self._torch.empty_like(next(places)).copy_(each) if self._torch.is_tensor(each) else each
            for each in inputs
        ]
        chain.stir(found, chain.shares_of(after))
        return found

    def _is_finite(self, tensor: torch.Tensor) -> bool:
        if not tensor.is_floating_point() or not tensor.numel():
            return True
        return bool(self._torch.stack(self._torch.aminmax(tensor)).isfinite().all())

    def answers(self, inputs: list[Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The reference's outputs at the task's dtype and, as far as it runs there, in float64."""
        with self._torch.no_grad():
            eager = tensors_of(self._eager(*inputs))
            return eager, tensors_of(self._in_double(inputs, eager))

    def roofline(self) -> Roofline:
        """The problem's floor on this device."""
        return roofline(self.work, self._ceilings, self.problem["dtype"], self.problem["tolerance"])

    def ceilings(self) -> dict[str, str]:
        """What this device reached at best, as facts for whoever writes kernels."""
        rates = {f"{n}_tflop_per_s": f"{r / 1e12:.3g}" for n, r in self._ceilings.operations_per_s.items()}
        return {"copy_gb_per_s": f"{self._ceilings.bytes_per_s / 1e9:.4g}", **rates}

    def too_fast(self, kernel_ms: float, eager_ms: float, calls: int) -> str | None:
        """Why a kernel cannot take so little, in blocks of so many calls; None where it can."""
        if not self.problem["floor"]:
            return None

        def reason() -> str | None:
            return too_fast(
                kernel_ms=kernel_ms,
                eager_ms=eager_ms,
                work=self.work,
                ceilings=self._ceilings,
                footprint_bytes=calls * self.arena.inputs.call_bytes,
            )

        if reason() is None:
            return None
        self._ceilings = ceilings_of(self.device, self._ceilings_file, again=True)
        return reason()

    def canary_ms(self) -> float | None:
        """Time of a small copy of ours: what it says of the GPU does not depend on any kernel. None on a CPU,
        where a slow one would tell of the other processes."""
        if self._canary is None:
            return None
        times = []
        for _ in range(7):
            self.synchronize()
            start = time.perf_counter()
            for _ in range(4):
                self._canary.clone()
            self.synchronize()
            times.append((time.perf_counter() - start) * 1e3)
        return statistics.median(times[2:])

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

    def _take_overhead(self, single: Overhead) -> None:
        """On a CPU, where calls are made one by one."""
        self._overheads = {
            n: replace(single, total_ms=n * single.total_ms) for n in block_sizes(self.capacity)
        }

    def _require_judge(self) -> None:
        """Raises UnfitReference."""
        seeds = secrets.randbits(62), secrets.randbits(62)
        if findings := examine(self.draw, self.answers, self.problem["tolerance"], seeds=seeds):
            raise UnfitReference("; ".join(findings))

    def _stage(self, call: int, values: list[Any]) -> None:
        tensors = (v for v in values if self._torch.is_tensor(v))
        for place, value in zip(self._places[call], tensors, strict=True):
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

    def _room(self, inputs: list[torch.Tensor], outputs: list[torch.Tensor], rough_ms: float) -> int:
        """Calls of an arena."""
        call_bytes = sum(t.numel() * t.element_size() for t in (*inputs, *outputs))
        if self.device == "cuda":
            budget = self._torch.cuda.get_device_properties(0).total_memory * MEMORY_SHARE
        else:
            budget = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * MEMORY_SHARE / 4
        room = max(1, int(budget // max(call_bytes, 1)))
        floor_ms = self.roofline().floor_ms if self.device == "cuda" else rough_ms
        wanted = Plan(**self._options["plan"]).capacity(rough_ms, floor_ms, self._options["max_calls"])
        return min(room, max(wanted, len(FAMILIES)))
