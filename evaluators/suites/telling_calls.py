"""Which calls of an operator tell something of a kernel for it.

    python -m evaluators.suites.telling_calls FILE START

tries the calls in FILE, as JSON lines, from the one at START on, and writes for each whether it takes other
numbers, 1 or 0.
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
from evaluators.suites.trace_grammar import call_of, write_arguments
from evaluators.suites.trace_inputs import make_arguments, operator_of
from evaluators.suites.traced_call import TracedCall

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

SEEDS = (0, 1)
MOST_PROCESSES = 8
"""At a time, each with a PyTorch of its own in memory."""
FEWEST_CALLS = 1000
"""Of a process: importing PyTorch takes as long."""


def takes_other_numbers(call: TracedCall) -> bool:
    """Whether the operator takes other numbers in the call's tensors, of which a trace keeps none, and gives
    results of the same sizes for them, which can be compared. The call is made on the CPU."""
    return _made_twice(call) is not None


def takes_other_numbers_apart(calls: Sequence[TracedCall]) -> list[bool]:
    """The same of each call, in processes of their own: numbers that an operator does not check may end
    one."""
    count = max(1, min(MOST_PROCESSES, len(os.sched_getaffinity(0)), len(calls) // FEWEST_CALLS))
    with ThreadPoolExecutor(count) as threads:
        parts = list(threads.map(_in_a_process, [calls[first::count] for first in range(count)]))
    return [parts[place % count][place // count] for place in range(len(calls))]


def _in_a_process(calls: Sequence[TracedCall]) -> list[bool]:
    """One after the other, in a new process where one has ended."""
    found: list[bool] = []
    lines = [json.dumps([call.operator, write_arguments(call)]) + "\n" for call in calls]
    with tempfile.TemporaryDirectory() as folder:
        file, answers = Path(folder) / "calls.jsonl", Path(folder) / "answers"
        file.write_text("".join(lines))
        while len(found) < len(calls):
            command = [sys.executable, "-m", "evaluators.suites.telling_calls", str(file), str(len(found))]
            with answers.open("wb") as out:
                subprocess.run(command, stdout=out, stderr=subprocess.DEVNULL, check=False)
            found += [each == "1" for each in answers.read_text()]
            if len(found) < len(calls):  # it has ended at the next one
                logger.info("%s ends the process", calls[len(found)].operator)
                found.append(False)
    return found


def tells(call: TracedCall) -> bool:
    """Whether the call takes other numbers, and gives something else than a constant or one of its inputs."""
    made = _made_twice(call)
    if made is None:
        return False
    before, found = made
    return is_random(call) or all(_tells(each, before) for each in found)


def _made_twice(call: TracedCall) -> tuple[list[torch.Tensor], list[torch.Tensor]] | None:
    """The tensors of the first of two calls with different numbers, and those of its results; None where one
    of them fails, or their results differ in size."""
    try:
        first, second = (_answers(call, seed) for seed in SEEDS)
    except Exception as error:  # an operator may raise anything
        logger.debug("%s: %s", call.operator, error)
        return None
    return first if is_random(call) or _sizes(first[1]) == _sizes(second[1]) else None


def _answers(call: TracedCall, seed: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The tensors of a call, as they were before, and those of its results. Raises if results cannot be
    compared: sparse ones, complex ones in half precision, those without an element."""
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


def _tells(output: torch.Tensor, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether an output has elements, of which not all are equal, and is none of the inputs. One element
    tells something where it is made of several."""
    import torch

    if not output.numel() or bool(output.isnan().all()):
        return False
    many = output.numel() > 1 or not any(each.numel() > 1 for each in inputs)
    if many and bool((output == output.flatten()[0]).all()):
        return False
    alike = (each.to(output.dtype) for each in inputs if each.shape == output.shape)
    return not any(torch.equal(each, output) for each in alike)


def main(arguments: Sequence[str]) -> int:
    """The process."""
    import torch

    torch.set_num_threads(1)
    for line in Path(arguments[0]).read_text().splitlines()[int(arguments[1]) :]:
        operator, text = json.loads(line)
        sys.stdout.write(str(int(takes_other_numbers(call_of(operator, text)))))
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
