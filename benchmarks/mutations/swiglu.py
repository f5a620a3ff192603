"""Wrong SwiGLU layers."""

from benchmarks.mutations import Edit

SILU = "silu = opened / (1.0 + tl.exp(-opened))"
TRITON = [
    Edit("term", "ReLU in the place of SiLU.", SILU, "silu = tl.maximum(opened, 0.0)"),
    Edit("constant", "The gate's sign is lost.", SILU, "silu = opened / (1.0 + tl.exp(opened))"),
    Edit(
        "part",
        "Both first products lack the last step of the depth.",
        "passed = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)\n        for start in range(0, K, BLOCK_K):",
        "passed = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)\n"
        "        for start in range(0, K - BLOCK_K, BLOCK_K):",
    ),
    Edit(
        "part",
        "The last product lacks the first step of the depth.",
        "total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)\n        for start in range(0, K, BLOCK_K):",
        "total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)\n        for start in range(BLOCK_K, K, BLOCK_K):",
    ),
    Edit(
        "stride",
        "All steps have the first columns of up.",
        "right = load_tile(up, column, start,",
        "right = load_tile(up, column, 0,",
    ),
    Edit(
        "precision",
        "What lies between the products is rounded to bfloat16.",
        "store_tile(out, row, column, silu * passed,",
        "store_tile(out, row, column, (silu * passed).to(tl.bfloat16).to(tl.float32),",
    ),
    Edit(
        "edge",
        "The last tile between the products is what the memory holds.",
        "row, column = place_of(tile, ROWS, COLUMNS, BLOCK_M, BLOCK_N, GROUP)\n        opened =",
        "early = tl.minimum(tile, ROWS * COLUMNS - 2)\n"
        "        row, column = place_of(early, ROWS, COLUMNS, BLOCK_M, BLOCK_N, GROUP)\n"
        "        opened =",
    ),
    Edit(
        "range",
        "The exponential ends at 8: gates below keep a part.",
        SILU,
        "silu = opened / (1.0 + tl.exp(tl.minimum(-opened, 8.0)))",
    ),
    Edit(
        "stale",
        "The weights of down are those of the first call.",
        "gate, up, down = gate.contiguous(), up.contiguous(), down.contiguous()",
        "gate, up = gate.contiguous(), up.contiguous()\n"
        '    down = globals().setdefault("_kept", down.detach().clone())',
    ),
    Edit(
        "stale",
        "Nobody waits for the first product: the second may see that of the call before.",
        '    gated[(cut["PROGRAMS"],)](',
        '    side = torch.cuda.Stream()\n    with torch.cuda.stream(side):\n      gated[(cut["PROGRAMS"],)](',
    ),
    Edit(
        "tail",
        "The last rows are not written.",
        "M=m, N=width, K=n, TMA=tma)",
        "M=m - 128, N=width, K=n, TMA=tma)",
    ),
]

SILU_GLUON = "silu = first / (1.0 + gl.exp(-first))"
GLUON = [
    Edit("term", "ReLU in the place of SiLU.", SILU_GLUON, "silu = gl.maximum(first, 0.0)"),
    Edit("constant", "The gate's sign is lost.", SILU_GLUON, "silu = first / (1.0 + gl.exp(first))"),
    Edit(
        "term",
        "The gate passes itself.",
        "tile_column * WIDTH, silu * second)",
        "tile_column * WIDTH, silu * first)",
    ),
    Edit(
        "part",
        "The first step of the depth is left out.",
        "total, use_acc=start > 0,",
        "total, use_acc=start > DEPTH,",
    ),
    Edit(
        "stride",
        "All steps have the first columns of up.",
        "tma.async_copy_global_to_shared(c, [tile_column * WIDTH, start], bar, lower)",
        "tma.async_copy_global_to_shared(c, [tile_column * WIDTH, 0], bar, lower)",
    ),
    Edit(
        "edge",
        "Half of the columns are what the memory holds.",
        "write(out, target, row, tile_column * (2 * WIDTH) + WIDTH, second)",
        "write(out, target, row, tile_column * (2 * WIDTH), first)",
    ),
    Edit(
        "precision",
        "Both products are rounded to bfloat16.",
        "target.store(values.to(out.dtype))",
        "target.store(values.to(gl.bfloat16).to(out.dtype))",
    ),
    Edit(
        "stale",
        "The next box is written to shared memory before the last one has left it.",
        "tma.store_wait(0)\n    target.store(",
        "target.store(",
    ),
    Edit(
        "stride",
        "The lower rows are the upper ones again.",
        "[row + HALF, start], bar, left.index(2 * slot + 1))",
        "[row, start], bar, left.index(2 * slot + 1))",
    ),
    Edit(
        "tail",
        "The last columns are not written.",
        "rows, columns = m // (2 * HALF), n // columns",
        "rows, columns = m // (2 * HALF), n // columns - 1",
    ),
    Edit(
        "range",
        "The exponential ends at 8: gates below keep a part.",
        SILU_GLUON,
        "silu = first / (1.0 + gl.exp(gl.minimum(-first, 8.0)))",
    ),
]

FORWARD = "return self.down(F.silu(self.gate(x)) * self.up(x))"
TORCH = [
    Edit("term", "Gate without SiLU.", FORWARD, "return self.down(torch.sigmoid(self.gate(x)) * self.up(x))"),
    Edit("constant", "A ReLU for SiLU.", FORWARD, "return self.down(F.relu(self.gate(x)) * self.up(x))"),
    Edit(
        "constant",
        "GELU for SiLU.",
        FORWARD,
        "return self.down(F.gelu(self.gate(x)) * self.up(x))",
    ),
    Edit(
        "part",
        "The last 64 hidden features are left out.",
        FORWARD,
        "y = F.silu(self.gate(x)) * self.up(x)\n"
        "        return F.linear(y[..., :-64], self.down.weight[:, :-64])",
    ),
    Edit(
        "precision",
        "What lies between the products is rounded to bfloat16.",
        FORWARD,
        "return self.down((F.silu(self.gate(x)) * self.up(x)).bfloat16().to(x.dtype))",
    ),
    Edit(
        "stale",
        "The gate's weights are those of the first call.",
        FORWARD,
        'self.kept = getattr(self, "kept", self.gate.weight.detach()).clone()\n'
        "        return self.down(F.silu(F.linear(x, self.kept)) * self.up(x))",
    ),
    Edit(
        "range",
        "Gates are cut off at 4.",
        FORWARD,
        "return self.down(F.silu(self.gate(x).clamp(-4, 4)) * self.up(x))",
    ),
]

EDITS = {"swiglu/triton": TRITON, "swiglu/gluon": GLUON, "torch:library/swiglu": TORCH}
