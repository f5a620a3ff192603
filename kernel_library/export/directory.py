"""Writes kernels in BackendBench's layout: `<op>__<overload>/<op>__<overload>_implementation_v1.py`.

Each file is the source of a library kernel, followed by a function `<op>__<overload>_kernel_impl` with the
operator's arguments.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from evaluators.records.problem import Kernel
from kernel_library.overrides.choice import Candidate
from kernel_library.overrides.interfaces import INTERFACES, Interface
from kernel_library.overrides.kernels import folder_name
from kernel_library.overrides.operators import overload

WRAPPER = '''

# Wraps the kernel as the operator {operator}; made by `ideatree export format=directory`.

from collections.abc import Sequence  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from torch import Tensor  # noqa: E402


{arguments}

{result}

def supports(*args: Any, **kwargs: Any) -> bool:
    """Whether the kernel supports such a call."""
    found = {arguments_name}(*args, **kwargs)
    return not isinstance(found, str) and str(found[0].dtype) in {dtypes}


def {function}(*args: Any, **kwargs: Any) -> Any:
    """{operator}; raises NotImplementedError for calls that the kernel does not support."""
    found = {arguments_name}(*args, **kwargs)
    if isinstance(found, str):
        raise NotImplementedError(found)
    return {result_name}({call}(*found), *args, **kwargs)
'''


def write_directory(
    folder: Path, candidates: Sequence[Candidate], sources: Mapping[str, Kernel]
) -> dict[str, str]:
    """Writes, for each operator that has candidates, the one with the largest speedup. Returns the kernels'
    names by operator. Raises OSError."""
    written = {}
    for name, interface, candidate in _chosen(candidates):
        place = folder_name(overload(name))
        (folder / place).mkdir(parents=True)
        text = _file(name, interface, candidate, sources[candidate.name].source)
        (folder / place / f"{place}_implementation_v1.py").write_text(text, encoding="utf-8")
        written[name] = candidate.name
    return written


def _chosen(candidates: Sequence[Candidate]) -> Iterator[tuple[str, Interface, Candidate]]:
    for name, interface in INTERFACES.items():
        of_family = [each for each in candidates if each.op == interface.op and each.function]
        if of_family:
            best = max(of_family, key=lambda each: max(found.speedup_low for found in each.measured))
            yield name, interface, best


def _file(name: str, interface: Interface, candidate: Candidate, source: str) -> str:
    return source.rstrip() + WRAPPER.format(
        operator=name,
        arguments=inspect.getsource(interface.arguments),
        arguments_name=interface.arguments.__name__,
        result=inspect.getsource(interface.result),
        result_name=interface.result.__name__,
        dtypes=tuple(f"torch.{each}" for each in candidate.dtypes),
        function=f"{folder_name(overload(name))}_kernel_impl",
        call=f"{candidate.function}()" if is_class(source, candidate.function) else candidate.function,
    )


def is_class(source: str, function: str) -> bool:
    """Whether a kernel's function is a module, to be made before it is called."""
    return any(isinstance(node, ast.ClassDef) and node.name == function for node in ast.parse(source).body)
