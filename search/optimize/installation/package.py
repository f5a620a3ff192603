"""Writes the folder `optimized/`: the model with kernels, which loads without Ideatree.

The model's forward at each input shape becomes code: its calls in order, with a kernel at each of the
kernel's places. Calls whose results are not read are dropped.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import operator
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluators.records.problem import Kernel
from search.optimize.extraction.fragments import Fragment, is_mutable, is_random
from search.optimize.extraction.graph import CaptureError, weights_of
from search.optimize.extraction.readable import FIRST, SURE, is_first_alone, readable
from search.optimize.extraction.record import ExtractedProblem, Place
from search.optimize.extraction.traced_model import TracedModel
from search.optimize.models.source import AlikeCall

if TYPE_CHECKING:
    import torch
    from torch import fx, nn

    from search.optimize.installation.dependence import Dependence

PACKAGE = "optimized"
MANIFEST = "manifest.json"
COPIED = (
    "installation/runtime.py",
    "installation/state.py",
    "installation/kernel.py",
    "installation/graphs.py",
    "models/templates.py",
)
RUNTIME = tuple(Path(__file__).parents[1] / each for each in COPIED)
INIT = '''"""{model}, with kernels in place of parts of its forward.

    from {package} import load

    model = load(model)  # the same model, with its weights; unload(model) restores its forward

The kernels run {mode}, for calls like those in `manifest.json`. Otherwise the
original forward runs. `type(model).plan.kernels` counts each kernel's calls, `.fallbacks` the original's by
reason.
"""

from pathlib import Path

from . import runtime
from .runtime import unload

__all__ = ["load", "unload"]


def load(model, without=(), as_graph=None):
    """Makes the model run the kernels, except those in `without`, and returns it. `as_graph`: run the forward
    as a CUDA graph; None: if that was measured to be faster."""
    return runtime.load(Path(__file__).parent, model, without, as_graph)
'''
PROJECT = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "{package}"
version = "0.1.0"
description = "A model with kernels in place of parts of its forward"
requires-python = ">=3.11"
dependencies = ["torch>=2.11"]

[tool.setuptools]
packages = ["{package}"]
package-dir = {{{package} = "."}}

[tool.setuptools.package-data]
{package} = ["*.json", "*.pt", "README.md", "kernels/*.py", "references/*.py"]
"""
MODES = {
    False: "in eval mode, under torch.no_grad()",
    True: "in training mode, with gradients, forward and backward",
}
"""In which mode the kernels run, by whether they are for training."""
CALLS = ("call_function", "call_module")
FORWARD = "forward{}.py"
ATTRIBUTES = "attributes.py"
HEAD = '''"""The forward of {model}: its calls as PyTorch dispatches them, with kernels in between."""

import torch
from torch.nn import functional  # noqa: F401

aten = torch.ops.aten


def forward({arguments}):
'''
SETS = "\n\ndef {}(model):\n{}"
ATTRIBUTES_HEAD = '''"""The plain attributes that the forward depends on; compiled code checks them."""


def attributes(model):
    return ('''


