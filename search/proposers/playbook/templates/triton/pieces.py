"""Helpers that the Triton templates share: kernel functions with constants, sizes, limits."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence

from search.proposers.playbook.move import Knobs

IMPORTS = ("import triton", "import triton.language as tl")
SHARED_BYTES = 227 * 1024
"""Shared memory that one block may use on Hopper."""
INT32_LIMIT = 2**31

PROCESSORS = '''
@functools.cache
def processors(device):
    """How many multiprocessors the GPU has."""
    if device.type != "cuda":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count
'''


def number(knobs: Knobs, name: str) -> int:
    """An integer knob."""
    return int(knobs[name])


def ceil_div(count: int, block: int) -> int:
    """The number of blocks that cover `count`."""
    return -(-count // block)


def round_up(count: int, multiple: int) -> int:
    """`count`, rounded up to a multiple."""
    return ceil_div(count, multiple) * multiple


def power_of_two(count: int) -> int:
    """`count`, rounded up to a power of two, which `tl.arange` needs."""
    return 1 << max(0, count - 1).bit_length()


def powers(count: int, smallest: int = 16) -> list[tuple[int, int]]:
    """`count`, rounded up to `smallest`, as powers of two: (start, width), widest first."""
    found = []
    start, rest = 0, round_up(count, smallest)
    while rest:
        width = 1 << (rest.bit_length() - 1)
        found.append((start, width))
        start, rest = start + width, rest - width
    return found


def wide(name: str, elements: int) -> str:
    """`name` as an index into a tensor of `elements` elements: in 64 bits if 32 are too few."""
    return f"{name}.to(tl.int64)" if elements >= INT32_LIMIT else name


def kernel(
    name: str,
    arguments: Sequence[str],
    doc: str,
    body: str,
    constants: Mapping[str, int | float],
) -> str:
    """A Triton function with those of the constants that its body names."""
    body = textwrap.dedent(body).strip("\n")
    used = [f"{key}: tl.constexpr = {value}" for key, value in constants.items() if _names(key, body)]
    text = "\n".join(textwrap.wrap(f'"""{doc}"""', 100)) if doc else ""
    inside = "\n".join(part for part in [text, *used, body] if part)
    return f"@triton.jit\ndef {name}({', '.join(arguments)}):\n{textwrap.indent(inside, '    ')}\n"


def larger(one: str, other: str) -> str:
    """The maximum, which propagates NaN as PyTorch does."""
    return f"tl.maximum({one}, {other}, propagate_nan=tl.PropagateNan.ALL)"


def indent(text: str, levels: int = 1) -> str:
    """Text indented by `levels` levels."""
    return textwrap.indent(textwrap.dedent(text).strip("\n"), "    " * levels)


def join(*parts: str) -> str:
    """The non-empty pieces of a function's body, dedented."""
    return "\n".join(textwrap.dedent(part).strip("\n") for part in parts if part.strip())


def module(*functions: str) -> str:
    """The functions of a file, separated by two blank lines."""
    return "\n\n\n".join(function.strip("\n") for function in functions if function)


def _names(name: str, text: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None
