"""Helpers for the builder tests: build kernels for one small problem, and list the files of an archive."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from evaluators.build.build_cache import BuildCache
from evaluators.build.builder import Build, build
from evaluators.records.problem import Kernel, Problem
from evaluators.records.resources import FunctionResources

PROBLEM = Problem(
    name="file/double",
    source="""
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return 2 * x
def get_inputs():
    return [torch.randn(8)]
def get_init_inputs():
    return []
""",
)
MODEL_NEW = "\nclass ModelNew: ...\n"


WITH_TOOL = """
import os
os.makedirs("bin")
with open("bin/cuobjdump", "w") as file:
    file.write({tool!r})
os.chmod("bin/cuobjdump", 0o755)
os.environ["CUDA_HOME"] = os.getcwd()
open("code.cubin", "w").close()
"""
PRINTS = "printf 'Function _Z4gemmIfLi128EEvPT_:\\n  REG:168 STACK:2000 SHARED:1536 LOCAL:0\\n'"
GEMM = FunctionResources(name="gemm<float, 128>", registers=168, stack_bytes=2000, shared_bytes=512)
"""What a `cuobjdump` that PRINTS this says of a binary, on compute capability 9.0."""


def with_tool(tool: str) -> str:
    """A kernel whose build leaves a binary, and a `cuobjdump` that runs this shell command: the sandbox does
    not see tools that a test has made."""
    return WITH_TOOL.format(tool=f"#!/bin/sh\n{tool}") + MODEL_NEW


def built(
    source: str,
    root: Path,
    *,
    timeout_s: float = 60.0,
    append: str = MODEL_NEW,
    cache: BuildCache | None = None,
) -> Build:
    kernel = Kernel(source=source + append, language="cpp")
    return build(PROBLEM, kernel, root=root, architecture="", timeout_s=timeout_s, cache=cache)


def names_in(archive: bytes) -> set[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return set(tar.getnames())
