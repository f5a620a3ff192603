"""The arguments that FACTO's operator specifications generate, as traced calls.

FACTO (github.com/meta-pytorch/FACTO) is not on PyPI. It is imported from a clone in the folder that the
environment variable FACTO_ROOT names. Its calls are stored, as a trace, in the user's cache folder.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from evaluators.records.problem import content_id
from evaluators.suites.informative_calls import is_informative
from evaluators.suites.op_samples import cached_calls
from evaluators.suites.suite import SuiteMissing
from evaluators.suites.traced.call import Device, TracedCall, Value
from evaluators.suites.traced.inputs import operator_of, takes_tensors
from evaluators.suites.traced.recording import call_of

logger = logging.getLogger(__name__)

ROOT = "FACTO_ROOT"
DATABASE = "facto/specdb/db.py"
MOST_TUPLES = 40
"""Argument tuples generated per operator."""
SEED = 0
LARGEST, SMALLEST = 1e6, 1e-30
"""Range of nonzero numbers among the arguments. Multiplying or comparing with larger ones tests little, and
with factors whose reciprocal is infinite PyTorch's own answers differ."""


def facto_calls() -> Sequence[TracedCall]:
    """The calls of every operator that has a specification. Raises SuiteMissing."""
    root = os.environ.get(ROOT, "")
    if not root:
        how = f"clone github.com/meta-pytorch/FACTO and set {ROOT} to its folder"
        raise SuiteMissing(f"FACTO is not available: {how}")
    database = Path(root).expanduser() / DATABASE
    try:
        text = database.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SuiteMissing(f"{ROOT}={root} is not a clone of FACTO: {error}") from error
    return cached_calls(f"facto-{content_id(text)}", partial(_made, Path(root).expanduser()))


def _made(root: Path) -> list[TracedCall]:
    import torch

    with _importable(root), torch.no_grad(), warnings.catch_warnings(action="ignore"):
        try:
            generating = import_module("facto.inputgen.argtuple.gen")
            settings = import_module("facto.inputgen.utils.config")
            randomness = import_module("facto.inputgen.utils.random_manager")
            specifications = import_module("facto.specdb.db").SpecDictDB
        except ImportError as error:
            raise SuiteMissing(f"{ROOT}={root}: FACTO cannot be imported: {error}") from error
        for each in (randomness.random_manager, randomness.seeded_random_manager):
            each.seed(SEED)
        config = partial(settings.TensorConfig, device="cpu", half_precision=True, transposed=True)
        generated = {
            f"aten.{name}": generating.ArgumentTupleGenerator(spec, config()).gen
            for name, spec in specifications.items()
        }
        return [call for name, gen in generated.items() for call in calls_of(name, gen())]


@contextmanager
def _importable(root: Path) -> Iterator[None]:
    sys.path.insert(0, str(root))
    try:
        yield
    finally:
        sys.path.remove(str(root))


def calls_of(
    operator: str, generated: Iterator[tuple[Sequence[Any], Mapping[str, Any], Mapping[str, Any]]]
) -> Iterator[TracedCall]:
    """The different calls of an operator with these arguments that it accepts with any numbers in its
    tensors: the format stores no numbers, and some specifications are wrong. Corner cases whose answer is a
    constant or one of the inputs are left out."""
    found: set[str] = set()
    try:
        for arguments, keywords, _ in islice(generated, MOST_TUPLES):
            call = _call(operator, arguments, keywords)
            if call is not None and repr(call) not in found:
                found.add(repr(call))
                yield call
    except Exception as error:  # a specification is code, and may raise anything
        logger.debug("%s has no more arguments: %s", operator, error)


def _call(operator: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> TracedCall | None:
    """The call; None if it cannot be written as text, is invalid, or does not test a kernel."""
    try:
        call = call_of(operator, arguments, keywords, "cpu")
        if any(map(_is_extreme, (*call.arguments, *call.keywords.values()))):
            return None
    except Exception as error:  # arguments of any kind, which the format may not support
        logger.debug("%s: %s", operator, error)
        return None
    return _placed(call) if is_informative(call) else None


def _placed(call: TracedCall) -> TracedCall:
    """The call, with an explicit device if no tensor determines it: `rand` without one runs on the CPU."""
    arguments = operator_of(call.operator)._schema.arguments
    takes_device = any(each.name == "device" and each.kwarg_only for each in arguments)
    if not takes_device or any(map(takes_tensors, arguments)) or call.keywords.get("device"):
        return call
    return replace(call, keywords={**call.keywords, "device": Device("cuda")})


def _is_extreme(value: Value) -> bool:
    if isinstance(value, tuple):
        return any(map(_is_extreme, value))
    return isinstance(value, int | float) and value != 0 and not SMALLEST <= abs(value) <= LARGEST
