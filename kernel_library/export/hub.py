"""Writes a project for the Hugging Face Kernel Hub's `kernel-builder` (edition 5 of `build.toml`), and its
build output, which the package `kernels` loads.

Kernels that are compiled when they are called need no build (section `torch-noarch`). Each is a module of the
package in `torch-ext/`, which uses only relative imports and registers nothing, so that several versions can
be loaded at once. The build output is that package with its `metadata.json`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluators.records.problem import Kernel
from kernel_library.export.directory import is_class
from kernel_library.overrides.choice import Candidate

EDITION = 5
"""Edition of the `build.toml` format."""
IN_TRITON = ("triton", "gluon")
BACKENDS = ("cuda", "cpu")
"""Devices that the hub supports; the library's Triton kernels use the first."""
NAME = re.compile(r"[a-z][-a-z0-9]*[a-z0-9]")
"""Valid names on the hub."""
BUILD = """[general]
name = "{name}"
version = {version}
edition = {edition}
license = "{license}"
backends = ["{backend}"]

[torch-noarch]
{confined}"""
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
INIT = '''"""Kernels for PyTorch. Made by `ideatree export`."""

{imports}

__all__ = [{names}]
'''
MODEL_CARD = """---
library_name: kernels
license: {license}
---

# {name}

Kernels that replace parts of a model's forward pass; install them with this package's `load(model)`. The
package's README.md says how they were measured.
"""
CARD = """---
library_name: kernels
license: {license}
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
    licenses: Mapping[str, str],
) -> dict[str, str]:
    """Writes the project and its build output into the folder: the fastest Triton kernel for each function,
    under all of their licenses (SPDX). A kernel that is called as a module has no function that a package
    could offer. Returns the kernels' names by function. Raises OSError."""
    chosen: dict[str, Candidate] = {}
    for each in sorted(candidates, key=_speedup):
        kernel = sources[each.name]
        if kernel.language in IN_TRITON and not is_class(kernel.source, each.function):
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
    project = _Project(
        name=name,
        version=version,
        license=" AND ".join(sorted({licenses[each.name] for each in chosen.values()})),
        backend=BACKENDS[0],
        archs=_architectures(chosen.values()),
    )
    project.write(folder, package, CARD, rows="\n".join(map(_row, chosen.values())))
    return {function: each.name for function, each in sorted(chosen.items())}


def write_hub_model(folder: Path, name: str, version: int, package: Path, backend: str, license: str) -> None:
    """Writes the project for a self-contained package (`optimized/` of `ideatree optimize`) and its build
    output into the folder. Raises OSError."""
    own = folder / "torch-ext" / name.replace("-", "_")
    shutil.copytree(package, own, ignore=shutil.ignore_patterns("__pycache__", "build", "pyproject.toml"))
    _Project(name=name, version=version, license=license, backend=backend).write(folder, own, MODEL_CARD)


@dataclass(frozen=True, kw_only=True)
class _Project:
    """The contents of the builder's files: `license` in SPDX, `archs` the only supported compute capabilities
    (empty: all)."""

    name: str
    version: int
    license: str
    backend: str
    archs: Sequence[str] = ()

    def write(self, folder: Path, package: Path, card: str, **words: str) -> None:
        """Writes the project's files next to the package, and the build output."""
        build = BUILD.format(
            name=self.name,
            version=self.version,
            edition=EDITION,
            license=self.license,
            backend=self.backend,
            confined=f"cuda_capabilities = {json.dumps(self.archs)}\n" if self.archs else "",
        )
        (folder / "build.toml").write_text(build, encoding="utf-8")
        (folder / "flake.nix").write_text(FLAKE.format(name=self.name), encoding="utf-8")
        text = card.format(name=self.name, license=_listed(self.license), **words)
        (folder / "CARD.md").write_text(text, encoding="utf-8")
        self._write_built(folder / "build" / f"torch-{self.backend}", package)

    def _write_built(self, variant: Path, package: Path) -> None:
        """Writes the build output into the variant's folder. `id`, the name under which the package is
        imported, has a hash of the files, so that different packages have different names."""
        shutil.copytree(package, variant)
        digests = {
            each.relative_to(variant).as_posix(): hashlib.sha256(each.read_bytes()).digest()
            for each in sorted(variant.rglob("*"))
            if each.is_file()
        }
        files = {file: base64.b64encode(digest).decode() for file, digest in digests.items()}
        key = hashlib.sha256(json.dumps(files).encode()).hexdigest()[:7]
        metadata = {
            "name": self.name,
            "id": f"_{package.name}_{self.backend}_{key}",
            "version": self.version,
            "license": self.license,
            "python-depends": [],
            "kernel-depends": [],
            "backend": {"type": self.backend, **({"archs": self.archs} if self.archs else {})},
            "digest": {"algorithm": "sha256", "files": files},
        }
        (variant / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")


def _listed(license: str) -> str:
    """The license in a hub card's spelling: lower case, several as a list."""
    each = license.lower().split(" and ")
    return each[0] if len(each) == 1 else f"[{', '.join(each)}]"


def _architectures(chosen: Iterable[Candidate]) -> list[str]:
    """The compute capabilities that all kernels support; empty if none is restricted."""
    confined = [{*each.architectures} for each in chosen if each.architectures]
    return sorted(set.intersection(*confined)) if confined else []


def _speedup(candidate: Candidate) -> float:
    return max(each.speedup_low for each in candidate.measured)


def _module(name: str) -> str:
    """A kernel's name or hash as a valid module name."""
    return re.sub(r"\W|^(?=\d)", "_", name)


def _row(candidate: Candidate) -> str:
    best = max(candidate.measured, key=lambda each: each.speedup_low)
    return f"| `{candidate.function}` | {candidate.name} | {best.speedup_low:.2f}x ({best.architecture}) |"
