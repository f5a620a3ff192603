"""The languages that kernels may be written in: how a source shows its language, and what each one needs.

Everything that knows languages asks this table: prompts, builds, the errors about a machine that lacks one,
and the page of languages in the documentation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, kw_only=True)
class Language:
    """One language.

    Attributes:
        name: Its name in configs, cards and journals.
        title: Its name in sentences.
        device: The device that its kernels run on, `cuda` or `cpu`.
        good_at: What it is good at, as a phrase.
        modules: Python modules of which a source in this language imports one; none for C++ and CUDA, which
            are strings in a source.
        package: The distribution with these modules; "" for none.
        oldest: The oldest version of the package that is known to work; "" for any.
        install: What to install, as an argument of `pip install`.
        capability: The lowest compute capability of a GPU that it compiles for.
        default: Whether prompts offer it without being asked, wherever it is installed.
        own_libraries: Whether it works where a problem forbids libraries: it needs nothing that is hidden
            there (see `evaluators.isolation.vendor_libraries`).
    """

    name: str
    title: str
    device: str = "cuda"
    good_at: str
    modules: tuple[str, ...] = ()
    package: str = ""
    oldest: str = ""
    install: str = ""
    capability: tuple[int, int] = (0, 0)
    default: bool = True
    own_libraries: bool = True
    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables for builds and runs; `{sm}` is the architecture, such as `sm_90a`."""

    @cached_property
    def imports(self) -> re.Pattern[str]:
        """Matches a line that imports one of the modules; never matches if there are none."""
        forms = []
        for module in self.modules:
            path, _, last = module.rpartition(".")
            forms.append(rf"(?:import|from)\s+{re.escape(module)}\b")
            if path:
                forms.append(rf"from\s+{re.escape(path)}\s+import\s[^#\n]*\b{last}\b")
        return re.compile(rf"^\s*(?:{'|'.join(forms) or '(?!)'})", re.MULTILINE)


LANGUAGES = {
    each.name: each
    for each in (
        Language(
            name="helion",
            title="Helion",
            good_at="the shortest programs: PyTorch-like code over tiles, which it turns into Triton",
            modules=("helion",),
            package="helion",
            oldest="1.4.0",
            install="helion",
            capability=(8, 0),
            own_libraries=False,
            # A kernel without a config would be tuned for minutes, at its first call.
            variables=(("HELION_AUTOTUNE_EFFORT", "none"),),
        ),
        Language(
            name="cute",
            title="CuTe DSL",
            good_at="full control from Python: layouts, TMA, `wgmma` pipelines, warps with different roles",
            modules=("cutlass",),
            package="nvidia-cutlass-dsl",
            oldest="4.8.0",
            install="'nvidia-cutlass-dsl[cu13]' apache-tvm-ffi",
            capability=(8, 0),
            variables=(("CUTE_DSL_ARCH", "{sm}"),),
        ),
        Language(
            name="tilelang",
            title="TileLang",
            good_at="tiled products and attention: pipelines and tensor cores without writing them out",
            modules=("tilelang",),
            package="tilelang",
            oldest="0.1.15",
            install="tilelang",
            capability=(7, 0),
            variables=(("TILELANG_DEFAULT_TARGET", '{{"kind": "cuda", "arch": "{sm}"}}'),),
        ),
        Language(
            name="cutile",
            title="cuTile",
            good_at="whole tiles as values: products, reductions and pointwise work, little to tune",
            modules=("cuda.tile",),
            package="cuda-tile",
            oldest="1.7.0",
            install="'cuda-tile[tileiras]'",
            capability=(8, 0),
        ),
        Language(
            name="gluon",
            title="Gluon",
            good_at="Triton's lower level: explicit layouts, TMA, barriers and `wgmma`, for the last tenths",
            modules=("triton.experimental.gluon",),
            package="triton",
            install="triton",
            capability=(8, 0),
            default=False,
        ),
        Language(
            name="cuda",
            title="CUDA C++",
            good_at="anything the hardware can do, down to single instructions; slow to build",
        ),
        Language(
            name="triton",
            title="Triton",
            good_at="fused pointwise work, rows and products, fast to write and to build",
            modules=("triton",),
            package="triton",
            install="triton",
        ),
        Language(
            name="cpp",
            title="C++",
            device="cpu",
            good_at="loops, vectors and threads of a CPU",
        ),
    )
}
"""By name. A source is in the first language of which it imports a module. Prompts name them the other way
round."""

BACKENDS = {name: name for name in LANGUAGES} | {"thunderkittens": "cuda"}
"""The language for each name of KernelBench's `backend`, and for those that Ideatree adds. ThunderKittens is
a library of headers for CUDA C++."""


def language_of(source: str) -> str:
    """The name of the language of a kernel, guessed from its imports and calls."""
    for each in LANGUAGES.values():
        if each.imports.search(source):
            return each.name
    return "cuda" if "load_inline" in source and "cuda_sources" in source else "cpp"


def languages_for(device: str) -> list[Language]:
    """The languages whose kernels run on this kind of device, `cuda` or `cpu`."""
    return [each for each in LANGUAGES.values() if each.device == device]


def build_variables(architecture: str) -> dict[str, str]:
    """The environment variables that languages' compilers read, for a GPU of this compute capability
    ("9.0")."""
    major, _, minor = architecture.partition(".")
    sm = f"sm_{major}{minor}{'a' if int(major) >= 9 else ''}"
    return {name: value.format(sm=sm) for each in LANGUAGES.values() for name, value in each.variables}
