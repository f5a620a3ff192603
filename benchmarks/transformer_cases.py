"""The families and shapes of `benchmarks/operators.py set=transformer`: the problems of `suite=transformer`,
each at 20 shapes of models that people run (Llama, Qwen, Mistral, Mixtral, Gemma, DeepSeek, diffusion and
recommendation models), and some odd ones. All kernels for a problem take part, whatever shapes their cards
name."""

from __future__ import annotations

from functools import partial

from benchmarks.operator_cases import Case, Shapes, cases_of, family

CPU_SIZES = {
    "bags": 32,
    "batch": 2,
    "capacity": 128,
    "channels": 64,
    "entries": 1000,
    "features": 256,
    "heads": 4,
    "hidden": 256,
    "indices": 256,
    "kv_heads": 2,
    "length": 128,
    "out_features": 256,
    "pages_each": 4,
    "rows": 16,
    "sequences": 3,
    "size": 8,
    "tokens": 128,
    "vocabulary": 1000,
    "window": 32,
}
"""The largest sizes on a CPU."""
BF16, FP16, FP32 = "bfloat16", "float16", "float32"
FP8 = BF16
"""The outputs' dtype; the inputs keep theirs."""

PROJECTIONS = (  # features and outputs of linear layers
    (2048, 2048),
    (2048, 8192),
    (4096, 4096),
    (4096, 6144),
    (4096, 28672),
    (14336, 4096),
    (5120, 5120),
    (8192, 8192),
    (8192, 28672),
)
ROWS = (
    (32768, 1024),
    (16384, 2048),
    (8192, 2560),
    (8192, 3072),
    (8192, 3584),
    (8192, 4096),
    (8191, 4096),
    (2048, 4096),
    (512, 4096),
    (64, 4096),
    (1, 4096),
    (8192, 5120),
    (4096, 6144),
    (4096, 7168),
    (4096, 8192),
    (128, 8192),
    (2048, 12288),
    (2048, 16384),
)
"""Tokens, and hidden sizes."""
NORMS = {BF16: ROWS, FP16: ((8192, 4096),), FP32: ((8192, 4096),)}
DECODING = (  # rows, features, outputs: 20 of a step of decoding with few sequences
    *((1, *each) for each in PROJECTIONS),
    *((8, *each) for each in PROJECTIONS),
    (16, 4096, 4096),
    (32, 4096, 14336),
)
PREFILL = (  # the same for many tokens at once
    *((4096, *each) for each in PROJECTIONS),
    *((512, *each) for each in PROJECTIONS),
    (16384, 4096, 4096),
    (128, 7168, 2048),
)
GROUPED = (  # batch, query heads, key heads, length, size of a head
    (8, 32, 8, 512, 128),
    (4, 32, 8, 1024, 128),
    (2, 32, 8, 2048, 128),
    (1, 32, 8, 4096, 128),
    (1, 32, 8, 8192, 128),
    (1, 64, 8, 2048, 128),
    (1, 64, 8, 4096, 128),
    (2, 28, 4, 2048, 128),
    (1, 28, 4, 4096, 128),
    (2, 40, 8, 2048, 128),
    (4, 16, 8, 2048, 128),
    (1, 16, 8, 8192, 128),
    (1, 24, 8, 4096, 128),
    (8, 32, 8, 1024, 64),
    (4, 32, 8, 2048, 64),
    (4, 9, 3, 2048, 64),
    (8, 14, 2, 1024, 64),
    (1, 32, 8, 3001, 128),
    (16, 32, 8, 197, 128),
    (1, 48, 8, 4096, 128),
)


def inputs_of(*each: str) -> Shapes:
    """Inputs with such dimensions: names of sizes, or numbers."""
    return lambda of: [[of.get(name) or int(name) for name in dimensions.split()] for dimensions in each]


GROUPED_INPUTS = inputs_of(
    "batch heads length head_size", "batch kv_heads length head_size", "batch kv_heads length head_size"
)


