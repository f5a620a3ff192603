"""The calls that PyTorch's own tests make of its operators (`torch.testing`'s `op_db`), as traced calls.

They take 20 seconds to make, and are kept, as a trace, in the user's cache folder.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from evaluators.records.problem import content_id
from evaluators.suites.random_operators import is_random
from evaluators.suites.suite import SuiteMissing
from evaluators.suites.telling_calls import takes_other_numbers_apart
from evaluators.suites.trace_recording import PLAIN, kind_of, recorded_calls
from evaluators.suites.traced_call import TracedCall
from evaluators.suites.traces import read_trace, write_trace
from evaluators.system.user_cache import cache_folder

logger = logging.getLogger(__name__)

DTYPES = ("float32", "float16", "bfloat16", "int64")
MOST_SAMPLES = 20
"""Of an operator, at a type: some have hundreds."""


def kept_calls() -> Sequence[TracedCall]:
    """The calls of `sampled_calls`, which are made once for each version of PyTorch. Raises SuiteMissing."""
    return made_once("opinfo", sampled_calls)


def made_once(name: str, make: Callable[[], Sequence[TracedCall]]) -> Sequence[TracedCall]:
    """What `make` returns, kept under this name for each version of PyTorch and of this package's sources.
    Raises what it raises."""
    import torch

    sources = content_id(*(each.read_text() for each in sorted(Path(__file__).parent.glob("*.py"))))
    file = cache_folder() / f"{name}-{torch.__version__}-{sources}.txt"
    if not file.exists():
        logger.warning("making the calls of operators/%s, once: up to a minute", name)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_trace(file, make())
    return read_trace(file).calls


def sampled_calls(dtypes: Sequence[str] = DTYPES, only: str = "") -> list[TracedCall]:
    """The calls, each once, that the samples of the operators come to: those that dispatch exactly one
    operator, and take other numbers. `only`: the name of one in `op_db`. They are made on the CPU, on
    small tensors. Raises SuiteMissing."""
    found: dict[str, TracedCall] = {}
    with _quietly_in_one_thread():
        for op in _operators(only):
            for dtype in dtypes:
                for call in _calls_of(op, dtype):
                    found.setdefault(f"{call.operator} {call.arguments} {call.keywords}", call)
    calls = list(found.values())
    takes = takes_other_numbers_apart(calls)
    return [call for call, does in zip(calls, takes, strict=True) if does or _computes_nothing(call)]


@contextmanager
def _quietly_in_one_thread() -> Iterator[None]:
    """More threads wait for one another longer than such small tensors take. And each sample begins with
    `torch.manual_seed`: of every kind of device that has not been used it keeps the call with the text of
    its stack, which took longer than all samples; as did the search of all frames for the test that asks,
    of which there is none."""
    import torch

    threads, seed, stack = torch.get_num_threads(), torch.manual_seed, inspect.stack
    torch.set_num_threads(1)
    inspect.stack = lambda context=1: []
    torch.manual_seed = torch.default_generator.manual_seed
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        torch.manual_seed, inspect.stack = seed, stack
        torch.set_num_threads(threads)


def _operators(only: str) -> Iterator[Any]:
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:  # what PyTorch's tests take besides
        raise SuiteMissing(f"{error}: pip install 'ideatree[operators]'") from error
    return (op for op in op_db if not only or op.name == only)


def _computes_nothing(call: TracedCall) -> bool:
    """Views and creation: the suite leaves them out, and says so."""
    return kind_of(call.operator) != PLAIN and not is_random(call)


def _calls_of(op: Any, dtype: str) -> Iterator[TracedCall]:
    import torch

    wanted = getattr(torch, dtype)
    if wanted not in op.supported_dtypes("cpu"):
        return
    try:
        samples = iter(op.sample_inputs("cpu", wanted, requires_grad=False))
        for _ in range(MOST_SAMPLES):
            sample = next(samples)
            made = recorded_calls(partial(op, sample.input, *sample.args, **sample.kwargs))
            if len(made) == 1:
                yield made[0]
    except StopIteration:
        return
    except Exception as error:  # a test's own generator, which may raise anything
        logger.debug("%s at %s has no more samples: %s", op.name, dtype, error)
