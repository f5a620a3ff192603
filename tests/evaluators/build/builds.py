"""Helpers for the builder tests: build kernels for one small problem, and list the files of an archive."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from evaluators.build.build_cache import BuildCache
from evaluators.build.builder import Build, build
from evaluators.records.problem import Kernel, Problem

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
