"""Runs `cuobjdump`, which is part of CUDA and of Triton's wheel, on the binaries in a folder, and reads the
resources of their functions.

The kernel's author writes those binaries, and the tool was not made for hostile ones: run it in the sandbox.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluators.records.diagnosis import shortened
from evaluators.records.resources import MOST_FUNCTIONS, FunctionResources

RESOURCES, CODE = "-res-usage", "-sass"
"""Options of `cuobjdump`: what to print of a binary."""
FUNCTION = re.compile(
    r"^[ \t]*Function (?P<name>.+):[ \t]*\n[ \t]*REG:(?P<registers>\d{1,9}) (?P<rest>.*)$", re.MULTILINE
)
SIZE = re.compile(r"\b(STACK|LOCAL|SHARED):(\d{1,9})\b")
HEADERS = re.compile(r"(at|c10|cub|cuda|thrust)::")
"""Namespaces of torch's and CUDA's headers, whose templates become functions of a kernel's binary."""
RESERVED_FROM, RESERVED_BYTES = 9, 1024
"""From this major compute capability on, `cuobjdump` counts what the system reserves in each block that uses
shared memory as the function's own; `ptxas -v` does not."""
PATTERNS = ("*.cubin", "*.so")
SYSTEM_FOLDERS = ("/usr/local/cuda/bin", "/usr/bin")
LONGEST_S = 60.0
MOST_BINARIES = 32
"""Triton makes one for each configuration of an autotuner; reading one takes about 10 ms."""


def path_of_tool() -> str | None:
    """The path of CUDA's `cuobjdump`, or else of the one in Triton's wheel; None if there is none."""
    folders = [os.environ[name] + "/bin" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    search = os.pathsep.join([*folders, os.environ.get("PATH", ""), *SYSTEM_FOLDERS])
    if (found := shutil.which("cuobjdump", path=search)) is not None:
        return found
    triton = importlib.util.find_spec("triton")
    if triton is None or not triton.submodule_search_locations:
        return None
    bundled = Path(triton.submodule_search_locations[0], "backends/nvidia/bin")
    return shutil.which("cuobjdump", path=str(bundled))


def binaries_below(folder: Path) -> list[Path]:
    """The files that may contain GPU code, Triton's first."""
    return [path for pattern in PATTERNS for path in sorted(folder.rglob(pattern))]


def output_of(tool: str, option: str, binary: Path) -> str:
    """What the tool prints. It needs `nvdisasm`, which is next to it, and a folder for temporary files.
    Raises OSError or subprocess.TimeoutExpired."""
    path = os.pathsep.join([str(Path(tool).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        [tool, option, str(binary)],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=LONGEST_S,
        env={"PATH": path, "TMPDIR": tempfile.gettempdir()},
        check=False,
    )
    return done.stdout


def resources_below(folder: Path, architecture: str) -> list[FunctionResources]:
    """The resources of the functions in the binaries below a folder, which were compiled for this compute
    capability ("9.0"): those that `most_registers` returns. Empty if there is no `cuobjdump`. Raises OSError
    or subprocess.TimeoutExpired."""
    binaries = binaries_below(folder)[:MOST_BINARIES]
    tool = path_of_tool() if binaries else None
    if tool is None:
        return []
    outputs = [output_of(tool, RESOURCES, path) for path in binaries]
    reserved = RESERVED_BYTES if int(architecture.partition(".")[0]) >= RESERVED_FROM else 0
    found = [
        replace(each, shared_bytes=max(0, each.shared_bytes - reserved))
        for each in parse_resources("\n".join(outputs))
    ]
    return most_registers(found)


def most_registers(functions: Iterable[FunctionResources]) -> list[FunctionResources]:
    """The MOST_FUNCTIONS different functions with the most registers, under short names. Those that the
    headers of libraries define are left out, because the kernel's author cannot change them."""
    named = [replace(each, name=_short(demangled(each.name))) for each in functions]
    own = [each for each in dict.fromkeys(named) if not HEADERS.match(each.name)]
    return sorted(own, key=lambda each: (-each.registers, -each.stack_bytes, each.name))[:MOST_FUNCTIONS]


def parse_resources(text: str) -> list[FunctionResources]:
    """The functions in the output of `cuobjdump -res-usage`."""
    found = []
    for match in FUNCTION.finditer(text):
        sizes = {name: int(value) for name, value in SIZE.findall(match["rest"])}
        found.append(
            FunctionResources(
                name=match["name"],
                registers=int(match["registers"]),
                stack_bytes=sizes.get("STACK", 0) + sizes.get("LOCAL", 0),
                shared_bytes=sizes.get("SHARED", 0),
            )
        )
    return found


def demangled(name: str) -> str:
    """The name of a C++ function as in the source; any other name is returned unchanged."""
    if not name.startswith("_Z"):
        return name
    import torch

    demangle: Any = getattr(torch._C, "_demangle", str)
    return str(demangle(name))


def _short(name: str) -> str:
    """A demangled name without return type and parameters, as one short printable line."""
    end = _parameters_at(name) if name.endswith(")") else len(name)
    own = name[:end].removeprefix("void ").replace("(anonymous namespace)::", "")
    return shortened("".join(c if c.isprintable() else "?" for c in own))


def _parameters_at(name: str) -> int:
    """Where the last parenthesis of a name opens."""
    depth = 0
    for at in reversed(range(len(name))):
        depth += (name[at] == ")") - (name[at] == "(")
        if depth == 0:
            return at
    return len(name)
