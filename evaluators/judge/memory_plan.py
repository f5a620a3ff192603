"""How many calls fit into a device's memory, next to everything else that judging needs. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from evaluators.records.timing import block_sizes
from evaluators.reference.running_reference import UnfitReference

GIB = 2**30
MEMORY_SHARE = 0.15
"""Largest share of the device's memory for a candidate's shared buffers; the same again for the baselines'
and for staged inputs."""
LARGE_SHARE = 0.05
"""Share of the device's memory above which a call gets shared buffers for one call only, so that the judge
process has memory for the answers. With two calls of 8 and 9 GiB (KernelBench's level1/89 and level1/63) 140
GiB did not suffice for the answers in float64; with one they did."""
BUFFER_SETS = 3
"""Total size of the shared buffers of concurrent candidates, in multiples of one candidate's."""
CONTEXT_BYTES = int(0.6 * GIB)
"""CUDA's memory in each process that uses the device."""
BASELINES = 2
"""Runners in addition to the candidates': eager's, and that of `torch.compile`."""
WEIGHT_SETS = 3
"""Copies of the weights that a runner has at most."""
COPIED_CALLS = 3
"""Calls of a block whose outputs the judge process copies at most before it checks them."""
COMPARED_BYTES = 3 * GIB
"""Memory to compare outputs in chunks of float64: at most this, and ten times the outputs."""
SPARE_BYTES = GIB
"""For the canary and for fragmentation."""


class TooLarge(UnfitReference):
    """Not even one call of a kernel can be judged on this device."""


def most_calls(total_bytes: int, call_bytes: int) -> int:
    """Most calls for which shared buffers may be created on a device with this much memory,
    however full it is; 0 if one call would exceed its share."""
    return 1 if call_bytes > LARGE_SHARE * total_bytes else int(total_bytes * MEMORY_SHARE // call_bytes)


def shared_calls(whole: int, candidates: int) -> int:
    """The same by the shares alone, for each of `candidates` at once if one alone has `whole`."""
    room = BUFFER_SETS * whole // candidates
    return whole if room >= whole else max(n for n in block_sizes(whole) if n <= max(room, 1))


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Known facts about a device and a problem, in bytes.

    Attributes:
        free_bytes: free before there are shared buffers and runners.
        held_bytes: the judge process's own part of the rest.
        input_bytes: inputs of a call.
        output_bytes: outputs of a call.
        answer_bytes: the most that the judge process needs to compute one answer.
        weight_bytes: the reference's weights in their own dtype.
        lean: runners free the memory of the outputs after each block.
        temporary_bytes: what a runner uses beyond its plan, as seen for the baseline's.
    """

    total_bytes: int
    free_bytes: int
    held_bytes: int
    input_bytes: int
    output_bytes: int
    answer_bytes: int
    weight_bytes: int
    lean: bool = False
    temporary_bytes: int = 0

    def runner_bytes(self, calls: int) -> int:
        """A runner's memory: the outputs of all calls of a block until they are copied and, while its weights
        are changed, the original weights and a new copy of the largest."""
        kept_bytes = CONTEXT_BYTES + self.temporary_bytes + WEIGHT_SETS * self.weight_bytes
        return kept_bytes + calls * self.output_bytes

    def with_baseline(self, held_bytes: int, calls: int) -> MemoryPlan:
        """The plan once the baseline's runner was seen to use `held_bytes` in blocks of `calls` calls."""
        return replace(self, temporary_bytes=max(held_bytes - self.runner_bytes(calls), 0))

    def needed_bytes(self, whole: int, candidates: int = 1, calls: int | None = None) -> int:
        """Everything allocated after `free_bytes` was measured. The session's own shared buffers are for
        `whole` calls; those of other candidates, and the blocks, are for `calls`."""
        calls = whole if calls is None else calls
        call_bytes = self.input_bytes + self.output_bytes
        sets = (2 * whole + (candidates - 1) * calls) * call_bytes
        staged = whole * self.input_bytes
        runners = (BASELINES + candidates) * self.runner_bytes(0)
        copied = min(calls, COPIED_CALLS) * self.output_bytes
        checking = self.answer_bytes + min(COMPARED_BYTES, 10 * self.output_bytes)
        if self.lean:  # nothing is checked while a runner runs
            in_turn = max(whole * self.output_bytes, checking)
        else:
            in_turn = (BASELINES * whole + candidates * calls) * self.output_bytes + checking
        return sets + staged + runners + copied + in_turn + SPARE_BYTES

    def as_lean_as_needed(self) -> MemoryPlan:
        """This plan, or a lean one if otherwise not even one call fits the device."""
        fits = self.held_bytes + self.needed_bytes(1) <= self.total_bytes
        return self if fits else replace(self, lean=True)

    def calls(self, most: int) -> int:
        """Calls to create shared buffers for, at most `most`, with one candidate. Raises TooLarge if one call
        exceeds the whole device, MemoryError if others use its memory now."""
        needed = self.held_bytes + self.needed_bytes(1)
        if needed > self.total_bytes:
            raise TooLarge(
                f"this problem needs about {_gib(needed)}; the device has {_gib(self.total_bytes)}"
            )
        self._require_free(self.needed_bytes(1), "one kernel")
        return max(n for n in range(1, most + 1) if n == 1 or self.needed_bytes(n) <= self.free_bytes)

    def most_candidates(self, whole: int, wanted: int) -> int:
        """How many of `wanted` candidates fit at once, if the session's own calls are `whole`."""
        fit = (n for n in range(1, wanted + 1) if self.needed_bytes(whole, n, 1) <= self.free_bytes)
        return max(fit, default=1)

    def calls_of_each(self, whole: int, candidates: int) -> int:
        """Calls of each of these candidates at once. Raises MemoryError if not even one fits."""
        self._require_free(self.needed_bytes(whole, candidates, 1), f"{candidates} kernels at once")
        sizes = [n for n in block_sizes(whole) if n <= shared_calls(whole, candidates)]
        return max(n for n in sizes if n == 1 or self.needed_bytes(whole, candidates, n) <= self.free_bytes)

    def _require_free(self, needed_bytes: int, what: str) -> None:
        if needed_bytes > self.free_bytes:
            raise MemoryError(
                f"judging {what} needs about {_gib(needed_bytes)} more; {_gib(self.free_bytes)} of the "
                f"device's {_gib(self.total_bytes)} are free"
            )


def _gib(size: int) -> str:
    return f"{size / GIB:.0f} GiB"