def codes_and_scales(columns: int) -> Shapes:
    """Rows, weights of which `columns` values take an entry, and the scales that follow."""
    return lambda of: [(of["rows"], of["features"]), (of["out_features"], of["features"] // columns)]


of_models = partial(family, "transformer")
FAMILIES = [
    *of_models(
        "grouped_query_attention",
        "transformer/grouped_query_attention",
        "batch heads kv_heads length head_size",
        {BF16: GROUPED},
        GROUPED_INPUTS,
    ),
    *of_models(
        "decode_attention",
        "transformer/decode_attention",
        "batch heads kv_heads capacity head_size",
        {
            BF16: (
                *((batch, 32, 8, 8192, 128) for batch in (1, 4, 16, 64)),
                *((batch, 32, 8, 2048, 128) for batch in (1, 16, 64, 128)),
                *((batch, 32, 8, 32768, 128) for batch in (1, 8)),
                *((batch, 64, 8, 8192, 128) for batch in (1, 16)),
                *((batch, 28, 4, 8192, 128) for batch in (1, 16)),
                *((batch, 16, 8, 4096, 128) for batch in (1, 32)),
                *((batch, 32, 8, 4096, 64) for batch in (1, 32)),
                (5, 40, 8, 3001, 128),
                (1, 32, 8, 131072, 128),
            )
        },
        inputs_of("batch heads 1 head_size", "batch kv_heads capacity head_size"),
    ),
    *of_models(
        "paged_decode",
        "attention/paged_decode",
        "batch heads kv_heads head_size pages_each",
        {
            BF16: (
                *((batch, 32, 8, 128, 512) for batch in (1, 4, 16, 64)),
                *((batch, 32, 8, 128, 128) for batch in (1, 16, 64, 128)),
                *((batch, 32, 8, 128, 2048) for batch in (1, 8)),
                *((batch, 64, 8, 128, 512) for batch in (1, 16)),
                *((batch, 28, 4, 128, 512) for batch in (1, 16)),
                *((batch, 16, 8, 128, 256) for batch in (1, 32)),
                *((batch, 32, 8, 64, 256) for batch in (1, 32)),
                (5, 40, 8, 128, 187),
                (32, 32, 8, 128, 256),
            )
        },
        lambda of: [
            (of["batch"], of["heads"], of["head_size"]),
            *[(of["batch"] * of["pages_each"], 16, of["kv_heads"], of["head_size"])] * 2,
        ],
    ),
    *of_models(
        "sliding_window",
        "attention/sliding_window",
        "batch heads kv_heads length head_size window",
        {
            BF16: (
                *((1, 32, 8, length, 128, 4096) for length in (8192, 16384)),
                *((1, 32, 8, length, 128, 1024) for length in (2048, 4096, 8192, 16384)),
                *((1, 32, 8, length, 128, 512) for length in (2048, 8192)),
                *((1, 16, 8, length, 128, 1024) for length in (2048, 4096, 8192)),
                *((2, 64, 8, length, 64, 128) for length in (2048, 4096)),
                *((1, 64, 8, length, 64, 128) for length in (8192, 1024)),
                (4, 32, 8, 2048, 128, 1024),
                (4, 16, 8, 2048, 64, 256),
                (2, 28, 4, 4096, 128, 2048),
                (1, 32, 8, 3001, 128, 1000),
                (8, 8, 4, 1024, 128, 512),
            )
        },
        GROUPED_INPUTS,
    ),
    *of_models(
        "packed_sequences",
        "attention/packed_sequences",
        "sequences tokens heads kv_heads head_size",
        {
            BF16: (
                *((many, 8192, 32, 8, 128) for many in (2, 8, 32, 128)),
                *((many, 4096, 32, 8, 128) for many in (2, 8, 32)),
                *((many, 8192, 16, 4, 128) for many in (4, 16, 64)),
                *((many, 16384, 16, 8, 128) for many in (4, 64)),
                *((many, 8192, 28, 4, 128) for many in (4, 32)),
                *((many, 8192, 32, 8, 64) for many in (4, 32)),
                (8, 2048, 64, 8, 128),
                (8, 8192, 9, 3, 64),
                (11, 5003, 32, 8, 128),
                (200, 8192, 16, 16, 64),
            )
        },
        inputs_of("tokens heads head_size", "tokens kv_heads head_size", "tokens kv_heads head_size"),
    ),
    *of_models(
        "biased",
        "attention/biased",
        "batch heads length head_size",
        {
            BF16: (
                *((batch, 16, 1024, 64) for batch in (1, 4, 16)),
                *((batch, 16, 2048, 64) for batch in (1, 4)),
                *((batch, 32, 2048, 128) for batch in (1, 2)),
                *((batch, 12, 512, 64) for batch in (8, 32)),
                *((batch, 8, 512, 64) for batch in (8, 64)),
                *((batch, 4, 256, 32) for batch in (64, 256)),
                (1, 16, 4096, 64),
                (1, 8, 4096, 128),
                (64, 12, 197, 64),
                (16, 16, 577, 64),
                (4, 16, 1000, 80),
                (2, 24, 1536, 128),
                (1, 32, 1024, 128),
            )
        },
        lambda of: [(of["batch"], of["heads"], of["length"], of["head_size"])] * 3,
    ),
    *of_models(
        "qk_norm_rotary",
        "transformer/qk_norm_rotary",
        "batch length heads kv_heads head_size turned",
        {
            BF16: (
                *((1, length, 32, 8, 128, 128) for length in (1, 512, 2048, 4096, 8192, 32768)),
                *((length, 1, 32, 8, 128, 128) for length in (16, 128)),
                *((2, length, 16, 8, 128, 128) for length in (1024, 4096)),
                *((1, length, 64, 8, 128, 128) for length in (2048, 8192)),
                *((1, length, 40, 8, 128, 128) for length in (2048, 8192)),
                *((2, length, 32, 8, 128, 64) for length in (2048, 4096)),
                (8, 2048, 32, 8, 64, 64),
                (1, 4096, 16, 8, 256, 256),
                (1, 4096, 32, 4, 128, 32),
                (1, 3001, 28, 4, 128, 128),
            )
        },
        inputs_of("batch length heads head_size", "batch length kv_heads head_size"),
    ),
    *of_models(
        "residual_rmsnorm",
        "transformer/residual_rmsnorm",
        "rows features",
        NORMS,
        lambda of: [(of["rows"], of["features"])] * 2,
    ),
    *of_models(
        "residual_layernorm",
        "transformer/residual_layernorm",
        "rows features",
        NORMS,
        lambda of: [(of["rows"], of["features"])] * 2,
    ),
    *of_models(
        "packed_geglu",
        "transformer/packed_geglu",
        "rows hidden",
        {
            BF16: (
                *((8192, hidden) for hidden in (2048, 5632, 6912, 9216, 11008, 14336, 16384, 21504)),
                *((2048, hidden) for hidden in (5632, 9216, 14336, 28672)),
                *((1, hidden) for hidden in (9216, 14336)),
                *((64, hidden) for hidden in (9216, 14336)),
                (8191, 11008),
                (8192, 11007),
            ),
            FP16: ((8192, 11008),),
            FP32: ((8192, 5632),),
        },
        lambda of: [(of["rows"], 2 * of["hidden"])],
    ),
    *of_models(
        "router",
        "transformer/router",
        "tokens experts chosen",
        {
            FP32: (
                *((tokens, 128, 8) for tokens in (1, 64, 1024, 8192, 32768, 131072)),
                *((tokens, 8, 2) for tokens in (1, 1024, 32768)),
                *((tokens, 64, 6) for tokens in (64, 8192, 32768)),
                *((tokens, 32, 4) for tokens in (64, 8192, 32768)),
                *((tokens, 256, 8) for tokens in (64, 8192, 32768)),
                (8191, 60, 4),
                (8192, 512, 10),
            )
        },
        inputs_of("tokens experts"),
    ),
    *of_models(
        "mixture_of_experts",
        "transformer/mixture_of_experts",
        "tokens features experts hidden active",
        {
            BF16: (
                *((tokens, 4096, 8, 7168, 2) for tokens in (16, 128, 1024, 4096)),
                *((tokens, 2048, 64, 1408, 6) for tokens in (16, 128, 1024, 4096)),
                *((tokens, 2048, 128, 768, 8) for tokens in (16, 128, 1024, 4096, 8192)),
                *((tokens, 2048, 32, 1024, 4) for tokens in (1, 256, 2048)),
                *((tokens, 2880, 32, 2880, 4) for tokens in (64, 2048)),
                (1000, 1024, 16, 512, 2),
                (4096, 2048, 60, 1408, 4),
            )
        },
        inputs_of("tokens features"),
    ),
    *of_models(
        "fp8_linear",
        "transformer/fp8_linear",
        "rows features out_features",
        {FP8: PREFILL},
        inputs_of("rows features"),
        weights=lambda of: [(of["out_features"], of["features"])],
    ),
    *of_models(
        "fp8_row_linear",
        "transformer/fp8_row_linear",
        "rows features out_features",
        {FP8: PREFILL},
        inputs_of("rows features"),
        weights=lambda of: [(of["out_features"], of["features"])],
    ),
    *of_models(
        "int4_linear",
        "transformer/int4_linear",
        "rows features out_features",
        {BF16: DECODING},
        codes_and_scales(2),
    ),
    *of_models(
        "int8_linear",
        "transformer/int8_linear",
        "rows features out_features",
        {BF16: DECODING},
        codes_and_scales(1),
    ),
    *of_models(
        "skinny_linear",
        "transformer/skinny_linear",
        "rows features out_features",
        {
            FP16: (
                *((rows, 8192, 128) for rows in (1024, 6000, 16384)),
                *((rows, 4096, 64) for rows in (2048, 8192, 32768)),
                *((rows, 4096, 16) for rows in (2048, 8192)),
                *((rows, 2048, 32) for rows in (8192, 32768)),
                *((64, *each) for each in PROJECTIONS[1:5]),
                *((16, *each) for each in PROJECTIONS[3:6]),
                (1, 4096, 128256),
                (4, 2048, 151936),
                (333, 1000, 40),
            )
        },
        codes_and_scales(1),
    ),
    *of_models(
        "linear_cross_entropy",
        "transformer/linear_cross_entropy",
        "rows features vocabulary",
        {
            BF16: (
                *((rows, 2048, 32768) for rows in (1024, 4096, 8192)),
                *((rows, 2048, 128256) for rows in (1024, 4096)),
                *((rows, 4096, 128256) for rows in (1024, 2048)),
                *((rows, 4096, 32000) for rows in (2048, 8192)),
                *((rows, 1024, 151936) for rows in (2048, 4096)),
                *((rows, 2560, 151936) for rows in (2048, 4096)),
                *((rows, 768, 50257) for rows in (2048, 8192)),
                (4096, 3072, 128256),
                (2048, 3584, 152064),
                (2048, 2304, 256000),
                (4095, 2048, 32768),
                (4096, 5120, 32768),
            )
        },
        inputs_of("rows features"),
        weights=lambda of: [(of["vocabulary"], of["features"])],
    ),
    *of_models(
        "embedding_bag",
        "transformer/embedding_bag",
        "entries features bags indices",
        {
            FP32: (
                *((1_000_000, 128, bags, 32 * bags) for bags in (256, 4096, 16384, 65536)),
                *((1_000_000, 64, bags, 32 * bags) for bags in (4096, 65536)),
                *((1_000_000, 256, bags, 32 * bags) for bags in (4096, 16384)),
                *((10_000_000, 64, bags, 20 * bags) for bags in (4096, 65536)),
                *((100_000, 128, bags, 100 * bags) for bags in (512, 8192)),
                *((1_000_000, 128, bags, 2 * bags) for bags in (16384, 131072)),
                *((1_000_000, 32, bags, 10 * bags) for bags in (16384, 131072)),
                (30_522, 768, 2048, 65_536),
                (50_257, 1024, 512, 65_536),
                (1_000_000, 100, 8191, 262_143),
                (1_000_000, 128, 64, 524_288),
            )
        },
        inputs_of("indices", "bags"),
        weights=lambda of: [(of["entries"], of["features"])],
    ),
    *of_models(
        "groupnorm_silu",
        "transformer/groupnorm_silu",
        "batch groups channels size",
        {
            BF16: (
                *((batch, 32, 320, 64) for batch in (1, 2, 16)),
                *((batch, 32, 640, 32) for batch in (2, 16)),
                *((batch, 32, 1280, 16) for batch in (2, 16)),
                *((batch, 32, 1280, 8) for batch in (2, 16)),
                *((batch, 32, 512, 64) for batch in (1, 8)),
                *((batch, 32, 512, 128) for batch in (1, 8)),
                *((batch, 32, 256, 256) for batch in (1, 4)),
                *((batch, 32, 128, 512) for batch in (1, 2)),
                (3, 30, 300, 33),
            ),
            FP32: ((2, 32, 320, 64), (1, 32, 512, 128)),
        },
        inputs_of("batch channels size size"),
    ),
]


def transformer_cases(device: str) -> list[Case]:
    """The cases of all families; on a CPU at small sizes."""
    return cases_of(FAMILIES, device, CPU_SIZES)
