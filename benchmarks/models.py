"""Runs `ideatree optimize` on eight models end to end, without an API key.

    python benchmarks/models.py [only=gpt2,bert] [out=outputs/models] [key=value …]

Runs the command for each model in half precision with random weights, and prints a table of the results.
Other keys go to the command (`budget.seconds=300`, `compile=none`). A model whose folder has a verification
is not run again; an interrupted one is resumed. Needs transformers and, on a GPU, torchvision. With
`small=true` the models have two layers and small inputs, to try the benchmark on a CPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from search.optimize.extraction.record import EXTRACTION, ExtractedProblem, Extraction
from search.optimize.outcome import KERNELS
from search.optimize.profile_page import read_profile
from search.optimize.profiling.record import Profile
from search.optimize.verification.launcher import WAYS
from search.optimize.verification.record import COMPILED_PAIRS, EAGER, FILE, Verification

DECODER = f"model={Path(__file__).parents[1] / 'examples' / 'decoder.py'}"
MODELS = {
    "gpt2": ["model=transformers/GPT2LMHeadModel", "model.batch=8", "model.sequence=1024"],
    "llama": [
        "model=transformers/LlamaForCausalLM",
        "model.batch=2",
        "model.sequence=2048",
        "model.config.vocab_size=128256",
        "model.config.hidden_size=2048",
        "model.config.intermediate_size=8192",
        "model.config.num_hidden_layers=16",
        "model.config.num_attention_heads=32",
        "model.config.num_key_value_heads=8",
        "model.config.max_position_embeddings=4096",
    ],
    "bert": ["model=transformers/BertModel", "model.batch=16", "model.sequence=512"],
    "vit": ["model=transformers/ViTModel", "model.batch=32"],
    "resnet50": ["model=torchvision/resnet50", "model.batch=64"],
    "qwen3_prefill": [DECODER],
    "qwen3_decode": [DECODER, "model.sizes.batch=16", "model.sizes.length=1", "model.sizes.cached=4095"],
    "mixtral": [
        "model=transformers/MixtralForCausalLM",
        "model.sequence=2048",
        "model.config.vocab_size=32000",
        "model.config.hidden_size=2048",
        "model.config.intermediate_size=3584",
        "model.config.num_hidden_layers=4",
        "model.config.num_attention_heads=16",
        "model.config.num_key_value_heads=4",
        "model.config.num_local_experts=8",
    ],
}
"""The models by short name; LLaMA has the sizes of Llama 3.2 1B, the Qwen3-like model those of Qwen3 1.7B
with fewer layers."""
SMALL_DECODER = [
    f"model.sizes.{name}={size}"
    for name, size in (
        ("width", 256),
        ("heads", 4),
        ("kv_heads", 2),
        ("head_size", 64),
        ("hidden", 512),
        ("layers", 2),
        ("words", 500),
    )
]
SMALL = {
    "gpt2": ["model.batch=1", "model.sequence=64", "model.config.n_layer=2", "model.config.vocab_size=500"],
    "llama": [
        "model.batch=1",
        "model.sequence=64",
        "model.config.vocab_size=500",
        "model.config.hidden_size=256",
        "model.config.intermediate_size=512",
        "model.config.num_hidden_layers=2",
        "model.config.num_attention_heads=8",
        "model.config.num_key_value_heads=2",
    ],
    "bert": ["model.batch=1", "model.sequence=64", "model.config.num_hidden_layers=2"],
    "vit": ["model.batch=1", "model.config.num_hidden_layers=2"],
    "resnet50": ["model=transformers/ResNetForImageClassification", "model.batch=1"],
    "qwen3_prefill": [*SMALL_DECODER, "model.sizes.length=64"],
    "qwen3_decode": [*SMALL_DECODER, "model.sizes.batch=2", "model.sizes.cached=63"],
    "mixtral": [
        "model.sequence=64",
        "model.config.vocab_size=500",
        "model.config.hidden_size=256",
        "model.config.intermediate_size=512",
        "model.config.num_hidden_layers=2",
        "model.config.num_attention_heads=8",
        "model.config.num_key_value_heads=2",
        "model.config.num_local_experts=4",
    ],
}
TITLES = (
    "model",
    "eager, ms",
    "delivered, over eager",
    "compile, over eager",
    "compile with kernels, over compile",
    "reduce-overhead, over eager",
    "reduce-overhead with kernels, over reduce-overhead",
    "kernels, calls",
    "share of the time",
    "error, eager's error",
)
COMMON = ("dtype=bfloat16", "compile=default", "budget.seconds=240", "slice=8", "compared=3", "targets=10")


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark; returns its exit status."""
    own = dict(each.split("=", 1) for each in arguments if each.startswith(("only=", "out=", "small=")))
    keys = [each for each in arguments if each.partition("=")[0] not in own]
    names = own["only"].split(",") if "only" in own else list(MODELS)
    out = Path(own.get("out", "outputs/models"))
    small = own.get("small") == "true"
    failed = [name for name in names if not optimized(out / name, name, keys, small)]
    print("\n".join(table({name: out / name for name in names if name not in failed})))
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def optimized(folder: Path, name: str, keys: Sequence[str], small: bool) -> bool:
    """Runs the command for a model; returns whether it finished."""
    if (folder / FILE).exists():
        return True
    if (folder / ".hydra").exists():
        call = [f"resume={folder}"]
    else:
        model = {each.partition("=")[0]: each for each in [*MODELS[name], *(SMALL[name] if small else ())]}
        call = [*model.values(), *COMMON, f"hydra.run.dir={folder}", *keys]
    print(f"python -m search.optimize {' '.join(call)}", flush=True)
    done = subprocess.run([sys.executable, "-m", "search.optimize", *call], check=False)
    return done.returncode == 0


