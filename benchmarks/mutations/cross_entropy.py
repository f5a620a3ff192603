"""Wrong cross entropies."""

from benchmarks.mutations import ASIDE, Edit

TRITON = [
    Edit(
        "part",
        "The sum lacks the first step over the row.",
        "for step in range(0, BODY // STEP * STEP, STEP):",
        "for step in range(STEP, BODY // STEP * STEP, STEP):",
    ),
    Edit(
        "term",
        "The maximum is not added again.",
        "result = (highest - chosen) + tl.log(whole)",
        "result = tl.log(whole) - chosen",
    ),
    Edit(
        "tail",
        "The last class is in neither maximum nor sum: it shows where that one is large.",
        "edge = tl.load(logits + spot, mask=number < COLS - BODY,",
        "edge = tl.load(logits + spot, mask=number < COLS - BODY - 1,",
    ),
    Edit(
        "stride",
        "Odd targets are read as the class before.",
        "chosen = tl.load(logits + first + wanted,",
        "chosen = tl.load(logits + first + wanted // 2 * 2,",
    ),
    Edit(
        "mask",
        "Places behind the row count as zeros, which shows where logits are negative.",
        'mask=number < COLS - BODY, other=float("-inf"))',
        "mask=number < COLS - BODY, other=0.0)",
    ),
    Edit("constant", "A logarithm to the base 2.", "+ tl.log(whole)", "+ tl.log2(whole)"),
    Edit(
        "mask",
        "Running maxima start at -inf: where a thread has seen nothing else, the sum is NaN.",
        "LOWEST = tl.constexpr(-3.4028234663852886e38)",
        'LOWEST = tl.constexpr(float("-inf"))',
    ),
    Edit(
        "precision",
        "The loss is rounded to bfloat16.",
        "result = (highest - chosen) + tl.log(whole)",
        "result = ((highest - chosen) + tl.log(whole)).to(tl.bfloat16).to(tl.float32)",
    ),
    Edit(
        "part",
        "The maximum lacks the edge of the row.",
        "highest = tl.maximum(highest, tl.max(edge, axis=0))",
        "highest = tl.maximum(highest, LOWEST)",
    ),
    Edit(
        "stale",
        "Nobody waits for the losses.",
        "    cross_entropy_kernel[(rows,)](",
        ASIDE + "cross_entropy_kernel[(rows,)](",
    ),
    Edit(
        "constant",
        "The target's logit loses its sign.",
        "result = (highest - chosen)",
        "result = (highest - tl.abs(chosen))",
    ),
    Edit(
        "edge",
        "The last row is left out.",
        "cross_entropy_kernel[(rows,)]",
        "cross_entropy_kernel[(rows - 1,)]",
    ),
    Edit(
        "term",
        "Sums are not rescaled to the row's maximum.",
        "whole = tl.sum(total * tl.exp2((peak - highest) * LOG2E), axis=0)",
        "whole = tl.sum(total, axis=0)",
    ),
]

FORWARD = 'return F.cross_entropy(logits, target, reduction="none")'
CHOSEN = "logits.gather(1, target[:, None])[:, 0].float()"
TORCH = [
    Edit(
        "range",
        "Without the maximum: infinite from 89 on.",
        FORWARD,
        f"return (logits.float().exp().sum(-1).log() - {CHOSEN}).to(logits.dtype)",
    ),
    Edit(
        "part",
        "The maximum of every other class.",
        FORWARD,
        "peak = logits[:, ::2].float().amax(-1)\n"
        f"        rest = {CHOSEN} - peak\n"
        "        return ((logits.float() - peak[:, None]).exp().sum(-1).log() - rest).to(logits.dtype)",
    ),
    Edit(
        "part",
        "The sum lacks the last 1000 classes.",
        FORWARD,
        f"return (logits[:, :-1000].float().logsumexp(-1) - {CHOSEN}).to(logits.dtype)",
    ),
    Edit(
        "stride",
        "Targets are taken for 15 bits.",
        FORWARD,
        'return F.cross_entropy(logits, target % 32768, reduction="none")',
    ),
    Edit(
        "stale",
        "The targets are those of the first call.",
        FORWARD,
        'self.target = getattr(self, "target", target).clone()\n'
        '        return F.cross_entropy(logits, self.target, reduction="none")',
    ),
    Edit(
        "term",
        "The sum is taken for the number of classes: logits of the benchmark are like one another.",
        FORWARD,
        "total = torch.full_like(target, 0).float() + 0.5 + torch.tensor(logits.shape[1]).log()\n"
        f"        return (total - {CHOSEN}).to(logits.dtype)",
    ),
    Edit(
        "mask",
        "-inf becomes the smallest number: classes that are excluded have a loss.",
        FORWARD,
        'return F.cross_entropy(logits.clamp(min=-1e4), target, reduction="none")',
    ),
]

EDITS = {"cross_entropy/triton": TRITON, "torch:library/cross_entropy": TORCH}