def write_package(
    folder: Path,
    traced_models: Sequence[TracedModel],
    kernels: Mapping[str, Kernel],
    places: Mapping[ExtractedProblem, Sequence[Place]],
) -> None:
    """Writes `optimized/` into the run folder, replacing an earlier one. `traced_models`: the model at each
    input shape; `kernels`: by problem; `places`: where each problem's kernel goes. Raises OSError, and
    CaptureError for a model whose forward leaves something behind that code cannot repeat."""
    import torch

    from search.optimize.installation.dependence import dependence_of

    place = folder / PACKAGE
    if place.exists():
        shutil.rmtree(place)
    (place / "kernels").mkdir(parents=True)
    (place / "references").mkdir()
    model, module = traced_models[0].model, traced_models[0].model.module
    name = model.name
    dependences: list[Dependence] = []
    results: dict[ExtractedProblem, int] = {}
    used: set[str] = set()
    frozen: set[str] = set()
    shapes, constants, calls = [], [], []
    for number, traced in enumerate(traced_models):
        here = {each: [one for one in own if one.shape == number] for each, own in places.items()}
        graph, own_results = with_kernels(traced, here)
        results |= own_results
        file = FORWARD.format(f"_{number + 1}" if len(traced_models) > 1 else "")
        needs = [dependence_of(each.model) for each in _calls(traced)]
        bodies = [_sets(each, traced) for each in needs]
        names = _function_names(bodies)
        code = [_forward(graph, traced), *(SETS.format(name, body) for body, name in names.items())]
        (place / file).write_text("".join(code), encoding="utf-8")
        shapes.append({"name": traced.model.shape, "forward": file, "output": traced.graph.output})
        calls += [
            {"shape": number, **_interface(call), "sets": names.get(body)}
            for call, body in zip(_calls(traced), bodies, strict=True)
        ]
        dependences += needs
        read = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
        constants.append({name: each for name, each in traced.graph.constants.items() if name in read})
        used |= read - {*traced.graph.constants}
        frozen |= {str(each.target) for each in traced.graph.undifferentiated if each.op == "get_attr"}
    (place / "__init__.py").write_text(
        INIT.format(model=name, package=PACKAGE, mode=MODES[model.backward]), encoding="utf-8"
    )
    (place / "pyproject.toml").write_text(PROJECT.format(package=PACKAGE), encoding="utf-8")
    for each in RUNTIME:
        (place / each.name).write_text(each.read_text(encoding="utf-8"), encoding="utf-8")
    for extracted in places:
        source = kernels[extracted.name].source
        (place / "kernels" / f"{extracted.name}.py").write_text(source, encoding="utf-8")
        shutil.copy(folder / extracted.file, place / "references" / f"{extracted.name}.py")
    if any(constants):
        torch.save(constants, place / "constants.pt")
    state = _state(module, dependences, used)
    (place / ATTRIBUTES).write_text(_attributes(dependences, traced_models[0]), encoding="utf-8")
    manifest = {
        "parameters": model.signature.parameters,
        "shapes": shapes,
        "calls": calls,
        "as_graph": False,
        "in_compiled": None,
        "own_in_compiled": False,
        "slower": {},
        "device": model.device,
        "trains": model.backward,
        "autocast": f"{model.device} {model.autocast}" if model.autocast else "",
        "frozen": sorted(frozen & used),
        **state,
        "kernels": [{"name": each.name, "results": results[each]} for each in places],
    }
    (place / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _state(module: nn.Module, dependences: Sequence[Dependence], used: Collection[str]) -> dict[str, Any]:
    """The fields of `RecordedState`; `used`: names of the weights that the code reads."""
    from search.optimize.models.templates import hooks_of

    attributes: dict[str, dict[str, str]] = {}
    for each in dependences:
        for path, own in each.attributes.items():
            attributes.setdefault(path, {}).update(own)
    modules = dict(module.named_modules(remove_duplicate=False))
    names = {tensor: name for name, tensor in weights_of(module).items() if name in used}
    again = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    return {
        "modules": {name: type(each).__name__ for name, each in modules.items() if name},
        "hooks": hooks_of(module),
        "attributes": attributes,
        "filled": sorted({name for each in dependences for name in each.filled}),
        "weights": {
            name: [list(each.shape), _dtype(each), list(each.stride()), each.device.type]
            for each, name in names.items()
        },
        "tied": {
            name: names[each]
            for name, each in again
            if each in names and name != names[each] and name.rpartition(".")[0] in modules
        },
    }


def _attributes(dependences: Sequence[Dependence], traced: TracedModel) -> str:
    """A file with a function that reads the plain attributes that the forward depends on; `torch.compile`
    makes guards of them."""
    names = [name for name, _ in traced.model.module.named_modules() if name]
    plain = dict.fromkeys(
        [*((name, ".training") for name in names), *(one for each in dependences for one in each.plain)]
    )
    lines = [f"        {_weight(name, traced) if name else 'model'}{rest}," for name, rest in plain]
    return "\n".join([ATTRIBUTES_HEAD, *lines, "    )", ""])


def _sets(dependence: Dependence, traced: TracedModel) -> str:
    """Lines that set the attributes that the forward sets; "" where there are none. Raises CaptureError for
    values that cannot be written as code."""
    lines = []
    for path, name, value in dependence.sets:
        where = f"{path}.{name}" if path else name
        if (text := _literal(value)) is None:
            raise CaptureError(f"its forward sets the attribute {where} to {value!r}")
        lines.append(f"    {_weight(where, traced)} = {text}\n")
    return "".join(lines)


def _function_names(bodies: Sequence[str]) -> dict[str, str]:
    """A name for each function that sets attributes, by its lines: ways of calling may set different ones."""
    different = dict.fromkeys(filter(None, bodies))
    return {body: f"sets_{number + 1}" if number else "sets" for number, body in enumerate(different)}


def _literal(value: Any) -> str | None:
    """The expression of a plain value; None for others."""
    import torch

    if isinstance(value, list | tuple):
        texts = [_literal(each) for each in value]
        if None in texts:
            return None
        listed = "".join(f"{text}, " for text in texts)
        kinds = {list: "[{}]", tuple: "({})", torch.Size: "torch.Size(({}))"}
        return kinds[type(value)].format(listed) if type(value) in kinds else None
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    plain = value is None or type(value) in (bool, int, str, bytes, torch.dtype)
    return repr(value) if plain or (type(value) is float and math.isfinite(value)) else None


def set_way(
    folder: Path,
    *,
    as_graph: bool,
    in_compiled: Collection[str] | None,
    own_in_compiled: bool = False,
    slower: Mapping[str, Collection[str]] | None = None,
) -> None:
    """Sets how the package runs by default: as a CUDA graph or not; in compiled code with these kernels
    (None: all) or by the original forward; elsewhere without the kernels in `slower` (see `ForwardPlan`)."""
    file = folder / PACKAGE / MANIFEST
    way = {
        "as_graph": as_graph,
        "in_compiled": None if in_compiled is None else list(in_compiled),
        "own_in_compiled": own_in_compiled,
        "slower": {**(slower or {})},
    }
    manifest = {**json.loads(file.read_text(encoding="utf-8")), **way}
    file.write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _forward(graph: fx.Graph, traced: TracedModel) -> str:
    """The source of a forward file."""
    arguments = ["model", "kernels", "constants", "check", *(node.name for node in traced.graph.inputs)]
    text = "\n".join(f"    {line}" for line in _lines(graph, traced))
    return f"{HEAD.format(model=traced.model.title, arguments=', '.join(arguments))}{text}\n"


def load_package(folder: Path) -> Any:
    """Imports the folder's `optimized/` under a unique name, because a process may load several."""
    file = folder / PACKAGE / "__init__.py"
    name = f"{PACKAGE}_{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[str(file.parent)])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _calls(traced: TracedModel) -> list[AlikeCall]:
    """The ways of calling the model that run its code at this shape."""
    model = traced.model
    return [AlikeCall(model=model, passed=range(len(model.call()[1]))), *model.alike]


def _interface(call: AlikeCall) -> dict[str, Any]:
    """How the runtime knows a way of calling again."""
    template, tensors = call.model.call()
    return {
        "template": template,
        "inputs": _kinds(tensors),
        "passed": [*call.passed],
        "filled": [*call.filled.items()],
        "frozen": [number for number, each in enumerate(tensors) if not each.requires_grad]
        if call.model.backward
        else [],
    }


def _kinds(tensors: Sequence[torch.Tensor]) -> list[list[Any]]:
    """The shape, dtype, strides and kind of device of each tensor."""
    return [[list(each.shape), _dtype(each), list(each.stride()), each.device.type] for each in tensors]


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def with_kernels(
    traced: TracedModel, places: Mapping[ExtractedProblem, Sequence[Place]]
) -> tuple[fx.Graph, dict[ExtractedProblem, int]]:
    """The model's graph with a module call at each kernel's places, without unread calls; and the number of
    results of each kernel."""
    from torch import fx

    ends: dict[fx.Node, tuple[ExtractedProblem, Fragment]] = {}
    results: dict[ExtractedProblem, int] = {}
    for extracted, own in places.items():
        for place in own:
            fragment = traced.fragment(place)
            ends[fragment.members[-1]] = extracted, fragment
            results[extracted] = len(fragment.outputs)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    replaced: set[fx.Node] = set()
    for node in traced.graph.graph.nodes:
        copies[node] = graph.node_copy(node, lambda each: copies[each])
        if node in ends:
            extracted, fragment = ends[node]
            replaced.update(copies[each] for each in fragment.members)
            inputs = tuple(copies[each] for each in fragment.inputs)
            call = graph.call_module(extracted.name, inputs)
            _use_results(graph, call, fragment.outputs, copies)
    constants = {*traced.graph.constants}
    _drop_unread(graph, {copies[node] for node in traced.graph.reads}, replaced, constants)
    return graph, results


def _use_results(
    graph: fx.Graph, call: fx.Node, outputs: Sequence[fx.Node], copies: dict[fx.Node, fx.Node]
) -> None:
    """Makes later nodes read the kernel's results instead of the replaced calls'."""
    for number, node in enumerate(outputs):
        one = len(outputs) == 1
        copies[node] = call if one else graph.call_function(operator.getitem, (call, number))


def _drop_unread(
    graph: fx.Graph, reads: set[fx.Node], replaced: set[fx.Node], constants: Collection[str]
) -> None:
    """Erases unread calls without side effects. Among the calls that a kernel `replaced`, this includes
    in-place calls, because they only change memory of the fragment; among `reads` of numbers, those that
    depend on no input and no weight, because they never change."""
    follows: dict[fx.Node, bool] = {}
    for node in graph.nodes:
        weight = node.op == "get_attr" and str(node.target) not in constants
        begins = node.op == "placeholder" or weight or is_random(node)
        follows[node] = begins or any(follows[each] for each in node.all_input_nodes)
    for node in reversed(graph.nodes):
        if node.op in ("placeholder", "output") or node.users:
            continue
        changes = is_mutable(node) and node not in replaced
        if not (changes or is_random(node) or (node in reads and follows[node])):
            graph.erase_node(node)


def _lines(graph: fx.Graph, traced: TracedModel) -> Iterator[str]:
    """The lines of the forward's code; each tensor is deleted after its last use."""
    expected = {node.name: value for node, value in traced.graph.reads.items()}
    plain = {node.name for node in traced.graph.without_gradients}
    names: dict[fx.Node, str] = {}
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        for each in node.all_input_nodes:
            last[each] = node
    for node in graph.nodes:
        if node.op == "placeholder":
            names[node] = node.name
        elif node.op == "get_attr":
            names[node] = _weight(str(node.target), traced)
        elif node.op == "output":
            listed = ", ".join(names[each] if each in names else repr(each) for each in node.args[0])
            yield f"return [{listed}]"
        else:
            head = "with torch.no_grad(): " if node.name in plain else ""
            yield from (head + line for line in _call(node, names, expected))
        freed = [each for each in node.all_input_nodes if last[each] is node and each.op in CALLS]
        freed = [each for each in freed if not _is_first_result(each)]
        if freed and node.op != "output":
            yield f"del {', '.join(dict.fromkeys(names[each] for each in freed))}"


def _call(node: fx.Node, names: dict[fx.Node, str], expected: Mapping[str, Any]) -> Iterator[str]:
    names[node] = node.name
    if node.op == "call_module":
        inputs = ", ".join(names[each] for each in node.all_input_nodes)
        yield f'{node.name} = kernels["{node.target}"]({inputs})'
    elif node.target is operator.getitem:
        source, place = node.args
        if _is_first_result(source):  # type: ignore[arg-type]
            names[node] = names[source]  # type: ignore[index]
        else:
            yield f"{node.name} = {names[source]}[{place}]"  # type: ignore[index]
    elif node.name in expected:
        yield f"check({readable(node, names, SURE)}, {expected[node.name]!r})"
    else:
        yield f"{node.name} = {readable(node, names, SURE)}"


def _is_first_result(node: fx.Node) -> bool:
    """Whether the call is written so that it returns its first result alone."""
    return str(node.target) in FIRST and str(node.target) in SURE and is_first_alone(node)


def _weight(name: str, traced: TracedModel) -> str:
    """The expression of a weight or constant."""
    from torch import nn

    if name in traced.graph.constants:
        return f'constants["{name}"]'
    text, module = "model", traced.model.module
    for part in name.split("."):
        if part.isdigit() and isinstance(module, nn.ModuleList | nn.Sequential):
            text += f"[{part}]"
        elif part.isidentifier():
            text += f".{part}"
        else:
            text = f'getattr({text}, "{part}")'
        module = getattr(module, part)
    return text