def table(folders: dict[str, Path]) -> list[str]:
    """A Markdown row per model; below, the problems of each and their kernels."""
    lines, problems = [f"| {' | '.join(TITLES)} |", "|" + "---|" * len(TITLES)], list[str]()
    for name, folder in folders.items():
        if not (folder / FILE).exists():
            lines.append(f"| {name} | no speedup |")
            continue
        found, extraction = Verification.read(folder / FILE), Extraction.read(folder / EXTRACTION)
        profile = read_profile(folder)
        lines.append(f"| {' | '.join([name, *_cells(found, extraction, profile)])} |")
        problems.append(f"{name}, fastest: {WAYS[found.fastest]}, {_ratio(found, found.fastest, EAGER)}")
        won = json.loads((folder / KERNELS).read_text(encoding="utf-8"))
        problems += [f"  {_fate(each, won.get(each.name), found, profile)}" for each in extraction.problems]
    return [*lines, "", *problems]


def _cells(found: Verification, extraction: Extraction, profile: Profile) -> Iterator[str]:
    """The cells below `TITLES`, without the name."""
    yield f"{found.ms(EAGER):.3f}"
    yield f"{_ratio(found, found.delivered, EAGER)}, {WAYS[found.delivered]}"
    for way, with_kernels in COMPILED_PAIRS:
        yield _ratio(found, way, EAGER)
        own = "" if found.compiled_pays else ", where the original forward runs"
        yield _ratio(found, with_kernels, way) + own
    yield f"{sum(1 for calls in found.calls.values() if calls)}, {sum(found.calls.values())}"
    covered = sum(
        each.time_ms * found.calls.get(each.name, 0) / len(each.places) for each in extraction.problems
    )
    yield f"{covered / profile.total_ms:.0%}"
    worst = max(found.checks, key=lambda each: each.error / each.allowed)
    yield f"{worst.error:.1e}" + (f", {worst.eager_error:.1e}" if worst.eager_error is not None else "")


def _fate(
    each: ExtractedProblem, won: Mapping[str, Any] | None, found: Verification, profile: Profile
) -> str:
    """A problem, its kernel, and whether the model uses it."""
    kernel = f"{won['speedup']:.2f}x [{won['low']:.2f}, {won['high']:.2f}], {won['origin']}" if won else "-"
    used = found.left_out.get(each.name, f"{found.calls.get(each.name, 0)} calls")
    share = each.time_ms / profile.total_ms
    return f"{each.target} ({share:.1%}, {len(each.places)} places): {kernel}; {used}"


def _ratio(found: Verification, way: str, over: str) -> str:
    """A speedup with its interval, or why there is none."""
    if not {way, over} <= {*found.ways}:
        return found.failed.get(way, "-")[:60]
    speedup, low, high = found.speedup(way, over)
    return f"{speedup:.3f}x [{low:.3f}, {high:.3f}]"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
