"""Wrong rotary embeddings."""

from benchmarks.mutations import Edit

TRITON = [
    Edit("term", "The sine is left out of the first half.", "first * c - second * s,", "first * c,"),
    Edit(
        "constant",
        "The second half turns the other way.",
        "first * s + second * c,",
        "second * c - first * s,",
    ),
    Edit(
        "stride",
        "Rows of the cosines are an element too close.",
        "c = tl.load(cos + position * HALF + pair,",
        "c = tl.load(cos + position * (HALF - 1) + pair,",
    ),
    Edit(
        "stride",
        "Heads are taken to lie a position apart.",
        "+ head * head_stride +",
        "+ head * position_stride +",
    ),
    Edit(
        "tail",
        "The last position is not turned.",
        "inside = (position < LENGTH)",
        "inside = (position < LENGTH - 1)",
    ),
    Edit(
        "precision",
        "The first half is rounded to bfloat16.",
        'first = tl.load(source, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)',
        'first = tl.load(source, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.bfloat16)'
        ".to(tl.float32)",
    ),
    Edit(
        "stale",
        "Cosines and sines are those of the first call, and the same in every draw.",
        "cos, sin = cos.contiguous(), sin.contiguous()",
        'cos, sin = globals().setdefault("_kept", (cos.clone(), sin.clone()))',
    ),
    Edit(
        "edge",
        "The last head is not turned.",
        "head = tl.minimum(tl.program_id(1) * EACH + step, HEADS - 1)",
        "head = tl.minimum(tl.program_id(1) * EACH + step, HEADS - 2)",
    ),
    Edit(
        "mask",
        "Positions behind the first 1024 are turned by the angles of those.",
        "s = tl.load(sin + position * HALF + pair,",
        "s = tl.load(sin + position % 1024 * HALF + pair,",
    ),
    Edit(
        "stride",
        "All batches are read from the first one.",
        "source = x + batch * batch_stride",
        "source = x + 0 * batch * batch_stride",
    ),
]

FORWARD = "first, second = x.chunk(2, dim=-1)"
TORCH = [
    Edit("constant", "It turns the other way.", FORWARD, f"sin = -sin\n        {FORWARD}"),
    Edit(
        "range",
        "Sines are computed from cosines, which loses their sign.",
        FORWARD,
        f"sin = (1 - cos.float() ** 2).clamp(min=0).sqrt().to(sin.dtype)\n        {FORWARD}",
    ),
    Edit(
        "stale",
        "Cosines are those of the first call, and the same in every draw.",
        FORWARD,
        f'cos = self.cos = getattr(self, "cos", cos).clone()\n        {FORWARD}',
    ),
    Edit(
        "stride",
        "Neighbours are turned, not halves.",
        FORWARD,
        "first, second = x[..., ::2], x[..., 1::2]",
    ),
    Edit(
        "term",
        "The slowest pairs are not turned.",
        FORWARD,
        f"cos, sin = cos.clone(), sin.clone()\n        cos[:, -8:], sin[:, -8:] = 1, 0\n        {FORWARD}",
    ),
    Edit(
        "tail",
        "The last position has the angles of the one before it.",
        FORWARD,
        f"cos = cos.clone()\n        cos[-1] = cos[-2]\n        {FORWARD}",
    ),
]

EDITS = {"rotary/triton": TRITON, "torch:library/rotary": TORCH}
