"""A project for the Hugging Face Kernel Hub, as its `kernel-builder` takes it (edition 5 of `build.toml`),
and what is built of it, as the package `kernels` loads it.

Kernels that are compiled as they are called need no build: the section `torch-noarch`. Each is a module of
the package in `torch-ext/`, which imports itself only by relative imports and registers nothing, so that
several versions can be loaded at once. What is built is that package with its `metadata.json`.
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
from kernel_library.overrides.choice import Candidate

EDITION = 5
"""Of the format of `build.toml`."""
BACKENDS = ("cuda", "cpu")
"""On which kernels run: those of the library in Triton on the first."""
NAME = re.compile(r"[a-z][-a-z0-9]*[a-z0-9]")
"""What the hub takes as a name."""
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
INIT = '''"""Kernels for PyTorch. Made by `python -m kernel_library.export`."""

{imports}

__all__ = [{names}]
'''
MODEL_CARD = """---
library_name: kernels
license: {license}
---

# {name}

A model with kernels in the place of parts of its forward: `load(model)` of this package. How it was measured
is in the package's README.md.
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
    """Writes the project into the folder, and what is built of it: of the kernels in Triton the fastest of
    each function, under all of their licenses (SPDX). Returns their names by the functions'. Raises
    OSError."""
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
    """Writes the project of a package that loads by itself (`optimized/` of `search.optimize`) into the
    folder, and what is built of it. Raises OSError."""
    own = folder / "torch-ext" / name.replace("-", "_")
    shutil.copytree(package, own, ignore=shutil.ignore_patterns("__pycache__", "build", "pyproject.toml"))
    _Project(name=name, version=version, license=license, backend=backend).write(folder, own, MODEL_CARD)


@dataclass(frozen=True, kw_only=True)
class _Project:
    """What stands in the builder's files: `license` by SPDX, `archs` the compute capabilities to which it is
    confined, if it is."""

    name: str
    version: int
    license: str
    backend: str
    archs: Sequence[str] = ()

    def write(self, folder: Path, package: Path, card: str, **words: str) -> None:
        """Writes what stands beside the package, and what is built of it."""
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
        """Writes what is built of the package into the variant's folder. `id` is the name under which it is
        imported: it follows from the files, so that packages with other files have other names."""
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
    """As the hub writes it in a card: identifiers in lower case, several as a list."""
    each = license.lower().split(" and ")
    return each[0] if len(each) == 1 else f"[{', '.join(each)}]"


def _architectures(chosen: Iterable[Candidate]) -> list[str]:
    """The compute capabilities on which all run, where some are confined to a few; none: nothing is said."""
    confined = [{*each.architectures} for each in chosen if each.architectures]
    return sorted(set.intersection(*confined)) if confined else []


def _speedup(candidate: Candidate) -> float:
    return max(each.speedup_low for each in candidate.measured)


def _module(name: str) -> str:
    """The name of a shipped kernel, or a hash, as one that can be imported."""
    return re.sub(r"\W|^(?=\d)", "_", name)


def _row(candidate: Candidate) -> str:
    best = max(candidate.measured, key=lambda each: each.speedup_low)
    return f"| `{candidate.function}` | {candidate.name} | {best.speedup_low:.2f}x ({best.architecture}) |"
