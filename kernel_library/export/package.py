"""Writes a Python package whose kernels replace PyTorch's operators once it is installed.

It contains the kernels, a copy of `kernel_library.overrides`, and an entry point that torch calls when it is
imported. It needs torch, and Triton for Triton kernels, but not Ideatree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evaluators.records.problem import Kernel
from kernel_library.overrides.choice import Candidate

RUNTIME = Path(__file__).parents[1] / "overrides"
"""The folder that is copied."""

INIT = '''"""Kernels that replace PyTorch's operators. Made by `ideatree export`.

They are active as soon as torch is imported, unless TORCH_DEVICE_BACKEND_AUTOLOAD=0. `kernels()` returns the
override: `kernels().report()` counts the calls, `kernels().disable()` restores PyTorch's operators.
"""

from pathlib import Path

_ON = []


def autoload():
    """Called by torch, at the end of its import."""
    from {package}.overrides.packaged import autoload

    if not _ON:
        _ON.append(autoload(Path(__file__).parent))


def kernels():
    """The override; None if the kernels could not be loaded."""
    import torch  # noqa: F401

    autoload()
    return _ON[0]
'''
PROJECT = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "{version}"
description = "Kernels that replace PyTorch's operators"
requires-python = ">=3.11"
dependencies = ["torch>=2.11"]

[project.entry-points."torch.backends"]
{package} = "{package}:autoload"

[tool.setuptools]
packages = ["{package}", "{package}.overrides"]

[tool.setuptools.package-data]
{package} = ["kernels.json", "kernels/*.py"]
"""


def write_package(
    folder: Path,
    package: str,
    version: str,
    *,
    candidates: Sequence[Candidate] = (),
    sources: Mapping[str, Kernel] | None = None,
    rules: Mapping[str, Any] | None = None,
    operators: Mapping[str, Path] | None = None,
) -> None:
    """Writes the project into the folder. `candidates` are the library's, with their `sources` by name and
    the fields of `Rules`; `operators` are kernel files by operator name. Raises OSError."""
    inside = folder / package
    kernels = inside / "kernels"
    kernels.mkdir(parents=True)
    (inside / "overrides").mkdir()
    for file in RUNTIME.glob("*.py"):
        text = re.sub(r"\bkernel_library(?=\.overrides\b)", package, file.read_text(encoding="utf-8"))
        (inside / "overrides" / file.name).write_text(text, encoding="utf-8")
    files, given = {}, {}
    for candidate in candidates:
        kernel = (sources or {})[candidate.name]
        files[candidate.name] = f"kernels/{kernel.id}.py"
        (inside / files[candidate.name]).write_text(kernel.source, encoding="utf-8")
    for name, path in (operators or {}).items():
        given[name] = f"kernels/{path.name}"
        (inside / given[name]).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    manifest = {
        "operators": given,
        "candidates": [asdict(each) for each in candidates],
        "files": files,
        "rules": dict(rules or {}),
    }
    (inside / "kernels.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    (inside / "__init__.py").write_text(INIT.replace("{package}", package), encoding="utf-8")
    project = PROJECT.format(name=package.replace("_", "-"), package=package, version=version)
    (folder / "pyproject.toml").write_text(project, encoding="utf-8")
