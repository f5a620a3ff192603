"""Writes references: a part of the model's code, with inputs distributed like the model's tensors."""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evaluators.reference.inputs.strided_layouts import clone
from evaluators.reference.loading import load_module
from search.optimize.extraction.distributions import (
    DRAWN,
    STRIDED,
    TensorDistribution,
    dense,
    distribution_of,
    strides_of,
)
from search.optimize.extraction.fragments import Fragment, NoFragmentError
from search.optimize.extraction.graph import run as run_graph
from search.optimize.extraction.readable import WORDS
from search.optimize.extraction.record import Place
from search.optimize.extraction.traced_model import TracedModel
from search.optimize.profiling.record import Target, site_patterns

if TYPE_CHECKING:
    import torch
    from torch import fx


@dataclass(frozen=True, kw_only=True)
class FragmentSample:
    """A fragment at one place, with its input and output tensors in a run of the model."""

    place: Place
    fragment: Fragment
    inputs: Sequence[torch.Tensor]
    outputs: Sequence[torch.Tensor]


def reference_of(
    target: Target, own: Sequence[tuple[Place, Fragment]], traced_models: Sequence[TracedModel]
) -> tuple[str, bool]:
    """The reference for fragments with identical code, and whether it reproduces the model's tensors bit for
    bit. Raises NoFragmentError where the tensors differ, or its inputs cannot be drawn."""
    samples = _samples(own, traced_models)
    try:
        draws = [distribution_of(each) for each in zip(*(one.inputs for one in samples), strict=True)]
    except ValueError as error:
        raise NoFragmentError(str(error)) from error
    off = math.inf
    text = ""
    for body in (samples[0].fragment.code(WORDS), samples[0].fragment.code({})):
        text = _text(target, samples, body, draws, traced_models[0].model.name)
        off = max(_distance(text, each) for each in samples)
        if off == 0:
            return text, True
    if off > 1:
        raise NoFragmentError(
            f"its reference differs from the model's tensors ({off:.3g} times the tolerance)"
        )
    return text, False


def _samples(
    own: Sequence[tuple[Place, Fragment]], traced_models: Sequence[TracedModel]
) -> list[FragmentSample]:
    tensors: dict[fx.Node, torch.Tensor] = {}
    for shape in dict.fromkeys(place.shape for place, _ in own):
        here = [each for place, each in own if place.shape == shape]
        wanted = [node for each in here for node in (*each.inputs, *each.outputs)]
        tensors |= run_graph(traced_models[shape].graph, traced_models[shape].model, wanted)
    return [
        FragmentSample(
            place=place,
            fragment=each,
            inputs=[tensors[node] for node in each.inputs],
            outputs=[tensors[node] for node in each.outputs],
        )
        for place, each in own
    ]


def _distance(text: str, sample: FragmentSample) -> float:
    """How far the reference is from the model's tensors: 0 if bit-identical, up to 1 within the tolerance for
    another order of summation, infinite if they cannot be compared."""
    import torch

    try:
        with torch.no_grad():
            found = load_module(text, {}).Model()(*map(clone, sample.inputs))
    except Exception:  # generated code may raise anything; it is not used then
        return math.inf
    found = found if isinstance(found, tuple) else (found,)
    return max(_off(*pair) for pair in zip(found, sample.outputs, strict=True))


def _off(found: torch.Tensor, wanted: torch.Tensor) -> float:
    import torch

    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return math.inf
    if torch.equal(found, wanted):
        return 0.0
    if not torch.equal(found.isnan(), wanted.isnan()):
        return math.inf
    ours, theirs = found.nan_to_num().double(), wanted.nan_to_num().double()
    scale = float(theirs.abs().max()) * 8 * torch.finfo(wanted.dtype).eps
    off = float((ours - theirs).abs().max())
    return off / scale if scale else (0.0 if off == 0 else math.inf)


def _text(
    target: Target,
    samples: Sequence[FragmentSample],
    body: Sequence[str],
    draws: Sequence[TensorDistribution],
    model: str,
) -> str:
    sites = site_patterns([each.place.site for each in samples])
    where = ", ".join(f"{site} x{count}" if count > 1 else site for site, count in sites.items())
    calls = f"{len(samples)} calls" if len(samples) > 1 else "one call"
    shapes = len({each.place.shape for each in samples})
    forward = "a forward" if shapes == 1 else f"forwards at {shapes} shapes of its inputs"
    docstring = textwrap.fill(
        f"{target.name} of {model}: {calls} in {forward}, at {where}. The inputs are distributed like the "
        "model's tensors.",
        100,
    )
    names = samples[0].fragment.names
    cases = _cases(samples)
    drawn = [
        draw.code(name.upper(), f"{name.upper()}_STRIDES" if f"{name.upper()}_STRIDES" in cases[0][0] else "")
        for draw, name in zip(draws, names, strict=True)
    ]
    code = textwrap.indent("\n".join(body), " " * 8)
    functional = "from torch.nn import functional\n" if "functional." in code else ""
    aten = "aten = torch.ops.aten\n" if "aten." in code else ""
    globals_ = [f"{name} = {size}" for name, size in cases[0][0].items()]
    floating = {each.dtype for each in draws if "float" in each.dtype}
    globals_ += ["KEEPS_TYPES = True"] if len(floating) > 1 else []
    listed = "".join(f"        {each},\n" for each in drawn)
    parts = [
        f'"""{docstring}"""\n\nimport torch\nfrom torch import nn\n{functional}\n{aten}'
        + "\n".join(globals_),
        f"class Model(nn.Module):\n    def forward(self, {', '.join(names)}):\n{code}",
        f"def get_inputs():\n    return [\n{listed}    ]",
        "def get_init_inputs():\n    return []",
        *([_get_cases(cases)] if len(cases) > 1 else []),
        *([DRAWN.rstrip()] if any("drawn(" in each for each in drawn) else []),
        *([STRIDED.rstrip()] if any("strided(" in each for each in drawn) else []),
    ]
    return "\n\n\n".join(parts) + "\n"


def _cases(samples: Sequence[FragmentSample]) -> list[tuple[dict[str, tuple[int, ...]], float]]:
    """The sizes of each case with its time: the inputs' shapes, and the strides of inputs whose layout
    differs between cases. Of samples with the same shapes the first counts."""
    by_shapes: dict[tuple[tuple[int, ...], ...], list[FragmentSample]] = defaultdict(list)
    for each in samples:
        by_shapes[tuple(tuple(one.shape) for one in each.inputs)].append(each)
    firsts = [own[0].inputs for own in by_shapes.values()]
    cases = []
    for shapes, own in by_shapes.items():
        sizes: dict[str, tuple[int, ...]] = {}
        for number, name in enumerate(samples[0].fragment.names):
            sizes[name.upper()] = shapes[number]
            if len({strides_of(inputs[number]) for inputs in firsts}) > 1:
                sizes[f"{name.upper()}_STRIDES"] = strides_of(own[0].inputs[number]) or dense(shapes[number])
        cases.append((sizes, sum(each.place.time_ms for each in own)))
    return cases


def _get_cases(cases: Sequence[tuple[dict[str, tuple[int, ...]], float]]) -> str:
    """The source of `get_cases`, with cases weighted by their time."""
    total_ms = sum(time_ms for _, time_ms in cases)
    rows = ""
    for sizes, time_ms in cases:
        named = ", ".join(f'"{name}": {size}' for name, size in sizes.items())
        rows += f'        {{"sizes": {{{named}}}, "weight": {time_ms / total_ms:.4f}}},\n'
    return f"def get_cases():\n    return [\n{rows}    ]"
