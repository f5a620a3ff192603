"""Takes tile sizes out of shipped kernels and lets the evaluator find them again.

    python benchmarks/configurations.py [device=auto] [only=matmul,rotary]

Each kernel declares a few values for its constants, the shipped ones among them, and starts from other
defaults. The table shows the configurations, the device time of choosing, the values found, and how many
times as fast the result is as the shipped kernel, with the 95 % interval of both measured side by side. The
exit status is 1 if a result is significantly slower than the shipped kernel.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.seeds import CASES, HALF, Case
from evaluators.app.command import build, choose_device, compose_config
from evaluators.base.usage_error import UsageError
from evaluators.evaluate.__main__ import EvaluateConfig
from evaluators.records.configurations import Value, configuration_lines, judged_kernel
from evaluators.records.evaluation import Stage
from evaluators.records.problem import Kernel
from evaluators.records.timing import paired_speedup
from evaluators.scheduler.local_host import LocalHost
from evaluators.scheduler.pool import Pool


@dataclass(frozen=True, kw_only=True)
class OpenedSeed:
    """A seed without its tile sizes.

    Attributes:
        seed: The seed, whose first case with these `options` gives the problem.
        space: The values to declare for each constant; the first ones are the defaults.
        edits: Pieces of the source to replace, so that it reads the constants; the first one stands where
            the constants may be defined.
        macros: Whether the constants are passed to C++ as macros.
    """

    seed: str
    space: Mapping[str, Sequence[Value]]
    edits: Mapping[str, str]
    options: tuple[str, ...] = ()
    macros: bool = False

    @property
    def case(self) -> Case:
        """The seed on its problem."""
        return next(each for each in CASES if (each.seed, each.options) == (self.seed, self.options))

    def kernel(self) -> Kernel:
        """The kernel that declares the space. Raises ValueError if the seed has changed."""
        shipped = self.case.to_kernel()
        source = shipped.source
        edits = dict(self.edits)
        if self.macros:
            macros = ", ".join(f'f"-D{name}_={{{name}}}"' for name in self.space)
            edits["extra_cflags=["] = f"extra_cflags=[{macros}, "
        for old, new in edits.items():
            if old not in source:
                raise ValueError(f"{self.seed}: the source has no {old!r}; adapt the edits")
            source = source.replace(old, new)
        declared = {name: [*values] for name, values in self.space.items()}
        lines = [f"CONFIGS = {declared}", *(f"{name} = {each[0]!r}" for name, each in declared.items())]
        head, _, rest = source.partition("\nimport torch\n")
        return replace(shipped, source="\n".join([head, "import torch", "", *lines, "", rest]))


SEEDS = (
    OpenedSeed(
        seed="matmul/triton_half",
        options=(HALF,),
        space={"TILE_M": [64, 128], "TILE_N": [128, 256], "WARPS": [4, 8], "STAGES": [2, 3, 4]},
        edits={"TILES = ((128, 256, 64, 8, 3)": "TILES = ((TILE_M, TILE_N, 64, WARPS, STAGES)"},
    ),
    OpenedSeed(
        seed="swiglu/triton",
        space={"TILE_M": [64, 128], "TILE_N": [64, 128], "WARPS": [4, 8], "STAGES": [2, 3, 4]},
        edits={"GATED_TILES = ((128, 128, 64, 8, 3)": "GATED_TILES = ((TILE_M, TILE_N, 64, WARPS, STAGES)"},
    ),
    OpenedSeed(
        seed="conv2d/triton",
        space={"BLOCK_M": [64, 128, 256], "WARPS": [4, 8], "STAGES": [2, 3, 4]},
        edits={
            "BLOCK_M = 128\n": "",
            "NARROW_SHAPE, WIDE_SHAPE = (64, 8, 3), (32, 4, 4)": (
                "NARROW_SHAPE, WIDE_SHAPE = (64, WARPS, STAGES), (32, WARPS, STAGES)"
            ),
        },
    ),
    OpenedSeed(
        seed="rotary/triton",
        space={"TILE": [256, 512, 1024, 2048, 4096], "WARPS": [2, 4, 8]},
        edits={"TILE = 1024\n": "", "WARPS = 4\n": ""},
    ),
    OpenedSeed(
        seed="cross_entropy/triton",
        space={"LONG_WARPS": [4, 8, 16], "DEPTH": [2, 4, 8]},
        edits={"LONG_WARPS = 8\n": "", "DEPTH = 4\n": ""},
    ),
    OpenedSeed(
        seed="matmul/cpp",
        space={"TILE_M": [2, 6, 8], "TILE_N": [1, 2, 3]},
        edits={
            "TILE_M = 8, TILE_N = 3;": "TILE_M = TILE_M_, TILE_N = TILE_N_;",
            "TILE_M = 6, TILE_N = 2;": "TILE_M = TILE_M_, TILE_N = TILE_N_;",
        },
        macros=True,
    ),
    OpenedSeed(
        seed="softmax/cpp",
        space={"CHAINS": [1, 2, 4, 8]},
        edits={"constexpr int CHAINS = 4,": "constexpr int CHAINS = CHAINS_,"},
        macros=True,
    ),
)


def main(arguments: Sequence[str]) -> int:
    """Opens and searches the seeds of one device; returns the exit status."""
    given = dict(argument.partition("=")[::2] for argument in arguments)
    if unknown := given.keys() - {"device", "only"}:
        raise UsageError(f"unknown key {min(unknown)}; known are device and only")
    device, _ = choose_device(given.get("device", "auto"), clustered=False)
    words = given.get("only", "").split(",")
    own = [each for each in SEEDS if each.case.device == device]
    seeds = [each for each in own if any(word in each.seed for word in words)]
    return 0 if asyncio.run(search(seeds, device)) else 1


async def search(seeds: Sequence[OpenedSeed], device: str) -> bool:
    """Prints what is found for each seed; returns whether none is significantly slower than shipped."""
    settings = build(compose_config(EvaluateConfig, ["problem=level1/softmax", "kernel=none"]).evaluator)
    with Pool(LocalHost(settings=settings, on_gpu=device == "cuda")) as pool:
        return all([await search_one(pool, each) for each in seeds])


async def search_one(pool: Pool, opened: OpenedSeed) -> bool:
    """Prints what is found; returns whether it is correct, and not significantly slower than shipped."""
    problem, kernel = opened.case.to_problem(), opened.kernel()
    found = await pool.evaluate(problem, kernel)
    table = "\n".join(f"  {line}" for line in configuration_lines(found.configurations))
    if found.timing is None:
        print(f"{opened.seed}: {found.status.value}: {found.cause}\n{table}", flush=True)
        return False
    pair = await pool.compare(problem, [judged_kernel(kernel, found), opened.case.to_kernel()], thorough=True)
    samples = [each.timing.kernel_samples_ms for each in pair if each.timing is not None]
    ratio, low, high = paired_speedup(*samples)
    chosen, chosen_s = found.configurations[0].name, found.stages_s[Stage.CONFIGURATIONS]
    print(f"{opened.seed}: {chosen} in {chosen_s:.1f} s of {found.device_s:.1f} s on the device;", flush=True)
    print(f"  {ratio:.3f}x [{low:.3f}, {high:.3f}] as fast as the shipped kernel\n{table}", flush=True)
    return high >= 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        sys.exit(str(error))
