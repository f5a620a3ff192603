"""Reads operator kernels in BackendBench's layout, all versions of each:

<folder>/add__Tensor/add__Tensor_implementation_v1.py    defines add__Tensor_kernel_impl(...)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluators.base.languages import language_of
from evaluators.records.problem import Kernel, reference_kernel
from evaluators.suites.operators import kernel_source, load_operator

ATEN = "aten"
"""Stands for a folder: PyTorch's own operators as candidates."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """One version of an operator's kernel. `operator` is named as in traces (`aten.add.Tensor`); without a
    `path` it is the operator itself."""

    operator: str
    name: str
    path: Path | None

    def kernel(self, suite: str) -> Kernel:
        """The file, wrapped as a kernel for the operator's problem. Raises OSError for an unreadable file,
        and ValueError for an empty one."""
        if self.path is None:
            return reference_kernel(load_operator(f"{suite}/{self.operator}"))
        source = self.path.read_text(encoding="utf-8", errors="replace")
        if not source.strip():
            raise ValueError("the file is empty")
        wrapped = kernel_source(self.operator, source, f"{self.path.parent.name}_kernel_impl")
        return Kernel(source=wrapped, language=language_of(source))


def versions_in(folder: Path) -> list[Version]:
    """All versions in a folder, those of an operator in numeric order: v2 before v10."""
    found = [
        Version(operator=_operator(path.parent.name), name=path.stem, path=path)
        for path in folder.glob("*/*.py")
        if path.name.startswith(f"{path.parent.name}_implementation")
    ]
    return sorted(found, key=lambda each: (each.operator, _by_number(each.name)))


def _operator(folder: str) -> str:
    """`add___Tensor` is `aten.add_.Tensor`, and `relu` is `aten.relu.default`."""
    base, _, overload = folder.rpartition("__")
    return f"aten.{base}.{overload}" if base else f"aten.{folder}.default"


def _by_number(name: str) -> Sequence[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
