"""The static level of a GPU kernel: what the disassembler shows of its compiled binaries.

`parse_resources` and `parse_sass` read the output of `cuobjdump`, which is part of CUDA and of Triton's
wheel.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from evaluators.profiling.facts import CompiledFunction, StaticFacts

RESOURCES = re.compile(
    r"^\s*Function (?P<name>.+?):\s*$\s*REG:(?P<registers>\d+) (?P<rest>.*)$", re.MULTILINE
)
FUNCTION = re.compile(r"^\s*Function : (?P<name>.+?)\s*$")
INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?(?P<code>[A-Z][A-Z0-9_]*)(?P<suffix>[\w.]*)"
)
TENSOR = re.compile(r"[HIDBQ]G?MMA$|UTC\w*MMA$|OMMA$")
SCALAR_MATH = {"FFMA", "FMUL", "FADD", "HFMA2", "HMUL2", "HADD2", "DFMA", "DMUL", "DADD", "FFMA2"}
COMBINES = {"SHFL", "REDUX", "BAR", "ATOMS", "VOTE", "MATCH", "CREDUX"}
ATOMICS = {"RED", "REDG", "ATOM", "ATOMG"}
BINARIES = ("*.cubin", "*.so")
SYSTEM_FOLDERS = ("/usr/local/cuda/bin", "/usr/bin")
LONGEST_S = 60.0
MOST_BINARIES = 8


@dataclass
class _Counts:
    """Counts of one function while its code is read."""

    codes: Counter[str] = field(default_factory=Counter)
    tensor: Counter[str] = field(default_factory=Counter)
    loads: Counter[int] = field(default_factory=Counter)
    stores: Counter[int] = field(default_factory=Counter)


def parse_resources(text: str) -> dict[str, CompiledFunction]:
    """The functions in the output of `cuobjdump -res-usage`, with registers, stack and shared memory."""
    found = {}
    for match in RESOURCES.finditer(text):
        sizes = {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", match["rest"])}
        found[match["name"]] = CompiledFunction(
            name=match["name"],
            registers=int(match["registers"]),
            stack_bytes=sizes.get("STACK", 0) + sizes.get("LOCAL", 0),
            shared_bytes=sizes.get("SHARED", 0),
        )
    return found


def parse_sass(text: str) -> dict[str, CompiledFunction]:
    """The functions in the output of `cuobjdump -sass`, with the counts of their instructions."""
    counts: dict[str, _Counts] = {}
    current: _Counts | None = None
    for line in text.splitlines():
        if match := FUNCTION.match(line):
            current = counts.setdefault(match["name"], _Counts())
        elif current is not None and (match := INSTRUCTION.match(line)):
            _count(current, match["code"], match["suffix"])
    return {name: _function(name, each) for name, each in counts.items()}


def static_facts(resources: str, sass: str, warnings: Iterable[str] = ()) -> StaticFacts:
    """The facts of a binary, or of several whose outputs were joined."""
    functions = parse_sass(sass)
    for name, known in parse_resources(resources).items():
        counted = functions.get(name, CompiledFunction(name=name))
        functions[name] = replace(
            counted,
            registers=known.registers,
            stack_bytes=known.stack_bytes,
            shared_bytes=known.shared_bytes,
        )
    return StaticFacts(functions=tuple(functions.values()), warnings=tuple(warnings))


def disassembled(folder: Path) -> tuple[str, str]:
    """The resources and the code of all binaries below a folder, as `cuobjdump` prints them.

    Raises:
        RuntimeError: if there is no `cuobjdump`, or no binary with GPU code.
    """
    tool = cuobjdump()
    if tool is None:
        raise RuntimeError("cuobjdump is missing; it is part of CUDA and of Triton's wheel")
    binaries = [path for pattern in BINARIES for path in sorted(folder.rglob(pattern))][:MOST_BINARIES]
    outputs = [(_run(tool, "-res-usage", path), _run(tool, "-sass", path)) for path in binaries]
    resources, sass = ("\n".join(each) for each in zip(*outputs, strict=True)) if outputs else ("", "")
    if "Function" not in sass:
        raise RuntimeError("the kernel's build left no binary with GPU code")
    return resources, sass


def cuobjdump() -> str | None:
    """The disassembler's path: CUDA's, or else the one in Triton's wheel."""
    folders = [os.environ[name] + "/bin" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    search = os.pathsep.join([*folders, os.environ.get("PATH", ""), *SYSTEM_FOLDERS])
    if (found := shutil.which("cuobjdump", path=search)) is not None:
        return found
    triton = importlib.util.find_spec("triton")
    if triton is None or not triton.submodule_search_locations:
        return None
    bundled = Path(triton.submodule_search_locations[0], "backends/nvidia/bin")
    return shutil.which("cuobjdump", path=str(bundled))


def _run(tool: str, option: str, binary: Path) -> str:
    """The tool's output. It needs `nvdisasm`, which is next to it, and a folder for temporary files."""
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


def _count(counts: _Counts, code: str, suffix: str) -> None:
    counts.codes[code] += 1
    if TENSOR.search(code):
        counts.tensor[code] += 1
    elif code in ("LDG", "STG"):
        widths = [int(part) for part in suffix.split(".") if part in ("64", "128", "256")]
        narrow = next((bits for name, bits in (("8", 8), ("16", 16)) if f".U{name}" in suffix), 32)
        (counts.loads if code == "LDG" else counts.stores)[max(widths, default=narrow)] += 1


def _function(name: str, counts: _Counts) -> CompiledFunction:
    def total(codes: Iterable[str]) -> int:
        return sum(counts.codes[code] for code in codes)

    return CompiledFunction(
        name=name,
        spill_loads=counts.codes["LDL"],
        spill_stores=counts.codes["STL"],
        tensor=dict(counts.tensor),
        scalar_math=total(SCALAR_MATH),
        atomics=total(ATOMICS),
        combines=total(COMBINES),
        load_bits=dict(sorted(counts.loads.items())),
        store_bits=dict(sorted(counts.stores.items())),
    )
