"""Checks that extraction and installation reproduce architectures of transformers and diffusers, on the CPU.

    python benchmarks/architectures.py [only=GPT2LMHeadModel,UNet2DConditionModel]

Needs both packages. Each model is small, has random weights, and runs with one and with two sequences or
images, in the usual ways of calling. The benchmark records it, extracts problems, and installs the problems'
own code in place of kernels. The outputs must be bit-identical to the model's, and no call may fall back to
the original forward. The exit status is 0 if that is true for all.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from evaluators.base.usage_error import UsageError
from evaluators.records.problem import Kernel
from search.optimize.extraction.calls import merge_calls
from search.optimize.extraction.problems import extract
from search.optimize.extraction.traced_model import trace_model
from search.optimize.installation import runtime
from search.optimize.installation.package import PACKAGE, write_package
from search.optimize.installation.placement import assign_places
from search.optimize.models.architectures import Diffusers, Transformers
from search.optimize.models.source import ModelSource
from search.optimize.profiling.profile import profile_of
from search.optimize.verification.errors import error_of

SHAPES = ({"batch": 1}, {"batch": 2})
SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "vocab_size": 500,
}
FEW_HEADS = {**SMALL, "num_key_value_heads": 2}
IMAGES = {key: value for key, value in SMALL.items() if key != "vocab_size"} | {
    "image_size": 32,
    "patch_size": 8,
}
PARTS = {"layers": 2, "attention_heads": 4, "ffn_dim": 256}
LAYERS = {
    **{f"{part}_{key}": size for part in ("encoder", "decoder") for key, size in PARTS.items()},
    "d_model": 128,
}
ENDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": {"n_layer": 2, "n_embd": 128, "n_head": 4, "vocab_size": 500},
    "BertModel": SMALL,
    "RobertaModel": SMALL,
    "DistilBertModel": {"n_layers": 2, "dim": 128, "hidden_dim": 256, "n_heads": 4, "vocab_size": 500},
    "LlamaForCausalLM": FEW_HEADS,
    "Qwen2ForCausalLM": FEW_HEADS,
    "Qwen3ForCausalLM": {**FEW_HEADS, "head_dim": 32},
    "Gemma2ForCausalLM": {**FEW_HEADS, "head_dim": 32},
    "Gemma3ForCausalLM": {**FEW_HEADS, "head_dim": 32},
    "MixtralForCausalLM": {**FEW_HEADS, "num_local_experts": 4},
    "PhiForCausalLM": SMALL,
    "GPTNeoXForCausalLM": SMALL,
    "FalconForCausalLM": {key: value for key, value in SMALL.items() if key != "intermediate_size"},
    "OPTForCausalLM": {
        **{key: value for key, value in SMALL.items() if key != "intermediate_size"},
        "ffn_dim": 256,
        "word_embed_proj_dim": 128,
    },
    "T5ForConditionalGeneration": {
        "num_layers": 2,
        "d_model": 128,
        "d_ff": 256,
        "num_heads": 4,
        "vocab_size": 500,
    },
    "BartForConditionalGeneration": {**LAYERS, "vocab_size": 500},
    "WhisperForConditionalGeneration": {**LAYERS, "vocab_size": 500, "max_source_positions": 64, **ENDS},
    "ModernBertModel": {**SMALL, **ENDS, "cls_token_id": 0, "sep_token_id": 0},
    "CLIPTextModel": {**SMALL, "max_position_embeddings": 128},
    "SiglipModel": {
        "text_config": {**SMALL, "max_position_embeddings": 128, "projection_size": 128, **ENDS},
        "vision_config": IMAGES,
    },
    "ViTModel": IMAGES,
    "DeiTModel": IMAGES,
    "Dinov2Model": {
        **{key: value for key, value in IMAGES.items() if key != "intermediate_size"},
        "mlp_ratio": 2,
    },
    "SwinModel": {
        "image_size": 32,
        "patch_size": 2,
        "embed_dim": 32,
        "depths": [1, 1],
        "num_heads": [2, 4],
        "window_size": 4,
    },
    "ResNetModel": {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]},
    "ConvNextModel": {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2},
    "Wav2Vec2Model": SMALL,
    "MambaForCausalLM": {"num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 500},
}
BLOCKS = {"block_out_channels": [32, 64], "layers_per_block": 1, "norm_num_groups": 8, "sample_size": 16}
CROSS = {
    **BLOCKS,
    "attention_head_dim": 8,
    "cross_attention_dim": 32,
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
}
HEADS = {"num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 2, "sample_size": 16}
DIFFUSERS: dict[str, dict[str, Any]] = {
    "UNet2DModel": {
        **BLOCKS,
        "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
        "up_block_types": ["AttnUpBlock2D", "UpBlock2D"],
    },
    "UNet2DConditionModel": CROSS,
    "UNet2DConditionModel of SDXL": {
        **CROSS,
        "use_linear_projection": True,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 80,
    },
    "AutoencoderKL": {
        **BLOCKS,
        "down_block_types": ["DownEncoderBlock2D"] * 2,
        "up_block_types": ["UpDecoderBlock2D"] * 2,
    },
    "Transformer2DModel": {**HEADS, "in_channels": 32, "norm_num_groups": 8, "cross_attention_dim": 32},
    "DiTTransformer2DModel": {**HEADS, "num_embeds_ada_norm": 10},
    "PixArtTransformer2DModel": {**HEADS, "cross_attention_dim": 64, "caption_channels": 32},
    "SanaTransformer2DModel": {
        **HEADS,
        "in_channels": 8,
        "num_cross_attention_heads": 4,
        "cross_attention_head_dim": 16,
        "cross_attention_dim": 64,
        "caption_channels": 32,
    },
    "SD3Transformer2DModel": {
        **HEADS,
        "joint_attention_dim": 32,
        "caption_projection_dim": 64,
        "pooled_projection_dim": 32,
        "pos_embed_max_size": 16,
    },
    "FluxTransformer2DModel": {
        "num_layers": 1,
        "num_single_layers": 1,
        "num_attention_heads": 4,
        "attention_head_dim": 16,
        "in_channels": 16,
        "joint_attention_dim": 32,
        "pooled_projection_dim": 32,
        "axes_dims_rope": [4, 6, 6],
    },
    "AuraFlowTransformer2DModel": {
        "sample_size": 16,
        "num_mmdit_layers": 1,
        "num_single_dit_layers": 1,
        "num_attention_heads": 4,
        "attention_head_dim": 16,
        "joint_attention_dim": 32,
        "caption_projection_dim": 64,
        "pos_embed_max_size": 64,
    },
}
"""The class is the first word."""
ARCHITECTURES: dict[str, ModelSource] = {
    **{name: Transformers(name=name, config=config, shapes=SHAPES) for name, config in TRANSFORMERS.items()},
    **{
        name: Diffusers(name=name.partition(" ")[0], config=config, sequence=16, shapes=SHAPES)
        for name, config in DIFFUSERS.items()
    },
}


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns its exit status."""
    logging.disable(logging.WARNING)
    only = next((each[5:].split(",") for each in arguments if each.startswith("only=")), list(ARCHITECTURES))
    titles = f"{'calls':>7}{'problems':>10}{'at both':>9}{'used':>6}{'error':>10}{'seconds':>9}"
    print(f"{'architecture':32}{titles}")
    results = [shown(name) for name in only]
    print(f"{sum(results)} of {len(results)} unchanged")
    return 0 if all(results) else 1


