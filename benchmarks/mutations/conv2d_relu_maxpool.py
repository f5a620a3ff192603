"""Wrong convolutions with ReLU and max-pool."""

from benchmarks.mutations import ASIDE, Edit
from benchmarks.mutations.conv2d import CPP_BOTH, TRITON_BOTH

TRITON = [
    *TRITON_BOTH,
    Edit(
        "stride",
        "A window's columns are those of its first pixel.",
        "s = tap % SPAN // E * STRIDE_W + within",
        "s = tap % SPAN // E * STRIDE_W + within // 2",
    ),
    Edit(
        "edge",
        "The last packed weights are what the memory holds.",
        "mask=tap < TAPS)",
        "mask=tap < TAPS - 64)",
    ),
    Edit(
        "term",
        "The bias is left out.",
        "total += tl.load(bias + channel, mask=channel < K, other=0.0).to(tl.float32)[None, :]",
        "total += 0.0",
    ),
    Edit(
        "tail",
        "The last pooled pixel of a row is not written.",
        "inside = (column < PQ)[:, None]",
        "inside = (column < PQ - 1)[:, None]",
    ),
    Edit("term", "Without ReLU.", "tl.maximum(total, 0.0, propagate_nan=tl.PropagateNan.ALL)", "total"),
    Edit(
        "part",
        "The pool's window is a row smaller.",
        "for i in tl.static_range(POOL):",
        "for i in tl.static_range(POOL - 1):",
    ),
    Edit(
        "stride",
        "Windows of the pool begin a pixel further.",
        "column * STRIDE + j\n",
        "column * STRIDE + tl.minimum(j + 1, POOL - 1)\n",
    ),
    Edit(
        "stale",
        "Nobody waits for the convolution: the pool may see the one of the call before.",
        "    convolve[(triton.cdiv(n * p * q, BLOCK_M), tiles)](",
        ASIDE + "convolve[(triton.cdiv(n * p * q, BLOCK_M), tiles)](",
    ),
    Edit(
        "range",
        "The pool starts at 0.25.",
        'best = tl.full([COLS, CHANNELS], float("-inf"), tl.float16)',
        "best = tl.full([COLS, CHANNELS], 0.25, tl.float16)",
    ),
]

CPP = [
    *CPP_BOTH,
    Edit(
        "tail",
        "The last pooled row is not written.",
        "pooled < std::min(top + ROWS, height); ++pooled) {",
        "pooled < std::min(top + ROWS, height - 1); ++pooled) {",
    ),
    Edit(
        "part",
        "The pool's window is a column smaller.",
        "for (int64_t j = 0; j < size; ++j) {",
        "for (int64_t j = 0; j < size - 1; ++j) {",
    ),
    Edit(
        "stale",
        "The last row of a pool's window is what the ring held before.",
        "next < pooled * step + size; ++next)",
        "next < pooled * step + size - 1; ++next)",
    ),
    Edit("range", "The pool starts at 0.25.", "floats best = {};", "floats best = floats{} + 0.25f;"),
    Edit("term", "Without ReLU.", "floats best = {};", "floats best = floats{} - 1e30f;"),
]

FORWARD = "return self.pool(self.relu(self.conv(x)))"
TORCH = [
    Edit("term", "Without ReLU.", FORWARD, "return self.pool(self.conv(x))"),
    Edit(
        "part",
        "The pool's window is two pixels wide.",
        FORWARD,
        "return nn.functional.max_pool2d(self.relu(self.conv(x)), 2, 2)[..., :27, :27]",
    ),
    Edit(
        "stride",
        "The pool begins a pixel further.",
        FORWARD,
        "y = self.relu(self.conv(x))\n        return self.pool(torch.cat([y[..., 1:], y[..., -1:]], -1))",
    ),
    Edit(
        "constant",
        "A leaky ReLU.",
        FORWARD,
        "return self.pool(nn.functional.leaky_relu(self.conv(x), 0.01))",
    ),
    Edit(
        "range",
        "A ReLU that ends at 6.",
        FORWARD,
        "return self.pool(nn.functional.relu6(self.conv(x)))",
    ),
    Edit(
        "mask",
        "The average of the window.",
        FORWARD,
        "return nn.functional.avg_pool2d(self.relu(self.conv(x)), 3, 2)",
    ),
    Edit(
        "stale",
        "The bias is that of the first call.",
        FORWARD,
        "conv = self.conv\n"
        '        self.kept = getattr(self, "kept", conv.bias.detach()).clone()\n'
        "        y = nn.functional.conv2d(x, conv.weight, self.kept, conv.stride, conv.padding)\n"
        "        return self.pool(self.relu(y))",
    ),
]

EDITS = {
    "conv2d_relu_maxpool/triton": TRITON,
    "conv2d_relu_maxpool/cpp": CPP,
    "torch:level2/conv2d_relu_maxpool": TORCH,
}
