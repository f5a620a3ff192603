"""An operator, its shapes and the kernels for each, and the operators of `benchmarks/operators.py` itself.
Those of its other sets are in `training_cases` and `transformer_cases`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evaluators.app.command import build, compose_config
from evaluators.evaluate.__main__ import EvaluateConfig
from evaluators.records.problem import Kernel, Problem
from evaluators.reference.loading import load_problem
from kernel_library.catalogue.best import fitting_entries
from kernel_library.catalogue.entry import Entry

PEERS = Path(__file__).parent / "peers"
COMPILE = "compile"
COMPILED = """

class ModelNew(Model):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        import torch._inductor.config
        torch._inductor.config.compile_threads = 1
        self.compile()
"""
HALVES, FLOATS = ("float16", "bfloat16"), ("float32", "float16", "bfloat16")
WIDTHS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
CLASSES = (1000, 10000, 32000, 32768, 50257, 65536, 100352, 128256, 151936, 256000)
CONVOLUTIONS = (  # in_channels, out_channels, height, kernel_size, stride, padding
    (3, 96, 224, 11, 4, 2),
    (3, 64, 224, 7, 2, 3),
    (3, 64, 224, 3, 1, 1),
    (64, 64, 56, 3, 1, 1),
    (64, 64, 56, 1, 1, 0),
    (64, 256, 56, 1, 1, 0),
    (128, 128, 56, 3, 2, 1),
    (128, 128, 28, 3, 1, 1),
    (256, 256, 14, 3, 1, 1),
    (512, 512, 7, 3, 1, 1),
)


Sizes = dict[str, int]
Shapes = Callable[[Sizes], Sequence[Sequence[int]]]
"""The shapes of tensors for such sizes."""


@dataclass(frozen=True)
class Operator:
    """One of the library's by its `op`, the problem that it is measured on, and its shapes, as that problem's
    sizes; `inputs` are the shapes of the first inputs, by which a kernel is chosen, and `weights` those of
    the weights that tell more about a call. `around` is source that replaces `Model` by one that calls it;
    the same is done to the kernels' `ModelNew`. Its peers are in the folder of its `set`."""

    op: str
    problem: str
    shapes: tuple[Sizes, ...]
    inputs: Shapes
    dtypes: tuple[str, ...] = FLOATS
    weights: Shapes = lambda of: ()
    around: str = ""
    set: str = "operators"

    @property
    def backward(self) -> bool:
        """Whether both passes are measured."""
        return self.set == "training"

    def cases(self, device: str) -> Iterator[Case]:
        """All its cases."""
        for dtype in self.dtypes:
            for sizes in self.shapes:
                yield Case(operator=self, sizes=sizes, dtype=dtype, device=device)


@dataclass(frozen=True)
class Case:
    """An operator at one shape and type."""

    operator: Operator
    sizes: Sizes
    dtype: str
    device: str

    @property
    def name(self) -> str:
        """The operator, its sizes, and the type."""
        sizes = " ".join(f"{name}={size}" for name, size in self.sizes.items())
        return f"{self.operator.op} {sizes} {self.dtype}"

    def to_problem(self) -> Problem:
        """The problem for all kernels; it allows libraries, because peers call them."""
        sizes = [f"problem.sizes.{name}={size}" for name, size in self.sizes.items()]
        overrides = [f"problem={self.operator.problem}", f"problem.dtype={self.dtype}", *sizes]
        config = compose_config(EvaluateConfig, [*overrides, "kernel=none"])
        problem: Problem = build(config.problem, device=self.device)
        return replace(
            problem,
            source=problem.source + self.operator.around,
            libraries="any",
            backward=self.operator.backward,
            cases=(),
        )

    @property
    def shapes(self) -> Sequence[Sequence[int]]:
        """The shapes of the first inputs, and of the weights that identify a call."""
        return [*self.operator.inputs(self.sizes), *self.operator.weights(self.sizes)]

    def ours(self, entries: Sequence[Entry], architecture: str) -> dict[str, Kernel]:
        """The library's kernels for it, by the entries' ids: those that fit an operator's call; of the other
        sets all that were measured on the operator's problem, in training those for its inputs."""
        of, inputs = self.operator, self.operator.inputs(self.sizes)
        if of.set == "operators":
            fitting = fitting_entries(entries, of.op, inputs, self.dtype, architecture)
            return {each.id: each.kernel for each in fitting}
        reference, around = load_problem(of.problem).source, of.around.replace("Model", "ModelNew")
        some = [replace(each, op=of.op) for each in entries if reference in sources_of(each, of.backward)]
        if of.backward:
            some = fitting_entries(some, of.op, inputs, self.dtype, architecture, backward=True)
        else:
            some = [each for each in some if self.dtype in each.dtypes and architecture in each.architectures]
        return {each.id: replace(each.kernel, source=f"{each.kernel.source}{around}") for each in some}

    def peers(self, names: Sequence[str], problem: Problem) -> dict[str, Kernel]:
        """The kernels for the case of those peers that have one."""
        known = peers_of(self.operator.set, self.operator.op)
        known[COMPILE] = Kernel(source=problem.source + COMPILED, language="cpp")
        return {name: known[name] for name in names if name in known}


