"""Wrong convolutions."""

from benchmarks.mutations import Edit

TRITON_BOTH = [
    Edit(
        "part",
        "The first taps are left out.",
        "for start in range(0, TAPS, BLOCK_K):",
        "for start in range(BLOCK_K, TAPS, BLOCK_K):",
    ),
    Edit(
        "mask",
        "Left of the image is what lies before it in memory.",
        "& ((w >= 0) & (w < W))[None, :]",
        "& ((w >= -1) & (w < W))[None, :]",
    ),
    Edit(
        "precision",
        "The image is rounded to bfloat16.",
        "mask=known, other=0.0)",
        "mask=known, other=0.0).to(tl.bfloat16)",
    ),
    Edit(
        "stride",
        "Weights of the last channels are those of their neighbours.",
        "part = tl.load(packed + tap[:, None] * COLUMNS + narrow[None, :])",
        "part = tl.load(packed + tap[:, None] * COLUMNS + narrow[None, :] - 1)",
    ),
    Edit(
        "part",
        "The last channels have the last taps alone.",
        "narrow_total = tl.dot(window, part, narrow_total)",
        "narrow_total = tl.dot(window, part)",
    ),
    Edit(
        "stale",
        "The weights are those of the first call.",
        "x, weight = x.contiguous(), weight.contiguous()",
        'x, weight = x.contiguous(), globals().setdefault("_kept", weight.detach().clone())',
    ),
    Edit("constant", "The border above is a row smaller.", "PAD_H=padding,", "PAD_H=padding - 1,"),
]

TRITON = [
    *TRITON_BOTH,
    Edit(
        "stride",
        "A window's columns are those of its first pixel.",
        "s = s // STEP_W * FOLD_W + s % STEP_W - SKIP",
        "s = s // STEP_W * FOLD_W + s % STEP_W // 2 - SKIP",
    ),
    Edit(
        "edge",
        "The last packed weights are what the memory holds.",
        "((element < E) & (tap < TAPS))[None, :]",
        "((element < E) & (tap < TAPS - 64))[None, :]",
    ),
    Edit(
        "term",
        "The bias is left out.",
        "total += tl.load(bias + channel, mask=channel < K, other=0.0).to(tl.float32)[None, :]",
        "total += 0.0",
    ),
    Edit(
        "tail",
        "The last pixel is not written.",
        "inside = (pixel < PIXELS)[:, None]",
        "inside = (pixel < PIXELS - 1)[:, None]",
    ),
]

CPP_BOTH = [
    Edit(
        "term",
        "The bias is left out.",
        "std::copy_n(start.data(), channels, to + q * channels);",
        "std::fill_n(to + q * channels, channels, 0.0f);",
    ),
    Edit(
        "part",
        "The last taps are left out.",
        "for (int64_t tap = 0; tap < taps; tap += CHUNK)",
        "for (int64_t tap = 0; tap + CHUNK < taps; tap += CHUNK)",
    ),
    Edit(
        "stride",
        "Windows are mirrored.",
        "distance[tap] = (c * height + r) * pitch + s;",
        "distance[tap] = (c * height + r) * pitch + S - 1 - s;",
    ),
    Edit(
        "mask",
        "Below the image is what lies behind it in memory.",
        "if (0 <= h && h < H)",
        "if (0 <= h && (h < H || c + 1 < C))",
    ),
    Edit(
        "edge",
        "Every so many channels one is not written.",
        "for (int i = 0; i < std::min<int64_t>(FLOATS, K - k); ++i)",
        "for (int i = 0; i < std::min<int64_t>(FLOATS - 1, K - k); ++i)",
    ),
    Edit(
        "precision",
        "Weights are cut to bfloat16.",
        "to[tap * block(first)] = weight[k * taps + tap];",
        "{ uint32_t bits; memcpy(&bits, &weight[k * taps + tap], 4); bits &= 0xffff0000u;"
        " float cut; memcpy(&cut, &bits, 4); to[tap * block(first)] = cut; }",
    ),
    Edit(
        "stale",
        "Threads share the copy of their part of the image.",
        "std::vector<float> part(",
        "static std::vector<float> part(",
    ),
    Edit(
        "stride",
        "Every second image is the one before it.",
        "images + n * conv.C * conv.H * conv.W,",
        "images + n / 2 * 2 * conv.C * conv.H * conv.W,",
    ),
]

CPP = [
    *CPP_BOTH,
    Edit(
        "tail",
        "The last row is not written.",
        "p < std::min(first + ROWS, conv.P); ++p) {",
        "p < std::min(first + ROWS, conv.P - 1); ++p) {",
    ),
    Edit(
        "constant",
        "The border above is a row smaller.",
        "first * stride - padding,",
        "first * stride - padding + 1,",
    ),
    Edit(
        "stale",
        "The weights are those of the first call.",
        "LIBRARY.convolve(x.contiguous(), weight.contiguous(),",
        'LIBRARY.convolve(x.contiguous(), globals().setdefault("_kept", weight.detach().clone()),',
    ),
]

FORWARD = "return self.conv(x)"
SPLIT = "conv = self.conv\n        return nn.functional.conv2d({}, {}, {}, conv.stride, conv.padding)".format
TORCH = [
    Edit("term", "The bias is left out.", FORWARD, SPLIT("x", "conv.weight", "None")),
    Edit(
        "part",
        "The window's last column is left out.",
        FORWARD,
        "weight = self.conv.weight.clone()\n        weight[..., -1] = 0\n        "
        + SPLIT("x", "weight", "conv.bias"),
    ),
    Edit("constant", "Windows are mirrored.", FORWARD, SPLIT("x", "conv.weight.flip(-1)", "conv.bias")),
    Edit(
        "edge",
        "The border repeats the image, and is not zero.",
        FORWARD,
        "conv = self.conv\n        x = nn.functional.pad(x, (2, 2, 2, 2), mode='replicate')\n"
        "        return nn.functional.conv2d(x, conv.weight, conv.bias, conv.stride)",
    ),
    Edit(
        "precision",
        "Weights are rounded to bfloat16.",
        FORWARD,
        SPLIT("x", "conv.weight.bfloat16().float()", "conv.bias"),
        spends="bfloat16",
    ),
    Edit(
        "stale",
        "The weights are those of the first call.",
        FORWARD,
        'self.kept = getattr(self, "kept", self.conv.weight.detach()).clone()\n        '
        + SPLIT("x", "self.kept", "conv.bias"),
    ),
]

EDITS = {"conv2d/triton": TRITON, "conv2d/cpp": CPP, "torch:level1/conv2d": TORCH}
