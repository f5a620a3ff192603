"""The families and shapes of `benchmarks/operators.py set=training`: 20 for each family, of models that
people train, and some odd ones. The rotary embedding turns queries and keys; losses are means over rows."""

from __future__ import annotations

from functools import partial

from benchmarks.operator_cases import Case, Shapes, cases_of, family

MEAN = """

_Each = Model


class Model(_Each):
    def forward(self, *given):
        return super().forward(*given).mean()
"""
"""A loss for training: the mean of those of the rows."""
HALF, WIDE, OTHER = "bfloat16", "float32", "float16"
CPU_SIZES = {
    "batch": 2,
    "classes": 1000,
    "features": 96,
    "heads": 2,
    "hidden": 192,
    "key_heads": 2,
    "length": 64,
    "rows": 32,
    "tokens": 32,
    "vocabulary": 1000,
}
"""The largest sizes on a CPU."""
of_training = partial(family, "training")


def rows_and(columns: str) -> Shapes:
    """The shape of an input of rows with this number of columns."""
    return lambda of: [(of["rows"], of[columns])]


ROWS = {
    HALF: (
        (65536, 384),  # encoders
        (32768, 768),
        (16384, 1024),
        (65536, 1152),
        (16384, 1280),
        (16384, 1600),
        (16384, 2048),
        (16384, 2560),
        (8192, 3072),
        (8192, 3584),
        (8192, 4096),
        (8191, 4096),
        (2048, 4096),
        (8192, 5120),
        (8192, 6144),
        (4096, 8192),
        (4096, 12288),
    ),
    WIDE: ((16384, 1024), (8192, 4096), (8192, 1000)),
}
"""Of the norms: tokens, and the hidden sizes of language models from GPT-2 to GPT-3."""
FAMILIES = [
    *of_training("layernorm", "library/layernorm", "rows features", ROWS, rows_and("features")),
    *of_training("rmsnorm", "library/rmsnorm", "rows features", ROWS, rows_and("features")),
    *of_training(
        "residual_rmsnorm",
        "transformer/residual_rmsnorm",
        "rows features",
        ROWS,
        lambda of: [(of["rows"], of["features"])] * 2,
    ),
    *of_training(
        "softmax",
        "level1/softmax",
        "batch features",
        {
            HALF: (
                (524288, 64),  # experts of a router
                (262144, 128),
                (131072, 197),  # patches of an image
                (131072, 256),
                (65536, 577),
                (65536, 512),
                (65536, 1024),
                (32768, 1500),
                (32768, 2048),
                (16384, 4096),
                (16384, 4097),
                (8192, 8192),
                (4096, 16384),
                (4096, 32000),
                (2048, 50257),
                (2048, 128256),
            ),
            WIDE: ((65536, 512), (32768, 2048), (8192, 8192), (2048, 32000)),
        },
        lambda of: [(of["batch"], of["features"])],
    ),
    *of_training(
        "cross_entropy",
        "library/cross_entropy",
        "rows classes",
        {
            HALF: (
                (16384, 1000),
                (8192, 21841),
                (8192, 32000),
                (4096, 32000),
                (8192, 32768),
                (8192, 49152),
                (4096, 50257),
                (8192, 50304),
                (4096, 65536),
                (4096, 100352),
                (4096, 128256),
                (2048, 128256),
                (2047, 129280),
                (4096, 151936),
                (2048, 200064),
                (2048, 256000),
            ),
            WIDE: ((16384, 1000), (4096, 32000), (4096, 50257), (2048, 128256)),
        },
        rows_and("classes"),
        MEAN,
    ),
    *of_training(
        "linear_cross_entropy",
        "transformer/linear_cross_entropy",
        "rows features vocabulary",
        {
            HALF: (
                (8192, 768, 50257),
                (8192, 768, 50304),
                (4096, 1024, 32000),
                (8192, 1024, 50304),
                (4096, 1024, 151936),
                (4096, 1536, 151936),
                (4096, 2048, 32000),
                (8192, 2048, 32768),
                (4096, 2048, 49152),
                (4096, 2048, 100352),
                (4096, 2048, 128256),
                (4095, 2048, 32768),
                (2048, 2560, 50304),
                (4096, 2560, 151936),
                (4096, 3072, 128256),
                (2048, 3584, 152064),
                (4096, 4096, 32000),
                (2048, 4096, 128256),
                (2048, 2304, 256000),
            ),
            WIDE: ((2048, 1024, 32000),),
        },
        rows_and("features"),
        MEAN,
        lambda of: [(of["vocabulary"], of["features"])],
    ),
    *of_training(
        "rotary",
        "training/rotary",
        "batch heads key_heads length head_size",
        {
            HALF: (
                (8, 12, 12, 1024, 64),
                (8, 16, 16, 2048, 64),
                (4, 32, 8, 2048, 64),
                (4, 9, 3, 2048, 64),
                (8, 8, 8, 2048, 128),
                (2, 32, 32, 2048, 128),
                (1, 32, 8, 2048, 128),
                (4, 16, 8, 4096, 128),
                (2, 32, 8, 4096, 128),
                (2, 40, 8, 4096, 128),
                (1, 64, 8, 4096, 128),
                (1, 32, 8, 8192, 128),
                (1, 28, 4, 8192, 128),
                (1, 24, 8, 16384, 128),
                (2, 32, 32, 2048, 80),
                (2, 32, 32, 2048, 96),
                (2, 16, 8, 4096, 256),
                (1, 16, 16, 3001, 128),
            ),
            WIDE: ((8, 12, 12, 1024, 64), (2, 32, 8, 2048, 128)),
        },
        lambda of: [
            (of["batch"], of["heads"], of["length"], of["head_size"]),
            (of["batch"], of["key_heads"], of["length"], of["head_size"]),
        ],
    ),
    *of_training(
        "swiglu",
        "library/swiglu",
        "tokens features hidden",
        {
            HALF: (
                (8192, 576, 1536),
                (8192, 768, 2048),
                (8192, 1024, 2816),
                (16384, 1024, 3072),
                (8192, 1536, 8960),
                (8192, 2048, 5632),
                (8192, 2048, 6144),
                (4096, 2048, 8192),
                (8192, 2304, 9216),
                (8192, 2560, 9728),
                (8192, 3072, 8192),
                (4096, 3584, 18944),
                (2048, 4096, 11008),
                (8192, 4096, 11008),
                (8192, 4096, 14336),
                (4095, 4096, 14336),
                (4096, 5120, 13824),
                (4096, 5120, 17408),
            ),
            WIDE: ((4096, 1024, 2816), (2048, 2048, 5632)),
        },
        lambda of: [(of["tokens"], of["features"])],
        weights=lambda of: [(of["hidden"], of["features"])],
    ),
    *of_training(
        "attention",
        "library/attention",
        "batch heads length head_size",
        {
            HALF: (
                (16, 12, 1024, 64),
                (8, 16, 1024, 64),
                (8, 16, 2048, 64),
                (4, 32, 2048, 64),
                (2, 9, 2048, 64),
                (2, 16, 4096, 64),
                (1, 16, 8192, 64),
                (16, 16, 512, 128),
                (8, 16, 1024, 128),
                (2, 32, 2048, 128),
                (1, 32, 2048, 128),
                (4, 16, 2048, 128),
                (1, 32, 4096, 128),
                (2, 16, 4096, 128),
                (1, 16, 8192, 128),
                (2, 32, 2048, 96),
                (1, 16, 3001, 128),
            ),
            OTHER: ((8, 16, 1024, 64), (2, 32, 2048, 128), (1, 16, 4096, 128)),
        },
        lambda of: [(of["batch"], of["heads"], of["length"], of["head_size"])] * 3,
    ),
]


def training_cases(device: str) -> list[Case]:
    """The cases of all families; on a CPU at small sizes."""
    return cases_of(FAMILIES, device, CPU_SIZES)