def shown(name: str) -> bool:
    """Prints a row; returns whether the architecture went through unchanged."""
    start = time.monotonic()
    try:
        calls, problems, at_both, used, error, fallbacks = through(name)
    except UsageError as why:
        print(f"{name:32}{why}")
        return False
    seconds = time.monotonic() - start
    counts = f"{calls:7}{problems:10}{at_both:9}{used:6}"
    print(f"{name:32}{counts}{error:10.1e}{seconds:9.1f}  {'; '.join(fallbacks)}", flush=True)
    return error == 0 and not fallbacks and used > 0


def through(name: str) -> tuple[int, int, int, int, float, list[str]]:
    """Calls of a forward, problems, problems that span both shapes, used places, the error, and the reasons
    for falling back to the original forward."""
    models = ARCHITECTURES[name].load(device="cpu", dtype=None, backward=False, seed=0)
    models = merge_calls(models, lambda line: None)
    profile = profile_of(models, entries=[], warmup=1, iterations=1, say=lambda line: None)
    traced_models = [*map(trace_model, models)]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        problems = extract(profile, traced_models, folder, most=30, gain=0.0005).problems
        kernels = {
            each.name: Kernel(
                source=(folder / each.file).read_text().replace("class Model(", "class ModelNew("),
                language="triton",
            )
            for each in problems
        }
        places = assign_places({each.name: each.time_ms for each in problems}, problems)
        write_package(folder, traced_models, kernels, places)
        wanted = [[each.clone() for each in model.run()] for model in models]
        runtime.load(folder / PACKAGE, models[0].module)
        error = max(error_of(model.run(), own) for model, own in zip(models, wanted, strict=True))
    plan = type(models[0].module).plan  # type: ignore[attr-defined]
    used = sum(kernel.calls for kernel in plan.kernels.values())
    at_both = sum(len({place.shape for place in each.places}) >= len(SHAPES) for each in problems)
    return len(traced_models[0].run.calls), len(problems), at_both, used, error, list(plan.fallbacks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
