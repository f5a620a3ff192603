"""A project for the Hugging Face Kernel Hub, as its `kernel-builder` takes it (edition 5 of `build.toml`).

Kernels that are compiled as they are called need no build: the section `torch-noarch`. Each is a module of
the package in `torch-ext/`, which imports itself only by relative imports and registers nothing, so that
several versions can be loaded at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from evaluators.problem import Kernel
from kernel_library.choice import Candidate

EDITION = 5
"""Of the format of `build.toml`."""
BUILD = """[general]
name = "{name}"
version = {version}
edition = {edition}
license = "Apache-2.0"
backends = ["cuda"]

[torch-noarch]
"""
FLAKE = """{{
  description = "{name}";

  inputs.kernel-builder.url = "github:huggingface/kernels";

  outputs =
    {{ self, kernel-builder }}:
    kernel-builder.lib.genKernelFlakeOutputs {{
      inherit self;
      path = ./.;
    }};
}}
"""
INIT = '''"""Kernels for PyTorch. Made by `python -m kernel_library.export`."""

{imports}

__all__ = [{names}]
'''
CARD = """---
library_name: kernels
license: apache-2.0
---

# {name}

| function | from | speedup over eager PyTorch, where it was measured |
|---|---|---|
{rows}
"""


def write_hub_project(
    folder: Path,
    name: str,
    version: int,
    candidates: Sequence[Candidate],
    sources: Mapping[str, Kernel],
) -> dict[str, str]:
    """Writes the project into the folder: of the kernels in Triton the fastest of each function. Returns
    their names by the functions'. Raises OSError."""
    chosen: dict[str, Candidate] = {}
    for each in sorted(candidates, key=_speedup):
        if sources[each.name].language == "triton":
            chosen[each.function] = each
    if not chosen:
        return {}
    package = folder / "torch-ext" / name.replace("-", "_")
    package.mkdir(parents=True)
    modules = {function: _module(each.name) for function, each in chosen.items()}
    for function, each in chosen.items():
        (package / f"{modules[function]}.py").write_text(sources[each.name].source, encoding="utf-8")
    imports = "\n".join(f"from .{module} import {function}" for function, module in sorted(modules.items()))
    names = ", ".join(f'"{function}"' for function in sorted(modules))
    (package / "__init__.py").write_text(INIT.format(imports=imports, names=names), encoding="utf-8")
    (folder / "build.toml").write_text(
        BUILD.format(name=name, version=version, edition=EDITION), encoding="utf-8"
    )
    (folder / "flake.nix").write_text(FLAKE.format(name=name), encoding="utf-8")
    rows = "\n".join(map(_row, chosen.values()))
    (folder / "CARD.md").write_text(CARD.format(name=name, rows=rows), encoding="utf-8")
    return {function: each.name for function, each in sorted(chosen.items())}


def _speedup(candidate: Candidate) -> float:
    return max(each.speedup_low for each in candidate.measured)


def _module(name: str) -> str:
    """The name of a shipped kernel, or a hash, as one that can be imported."""
    return re.sub(r"\W|^(?=\d)", "_", name)


def _row(candidate: Candidate) -> str:
    best = max(candidate.measured, key=lambda each: each.speedup_low)
    return f"| `{candidate.function}` | {candidate.name} | {best.speedup_low:.2f}x ({best.architecture}) |"
