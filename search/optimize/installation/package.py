"""Kernels into a model: writes the folder `optimized/`, which loads without this project.

The model's forward at each of its shapes becomes code: its calls in their order, with a kernel at each place
of its problem. What nobody reads is left out.
"""

from __future__ import annotations

import json
import operator
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluators.records.problem import Kernel
from search.optimize.extraction.fragments import Fragment, is_mutable
from search.optimize.extraction.graph import CaptureError, arguments_of
from search.optimize.extraction.readable import FIRST, SURE, is_first_alone, readable
from search.optimize.extraction.record import Extracted, Place
from search.optimize.extraction.whole import Whole

if TYPE_CHECKING:
    from torch import fx

PACKAGE = "optimized"
MANIFEST = "manifest.json"
RUNTIME = tuple(Path(__file__).with_name(name) for name in ("runtime.py", "kernel.py", "graphs.py"))
INIT = '''"""{model}, with kernels in the place of parts of its forward.

    from {package} import load

    model = load(model)  # the same model, with its weights; its own forward is the way back

The kernels run in eval mode, under torch.no_grad(), for inputs as in `manifest.json`; the model's own forward
runs otherwise. `type(model).plan.kernels` says how often each was called, `.fallbacks` why it was not.
"""

from pathlib import Path

from . import runtime
from .runtime import unload

__all__ = ["load", "unload"]


def load(model, without=(), as_graph=None):
    """The same model, which from now on runs the kernels, but those named in `without`. `as_graph`: launched
    together, as a CUDA graph; None: where that was faster."""
    return runtime.load(Path(__file__).parent, model, without, as_graph)
'''
PROJECT = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "{package}"
version = "0.1.0"
description = "A model with kernels in the place of parts of its forward"
requires-python = ">=3.11"
dependencies = ["torch>=2.11"]

[tool.setuptools]
packages = ["{package}"]
package-dir = {{{package} = "."}}