def peers_of(set: str, op: str) -> dict[str, Kernel]:
    """Other people's kernels for an operator, by the name of their project."""
    files = sorted((PEERS / set / op).glob("*.py"))
    return {file.stem: Kernel(source=file.read_text(), language="cpp") for file in files}


def sources_of(entry: Entry, backward: bool) -> list[str]:
    """The references on which an entry was measured, with its backward pass or without."""
    return [each.problem.source for each in entry.measurements if each.problem.backward is backward]


def family(
    set: str,
    op: str,
    problem: str,
    names: str,
    shapes: dict[str, Sequence[Sequence[int]]],
    inputs: Shapes,
    around: str = "",
    weights: Shapes = lambda of: (),
) -> list[Operator]:
    """The operators of a family, one per dtype: `shapes` has the values of the sizes with these `names`, by
    dtype."""
    return [
        Operator(
            op=op,
            problem=problem,
            shapes=tuple(dict(zip(names.split(), each, strict=True)) for each in values),
            inputs=inputs,
            dtypes=(dtype,),
            weights=weights,
            around=around,
            set=set,
        )
        for dtype, values in shapes.items()
    ]


def cases_of(families: Sequence[Operator], device: str, largest: Sizes) -> list[Case]:
    """The cases of all families; on a CPU with sizes of at most `largest`, so that some are the same."""

    def small(sizes: Iterable[tuple[str, int]]) -> Sizes:
        return {name: min(size, largest.get(name, size)) for name, size in sizes}

    found = [case for each in families for case in each.cases(device)]
    if device == "cpu":
        found = [replace(each, sizes=small(each.sizes.items())) for each in found]
    return list({each.name: each for each in found}.values())


def rows_of(elements: int, widths: Sequence[int], rows: str, columns: str) -> tuple[Sizes, ...]:
    """For each width, as many rows as give that number of elements."""
    return tuple({rows: max(8, elements // width // 8 * 8), columns: width} for width in widths)


OPERATORS = (
    Operator(
        "softmax",
        "level1/softmax",
        rows_of(2**26, WIDTHS, "batch", "features"),
        lambda of: [(of["batch"], of["features"])],
    ),
    *(
        Operator(
            op,
            f"library/{problem}",
            rows_of(2**26, WIDTHS, "rows", "features"),
            lambda of: [(of["rows"], of["features"])],
        )
        for op, problem in (("layernorm", "layernorm"), ("rmsnorm", "rmsnorm"), ("sum", "sum_rows"))
    ),
    Operator(
        "cross_entropy",
        "library/cross_entropy",
        rows_of(2**27, CLASSES, "rows", "classes"),
        lambda of: [(of["rows"], of["classes"])],
    ),
    Operator(
        "matmul",
        "level1/matmul",
        tuple({"size": size} for size in (512, 768, 1024, 1536, 2048, 3072, 4096, 5120, 6144, 8192)),
        lambda of: [(of["size"], of["size"])] * 2,
    ),
    Operator(
        "attention",
        "library/attention",
        tuple(
            {"batch": 2**14 // length, "heads": 2048 // size, "length": length, "head_size": size}
            for length in (512, 1024, 2048, 4096, 8192)
            for size in (64, 96, 128)
        ),
        lambda of: [(of["batch"], of["heads"], of["length"], of["head_size"])] * 3,
        HALVES,
    ),
    Operator(
        "rotary",
        "library/rotary",
        tuple(
            {"batch": 2**13 // length, "heads": 4096 // size, "length": length, "head_size": size}
            for length in (512, 1024, 2048, 4096, 8192)
            for size in (64, 128)
        ),
        lambda of: [
            (of["batch"], of["heads"], of["length"], of["head_size"]),
            *[(of["length"], of["head_size"] // 2)] * 2,
        ],
    ),
    Operator(
        "swiglu",
        "library/swiglu",
        tuple(
            {"tokens": tokens, "features": features, "hidden": hidden}
            for features, hidden in ((1024, 2816), (2048, 5632), (3072, 8192), (4096, 11008), (4096, 14336))
            for tokens in (2048, 8192)
        ),
        lambda of: [(of["tokens"], of["features"])],
    ),
    Operator(
        "conv2d",
        "level1/conv2d",
        tuple(
            {
                "batch": 64,
                "in_channels": channels,
                "out_channels": out,
                "height": height,
                "width": height,
                "kernel_size": kernel,
                "stride": stride,
                "padding": padding,
            }
            for channels, out, height, kernel, stride, padding in CONVOLUTIONS
        ),
        lambda of: [(of["batch"], of["in_channels"], of["height"], of["width"])],
        weights=lambda of: [(of["out_channels"], of["in_channels"], of["kernel_size"], of["kernel_size"])],
    ),
)


def operator_cases(device: str) -> list[Case]:
    """The cases of all operators."""
    return [case for each in OPERATORS for case in each.cases(device)]
