"""Finds the calls of an operator that test a kernel for it.

    python -m evaluators.suites.informative_calls FILE START

tries the calls in FILE (JSON lines) from number START on. For each it writes 1 if the operator accepts other
numbers, 0 if not.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from evaluators.reference.containers import tensors_in
from evaluators.suites.random_operators import is_random
from evaluators.suites.traced.call import TracedCall
from evaluators.suites.traced.grammar import call_of, write_arguments
from evaluators.suites.traced.inputs import make_arguments, operator_of

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

SEEDS = (0, 1)
MOST_PROCESSES = 8
"""Concurrent processes, each of which loads PyTorch."""
FEWEST_CALLS = 1000
"""Least calls per process: importing PyTorch takes as long as trying them."""


def accepts_other_numbers(call: TracedCall) -> bool:
    """Whether the operator accepts other numbers in the call's tensors (traces store none) and returns
    comparable results of the same sizes for them. The call runs on the CPU."""
    return _run_twice(call) is not None


def accept_other_numbers(calls: Sequence[TracedCall]) -> list[bool]:
    """`accepts_other_numbers` of each call, in other processes: invalid numbers that an operator does not
    check may crash one."""
    count = max(1, min(MOST_PROCESSES, len(os.sched_getaffinity(0)), len(calls) // FEWEST_CALLS))
    with ThreadPoolExecutor(count) as threads:
        parts = list(threads.map(_in_a_process, [calls[first::count] for first in range(count)]))
    return [parts[place % count][place // count] for place in range(len(calls))]


def _in_a_process(calls: Sequence[TracedCall]) -> list[bool]:
    """Tries the calls in sequence, and starts a new process after a crash."""
    found: list[bool] = []
    lines = [json.dumps([call.operator, write_arguments(call)]) + "\n" for call in calls]
    with tempfile.TemporaryDirectory() as folder:
        file, answers = Path(folder) / "calls.jsonl", Path(folder) / "answers"
        file.write_text("".join(lines))
        while len(found) < len(calls):
            command = [
                sys.executable,
                "-m",
                "evaluators.suites.informative_calls",
                str(file),
                str(len(found)),
            ]
            with answers.open("wb") as out:
                subprocess.run(command, stdout=out, stderr=subprocess.DEVNULL, check=False)
            found += [each == "1" for each in answers.read_text()]
            if len(found) < len(calls):  # the next call has crashed it
                logger.info("%s crashes the process", calls[len(found)].operator)
                found.append(False)
    return found


def is_informative(call: TracedCall) -> bool:
    """Whether the operator accepts other numbers and returns neither a constant nor one of its inputs."""
    made = _run_twice(call)
    if made is None:
        return False
    before, found = made
    return is_random(call) or all(_differs(each, before) for each in found)


def _run_twice(call: TracedCall) -> tuple[list[torch.Tensor], list[torch.Tensor]] | None:
    """Runs the call with two sets of numbers. Returns the input and result tensors of the first run; None if
    a run fails or the results differ in size."""
    try:
        first, second = (_answers(call, seed) for seed in SEEDS)
    except Exception as error:  # an operator may raise anything
        logger.debug("%s: %s", call.operator, error)
        return None
    return first if is_random(call) or _sizes(first[1]) == _sizes(second[1]) else None


def _answers(call: TracedCall, seed: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The tensors of a call, as they were before it, and those of its results. Raises for results that cannot
    be compared: sparse, complex in half precision, or without elements."""
    import torch

    given, named = make_arguments(call, "cpu", seed)
    before = [each.clone() for each in tensors_in([given, named])]
    with torch.no_grad():
        found = tensors_in(operator_of(call.operator)(*given, **named))
    for each in found:
        torch.equal(each, each)
    if found and not any(each.numel() for each in found):
        raise ValueError("there are no elements in its results")
    return before, found


def _sizes(tensors: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    return [tuple(each.shape) for each in tensors]


def _differs(output: torch.Tensor, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether an output is neither constant nor one of the inputs. A single element counts as constant unless
    it is computed from several."""
    import torch

    if not output.numel() or bool(output.isnan().all()):
        return False
    many = output.numel() > 1 or not any(each.numel() > 1 for each in inputs)
    if many and bool((output == output.flatten()[0]).all()):
        return False
    alike = (each.to(output.dtype) for each in inputs if each.shape == output.shape)
    return not any(torch.equal(each, output) for each in alike)


def main(arguments: Sequence[str]) -> int:
    """Runs in the other process."""
    import torch

    torch.set_num_threads(1)
    for line in Path(arguments[0]).read_text().splitlines()[int(arguments[1]) :]:
        operator, text = json.loads(line)
        sys.stdout.write(str(int(accepts_other_numbers(call_of(operator, text)))))
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
