"""The operator calls of PyTorch's own tests (`torch.testing`'s `op_db`), as traced calls.

Generating them takes 20 seconds, so they are stored, as a trace, in the user's cache folder.
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
from evaluators.suites.informative_calls import accept_other_numbers
from evaluators.suites.random_operators import is_random
from evaluators.suites.suite import SuiteMissing
from evaluators.suites.traced.call import TracedCall
from evaluators.suites.traced.files import read_trace, write_trace
from evaluators.suites.traced.recording import PLAIN, kind_of, recorded_calls
from evaluators.system.user_cache import cache_folder

logger = logging.getLogger(__name__)

DTYPES = ("float32", "float16", "bfloat16", "int64")
MOST_SAMPLES = 20
"""Samples per operator and type; some operators have hundreds."""


def opinfo_calls() -> Sequence[TracedCall]:
    """The calls of `sampled_calls`, cached. Raises SuiteMissing."""
    return cached_calls("opinfo", sampled_calls)


def cached_calls(name: str, make: Callable[[], Sequence[TracedCall]]) -> Sequence[TracedCall]:
    """The result of `make`, cached under this name for each version of PyTorch and of this package's sources.
    Raises what `make` raises."""
    import torch

    sources = content_id(*(each.read_text() for each in sorted(Path(__file__).parent.glob("*.py"))))
    file = cache_folder() / f"{name}-{torch.__version__}-{sources}.txt"
    if not file.exists():
        logger.warning("generating the calls of operators/%s; takes up to a minute, once", name)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_trace(file, make())
    return read_trace(file).calls


def sampled_calls(dtypes: Sequence[str] = DTYPES, only: str = "") -> list[TracedCall]:
    """The different calls of the operators' samples that dispatch exactly one operator and accept any
    numbers. `only`: the name of a single operator in `op_db`. The samples run on the CPU with small tensors.
    Raises SuiteMissing."""
    found: dict[str, TracedCall] = {}
    with _quietly_in_one_thread():
        for op in _operators(only):
            for dtype in dtypes:
                for call in _calls_of(op, dtype):
                    found.setdefault(f"{call.operator} {call.arguments} {call.keywords}", call)
    calls = list(found.values())
    accepted = accept_other_numbers(calls)
    return [call for call, good in zip(calls, accepted, strict=True) if good or _computes_nothing(call)]


@contextmanager
def _quietly_in_one_thread() -> Iterator[None]:
    """A context that speeds up generating samples. With several threads, synchronisation takes longer than
    the work on such small tensors. Each sample calls `torch.manual_seed`, which records the text of its stack
    for every kind of device not yet used, and searches all stack frames for a running test; each took longer
    than all samples."""
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
    except ImportError as error:  # a package that only PyTorch's tests need
        raise SuiteMissing(f"{error}: run pip install -e '.[operators]' in Ideatree's clone") from error
    return (op for op in op_db if not only or op.name == only)


def _computes_nothing(call: TracedCall) -> bool:
    """Whether it is a view or creation, which the suite leaves out and reports."""
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