[tool.setuptools.package-data]
{package} = ["*.json", "*.pt", "README.md", "kernels/*.py", "references/*.py"]
"""
CALLS = ("call_function", "call_module")
FORWARD = "forward{}.py"
HEAD = '''"""The forward of {model}: its calls as PyTorch dispatches them, with kernels between them."""

import torch
from torch.nn import functional  # noqa: F401

aten = torch.ops.aten


def forward({arguments}):
'''


def write_package(
    folder: Path,
    wholes: Sequence[Whole],
    kernels: Mapping[str, Kernel],
    places: Mapping[Extracted, Sequence[Place]],
) -> None:
    """Writes `optimized/` into the folder, with the kernels by their problems' names, each at its places; one
    that is there is replaced. Raises OSError, and NoGraphError for a model whose arguments or results cannot
    be written down."""
    import torch

    place = folder / PACKAGE
    if place.exists():
        shutil.rmtree(place)
    (place / "kernels").mkdir(parents=True)
    (place / "references").mkdir()
    model, module = wholes[0].model, wholes[0].model.module
    name = model.name
    weights = dict([*module.named_parameters(), *module.named_buffers()])
    results: dict[Extracted, int] = {}
    used: set[str] = set()
    shapes, constants = [], []
    for number, whole in enumerate(wholes):
        here = {each: [one for one in own if one.shape == number] for each, own in places.items()}
        graph, own_results = with_kernels(whole, here)
        results |= own_results
        file = FORWARD.format(f"_{number + 1}" if len(wholes) > 1 else "")
        (place / file).write_text(_forward(graph, whole), encoding="utf-8")
        shapes.append({"name": whole.model.shape, "forward": file, **_interface(whole)})
        read = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
        constants.append({name: each for name, each in whole.graph.constants.items() if name in read})
        used |= read - {*whole.graph.constants}
    (place / "__init__.py").write_text(INIT.format(model=name, package=PACKAGE), encoding="utf-8")
    (place / "pyproject.toml").write_text(PROJECT.format(package=PACKAGE), encoding="utf-8")
    for each in RUNTIME:
        (place / each.name).write_text(each.read_text(encoding="utf-8"), encoding="utf-8")
    for extracted in places:
        source = kernels[extracted.name].source
        (place / "kernels" / f"{extracted.name}.py").write_text(source, encoding="utf-8")
        shutil.copy(folder / extracted.file, place / "references" / f"{extracted.name}.py")
    if any(constants):
        torch.save(constants, place / "constants.pt")
    manifest = {
        "shapes": shapes,
        "as_graph": False,
        "in_compiled": None,
        "own_in_compiled": False,
        "slower": {},
        "device": model.device,
        "weights": {name: [list(each.shape), _dtype(each)] for name, each in weights.items() if name in used},
        "modules": {name: type(each).__name__ for name, each in module.named_modules() if name},
        "kernels": [{"name": each.name, "results": results[each]} for each in places],
    }
    (place / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def set_way(
    folder: Path,
    *,
    as_graph: bool,
    in_compiled: Collection[str] | None,
    own_in_compiled: bool = False,
    slower: Mapping[str, Collection[str]] | None = None,
) -> None:
    """How the folder's package runs from now on: as a CUDA graph unless `load` is told otherwise; in compiled
    code with these kernels alone, None: with all, or by the model's own forward; outside of it without those
    that are `slower` (as in `Plan`)."""
    file = folder / PACKAGE / MANIFEST
    way = {
        "as_graph": as_graph,
        "in_compiled": None if in_compiled is None else list(in_compiled),
        "own_in_compiled": own_in_compiled,
        "slower": {**(slower or {})},
    }
    manifest = {**json.loads(file.read_text(encoding="utf-8")), **way}
    file.write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _forward(graph: fx.Graph, whole: Whole) -> str:
    """The file of the forward."""
    arguments = ["model", "kernels", "constants", "check", *(node.name for node in whole.graph.inputs)]
    text = "\n".join(f"    {line}" for line in _lines(graph, whole))
    return f"{HEAD.format(model=whole.model.title, arguments=', '.join(arguments))}{text}\n"


def _interface(whole: Whole) -> dict[str, Any]:
    import torch
    from torch.utils import _pytree as pytree

    leaves, structure = arguments_of(whole.model)
    tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
    values = [None if isinstance(each, torch.Tensor) else each for each in leaves]
    results = [each for each in whole.graph.leaves if not isinstance(each, torch.fx.Node)]
    try:
        json.dumps([values, results])
        return {
            "inputs": [[list(each.shape), _dtype(each), list(each.stride())] for each in tensors],
            "structure": pytree.treespec_dumps(structure),
            "values": values,
            "output": pytree.treespec_dumps(whole.graph.output),
        }
    except (TypeError, ValueError, NotImplementedError) as error:
        raise CaptureError(f"its arguments or results cannot be written down: {error}") from error


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def with_kernels(
    whole: Whole, places: Mapping[Extracted, Sequence[Place]]
) -> tuple[fx.Graph, dict[Extracted, int]]:
    """The model's graph with a module's call for each place of a kernel, without what nobody reads; and how
    many results each kernel has."""
    from torch import fx

    ends: dict[fx.Node, tuple[Extracted, Fragment]] = {}
    results: dict[Extracted, int] = {}
    for extracted, own in places.items():
        for place in own:
            fragment = whole.fragment(place)
            ends[fragment.members[-1]] = extracted, fragment
            results[extracted] = len(fragment.outputs)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    replaced: set[fx.Node] = set()
    for node in whole.graph.graph.nodes:
        copies[node] = graph.node_copy(node, lambda each: copies[each])
        if node in ends:
            extracted, fragment = ends[node]
            replaced.update(copies[each] for each in fragment.members)
            inputs = tuple(copies[each] for each in fragment.inputs)
            call = graph.call_module(extracted.name, inputs)
            _give(graph, call, fragment.outputs, copies)
    _drop_unread(graph, {copies[node] for node in whole.graph.reads}, replaced)
    return graph, results


def _give(graph: fx.Graph, call: fx.Node, outputs: Sequence[fx.Node], copies: dict[fx.Node, fx.Node]) -> None:
    """From here on the kernel's results are what the calls gave."""
    for number, node in enumerate(outputs):
        one = len(outputs) == 1
        copies[node] = call if one else graph.call_function(operator.getitem, (call, number))


