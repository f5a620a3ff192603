"""Wrong RMS norms."""

from benchmarks.mutations import Edit

SQUARE = "value.to(tl.float32) * value.to(tl.float32)"
SQUARES = f"squares += {SQUARE}"
TRITON = [
    Edit(
        "part",
        "The mean of squares lacks the last 256 columns.",
        SQUARES,
        f"squares += tl.where(start + place < COLS - 256, {SQUARE}, 0.0)",
    ),
    Edit(
        "constant",
        "eps is a thousand times as large.",
        "return rmsnorm(x, self.norm.weight, self.eps)",
        "return rmsnorm(x, self.norm.weight, self.eps * 1e3)",
    ),
    Edit(
        "term",
        "The weights are left out, which are ones when they are made.",
        'value *= tl.load(weight + spot, mask=inside, eviction_policy="evict_last").to(tl.float32)',
        "value *= 1.0",
    ),
    Edit(
        "tail",
        "The last column is not written.",
        "tl.store(out + row + spot, value, mask=inside)",
        "tl.store(out + row + spot, value, mask=spot < COLS - 1)",
    ),
    Edit(
        "stride",
        "Every second weight is that of the column before it.",
        "tl.load(weight + spot, mask",
        "tl.load(weight + spot // 2 * 2, mask",
    ),
    Edit(
        "range",
        "Squares are rounded to float16: infinite from 256 on, nothing below 2e-4.",
        SQUARES,
        f"squares += ({SQUARE}).to(tl.float16).to(tl.float32)",
    ),
    Edit(
        "precision",
        "The output is rounded to bfloat16.",
        "tl.store(out + row + spot, value, mask=inside)",
        "tl.store(out + row + spot, value.to(tl.bfloat16).to(tl.float32), mask=inside)",
    ),
    Edit(
        "edge",
        "The last eight columns are not read.",
        "inside = start + place < COLS\n",
        "inside = start + place < COLS - 8\n",
    ),
    Edit(
        "stale",
        "The weights are those of the first call.",
        "weight = None if weight is None else weight.contiguous()",
        'weight = globals().setdefault("_kept", weight.detach().clone())',
    ),
    Edit(
        "mask",
        "No eps: rows of zeros become NaN.",
        "factor = tl.rsqrt(tl.sum(squares, axis=0) / COLS + eps)",
        "factor = tl.rsqrt(tl.sum(squares, axis=0) / COLS)",
    ),
]

FORWARD = "return self.norm(x)"
SCALED = """        scale = torch.rsqrt(mean + self.norm.eps) * self.norm.weight.float()
        return (x.float() * scale).to(x.dtype)"""
TORCH = [
    Edit("term", "Nothing is normalised.", FORWARD, "return x * self.norm.weight"),
    Edit(
        "term",
        "The weights are left out, which are ones when they are made.",
        FORWARD,
        "return nn.functional.rms_norm(x, self.norm.normalized_shape, None, self.norm.eps)",
    ),
    Edit(
        "term",
        "The mean is taken off, as in a layer norm.",
        FORWARD,
        "return self.norm(x - x.mean(-1, keepdim=True))",
    ),
    Edit(
        "part",
        "Statistics of every 16th column.",
        FORWARD,
        "mean = x[..., ::16].float().square().mean(-1, keepdim=True)\n" + SCALED,
    ),
    Edit(
        "stale",
        "The mean of squares is that of the call before.",
        FORWARD,
        "now = x.float().square().mean(-1, keepdim=True)\n"
        '        mean, self.before = getattr(self, "before", now), now\n' + SCALED,
    ),
    Edit(
        "constant",
        "eps is a thousand times as large.",
        FORWARD,
        "return nn.functional.rms_norm(x, x.shape[-1:], self.norm.weight, 1e3 * self.norm.eps)",
    ),
    Edit(
        "range",
        "Squares are taken in the inputs' type.",
        FORWARD,
        "mean = x.square().float().mean(-1, keepdim=True)\n" + SCALED,
    ),
]

EDITS = {"rmsnorm/triton": TRITON, "torch:library/rmsnorm": TORCH}
