"""The resources of a GPU that the functions of a kernel's build need, and their text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evaluators.base.json_record import JsonRecord

MOST_FUNCTIONS = 8
"""Functions that are recorded of a kernel, those with the most registers."""
LARGEST = 2**31


@dataclass(frozen=True, kw_only=True)
class FunctionResources(JsonRecord):
    """What one compiled GPU function needs.

    Attributes:
        name: The function's name; in an evaluation shortened, and without its parameters.
        registers: Registers of a thread.
        stack_bytes: Stack of a thread, in local memory: spilled registers, and arrays with variable indices.
        shared_bytes: Static shared memory of a block. What a launch asks for in addition is not known; Triton
            asks for all of it there.

    Raises:
        ValueError: A number is out of range.
    """

    name: str
    registers: int
    stack_bytes: int = 0
    shared_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("registers", "stack_bytes", "shared_bytes"):
            if not 0 <= (value := getattr(self, name)) < LARGEST:
                raise ValueError(f"resources.{name} is {value}; it must be from 0 to {LARGEST - 1}")


def resource_lines(resources: Sequence[FunctionResources]) -> list[str]:
    """One line per function."""
    return [f"{each.name}: {_line(each)}" for each in resources]


def resource_summary(resources: Sequence[FunctionResources]) -> str:
    """The most registers and the largest stack of the functions, per thread; "" if none is known."""
    if not resources:
        return ""
    registers = f"{max(each.registers for each in resources)} registers"
    stack = max(each.stack_bytes for each in resources)
    text = f"{registers}, {_size(stack)} stack" if stack else registers
    return text if len(resources) == 1 else f"at most {text}"


def _line(each: FunctionResources) -> str:
    stack = f" and {_size(each.stack_bytes)} stack" if each.stack_bytes else ""
    shared = f", {_size(each.shared_bytes)} static shared memory per block" if each.shared_bytes else ""
    return f"{each.registers} registers{stack} per thread{shared}"


def _size(size_bytes: int) -> str:
    return f"{size_bytes} B" if size_bytes < 1000 else f"{size_bytes / 1000:.3g} kB"