def _drop_unread(graph: fx.Graph, reads: set[fx.Node], replaced: set[fx.Node]) -> None:
    """Erases what changes nothing and is read by nobody; of what a kernel has `replaced` also calls in place,
    which change memory of the fragment's own; of numbers that the model reads those that follow from no
    input: they are the same in every call."""
    follows: dict[fx.Node, bool] = {}
    for node in graph.nodes:
        begins = node.op == "placeholder" or _is_random(node)
        follows[node] = begins or any(follows[each] for each in node.all_input_nodes)
    for node in reversed(graph.nodes):
        if node.op in ("placeholder", "output") or node.users:
            continue
        changes = is_mutable(node) and node not in replaced
        if not (changes or _is_random(node) or (node in reads and follows[node])):
            graph.erase_node(node)


def _is_random(node: fx.Node) -> bool:
    from torch import Tag

    return Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _lines(graph: fx.Graph, whole: Whole) -> Iterator[str]:
    """The code of the graph; tensors are let go of after their last use."""
    expected = {node.name: value for node, value in whole.graph.reads.items()}
    names: dict[fx.Node, str] = {}
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        for each in node.all_input_nodes:
            last[each] = node
    for node in graph.nodes:
        if node.op == "placeholder":
            names[node] = node.name
        elif node.op == "get_attr":
            names[node] = _weight(str(node.target), whole)
        elif node.op == "output":
            listed = ", ".join(names[each] if each in names else repr(each) for each in node.args[0])
            yield f"return [{listed}]"
        else:
            yield from _call(node, names, expected)
        freed = [each for each in node.all_input_nodes if last[each] is node and each.op in CALLS]
        freed = [each for each in freed if not is_whole(each)]
        if freed and node.op != "output":
            yield f"del {', '.join(dict.fromkeys(names[each] for each in freed))}"


def _call(node: fx.Node, names: dict[fx.Node, str], expected: Mapping[str, Any]) -> Iterator[str]:
    names[node] = node.name
    if node.op == "call_module":
        inputs = ", ".join(names[each] for each in node.all_input_nodes)
        yield f'{node.name} = kernels["{node.target}"]({inputs})'
    elif node.target is operator.getitem:
        source, place = node.args
        if is_whole(source):  # type: ignore[arg-type]
            names[node] = names[source]  # type: ignore[index]
        else:
            yield f"{node.name} = {names[source]}[{place}]"  # type: ignore[index]
    elif node.name in expected:
        yield f"check({readable(node, names, SURE)}, {expected[node.name]!r})"
    else:
        yield f"{node.name} = {readable(node, names, SURE)}"


def is_whole(node: fx.Node) -> bool:
    """Whether the call's words give what others would take out of its results."""
    return str(node.target) in FIRST and str(node.target) in SURE and is_first_alone(node)


def _weight(name: str, whole: Whole) -> str:
    """The expression of a weight or constant."""
    from torch import nn

    if name in whole.graph.constants:
        return f'constants["{name}"]'
    text, module = "model", whole.model.module
    for part in name.split("."):
        if part.isdigit() and isinstance(module, nn.ModuleList | nn.Sequential):
            text += f"[{part}]"
        elif part.isidentifier():
            text += f".{part}"
        else:
            text = f'getattr({text}, "{part}")'
        module = getattr(module, part)
    return text
