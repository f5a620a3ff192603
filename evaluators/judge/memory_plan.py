"""How many calls a device's memory has room for, beside everything else that judging takes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from evaluators.records.timing import block_sizes
from evaluators.reference.running_reference import UnfitReference

GIB = 2**30
MEMORY_SHARE = 0.15
"""Of the device's memory, at most: for the shared buffers of a candidate; the same again for the baselines'
and for what is staged."""
LARGE_SHARE = 0.05
"""Of the device's memory: a larger call has shared buffers for one, so that the judge process has memory for
the answers. With two calls of 8 and 9 GiB (KernelBench's level1/89 and level1/63) 140 GiB were not enough for
those in float64; with one they were."""
BUFFER_SETS = 3
"""So many shared buffers' memory may those of candidates have together that are there at once."""
CONTEXT_BYTES = int(0.6 * GIB)
"""Of CUDA, in each process that uses the device."""
BASELINES = 2
"""Runners beside the candidates': eager's, and that of `torch.compile`."""
WEIGHT_SETS = 3
"""Of a runner, at most."""
COPIED_CALLS = 3
"""Of a block, whose outputs the judge process copies before it checks them, at most."""
COMPARED_BYTES = 3 * GIB
"""For comparing, some chunks of float64: at most so much, and ten times the outputs."""
SPARE_BYTES = GIB
"""For the canary, and for memory that lies in pieces."""


class TooLarge(UnfitReference):
    """Not even one call of a kernel's can be judged on such a device."""


def most_calls(total_bytes: int, call_bytes: int) -> int:
    """Calls that shared buffers may have at most on a device with so much memory, whatever else is there; 0
    where one would take more than its share."""
    return 1 if call_bytes > LARGE_SHARE * total_bytes else int(total_bytes * MEMORY_SHARE // call_bytes)


def shared_calls(whole: int, candidates: int) -> int:
    """The same, by the shares alone, for each of so many candidates at once where one alone has `whole`."""
    room = BUFFER_SETS * whole // candidates
    return whole if room >= whole else max(n for n in block_sizes(whole) if n <= max(room, 1))


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """What is known of a device and a problem, in bytes. `free_bytes`: before there are shared buffers and
    runners; `held_bytes`: what of the rest is the judge process's own; `input_bytes` and `output_bytes` of a
    call; `answer_bytes`: the most that the judge process takes to work out one answer, and `weight_bytes` of
    the reference's, in its own type. `lean`: runners give back after each block what the outputs took.
    `temporary_bytes`: what a runner holds beside what is planned for it, as seen of the baseline's."""

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
        """What a runner needs: it holds the outputs of all calls of a block until they are copied, and, while
        its weights are changed, those that it had and the largest of them anew."""
        kept_bytes = CONTEXT_BYTES + self.temporary_bytes + WEIGHT_SETS * self.weight_bytes
        return kept_bytes + calls * self.output_bytes

    def with_baseline(self, held_bytes: int, calls: int) -> MemoryPlan:
        """Now that the baseline's runner was seen to hold so much, in blocks of so many calls."""
        return replace(self, temporary_bytes=max(held_bytes - self.runner_bytes(calls), 0))

    def needed_bytes(self, whole: int, candidates: int = 1, calls: int | None = None) -> int:
        """Everything that comes after `free_bytes` was seen. The session's own shared buffers are for `whole`
        calls, those of other candidates, and the blocks, of so many `calls`."""
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
        """Itself, or a lean one where one call does not fit the device otherwise."""
        fits = self.held_bytes + self.needed_bytes(1) <= self.total_bytes
        return self if fits else replace(self, lean=True)

    def calls(self, most: int) -> int:
        """Calls that shared buffers are made for, at most `most`, with one candidate there. Raises TooLarge
        where one is too many for the whole device, MemoryError where others hold its memory now."""
        needed = self.held_bytes + self.needed_bytes(1)
        if needed > self.total_bytes:
            raise TooLarge(
                f"this problem needs about {_gib(needed)}, the device has {_gib(self.total_bytes)}"
            )
        self._require_free(self.needed_bytes(1), "one kernel")
        return max(n for n in range(1, most + 1) if n == 1 or self.needed_bytes(n) <= self.free_bytes)

    def most_candidates(self, whole: int, wanted: int) -> int:
        """Of so many, those that there is room for at once, the session's own calls being `whole`."""
        fit = (n for n in range(1, wanted + 1) if self.needed_bytes(whole, n, 1) <= self.free_bytes)
        return max(fit, default=1)

    def calls_of_each(self, whole: int, candidates: int) -> int:
        """Calls of each of so many candidates at once. Raises MemoryError where there is no room for one."""
        self._require_free(self.needed_bytes(whole, candidates, 1), f"{candidates} kernels at once")
        sizes = [n for n in block_sizes(whole) if n <= shared_calls(whole, candidates)]
        return max(n for n in sizes if n == 1 or self.needed_bytes(whole, candidates, n) <= self.free_bytes)

    def _require_free(self, needed_bytes: int, what: str) -> None:
        if needed_bytes > self.free_bytes:
            raise MemoryError(
                f"to judge {what} takes about {_gib(needed_bytes)} more, {_gib(self.free_bytes)} of the "
                f"device's {_gib(self.total_bytes)} are free"
            )


def _gib(size: int) -> str:
    return f"{size / GIB:.0f} GiB"
