"""Wrong causal attentions."""

from benchmarks.mutations import ASIDE, Edit

TRITON = [
    Edit(
        "term",
        "Sums of values are not rescaled when a row's maximum grows.",
        "value, total * shrink[:, None])",
        "value, total)",
    ),
    Edit(
        "term",
        "Sums of weights are not rescaled when a row's maximum grows.",
        "weight = weight * shrink + tl.sum(power, axis=1)",
        "weight = weight + tl.sum(power, axis=1)",
    ),
    Edit(
        "part",
        "Half of the diagonal's keys are left out.",
        "last = tl.minimum(diagonal + QUERIES, LENGTH)",
        "last = tl.minimum(diagonal + KEYS, LENGTH)",
    ),
    Edit(
        "mask",
        "Keys behind the query are seen.",
        'score = tl.where(known, score, float("-inf"))',
        "score = tl.where(known, score, score)",
    ),
    Edit(
        "tail",
        "A query sees the key behind it.",
        "known = queries[:, None] >= start",
        "known = queries[:, None] + 1 >= start",
    ),
    Edit(
        "constant",
        "Scores are for powers of e and taken as powers of two.",
        "math.log2(math.e) / math.sqrt(dim)",
        "1 / math.sqrt(dim)",
    ),
    Edit(
        "range",
        "Scores are rounded to float16: infinite from 65,520 on.",
        "score = tl.dot(query, key.T)",
        "score = tl.dot(query, key.T).to(tl.float16).to(tl.float32)",
    ),
    Edit(
        "range",
        "Maxima start at zero: nothing is left of rows whose scores are far below.",
        'peak = tl.full([QUERIES], float("-inf"), tl.float32)',
        "peak = tl.zeros([QUERIES], tl.float32)",
    ),
    Edit(
        "stride",
        "Keys and values are those of the next row.",
        "tile = x.load([row, 0])",
        "tile = x.load([row + 1, 0])",
    ),
    Edit(
        "edge",
        "The first row of each head is not written.",
        "tl.store(out + spot, total.to(out.dtype.element_ty), mask=inside)",
        "tl.store(out + spot, total.to(out.dtype.element_ty), mask=inside & (place > 0))",
    ),
    Edit(
        "precision",
        "The output is rounded to bfloat16.",
        "total /= weight[:, None]",
        "total = (total / weight[:, None]).to(tl.bfloat16).to(tl.float32)",
    ),
    Edit(
        "stale",
        "Nobody waits for the output.",
        "    attention_kernel[(batch * heads, triton.cdiv(length, queries))](",
        ASIDE + "attention_kernel[(batch * heads, triton.cdiv(length, queries))](",
    ),
]

GLUON = [
    Edit(
        "tail",
        "A query sees the key behind it.",
        "score = gl.where(row[:, None] >= column[None, :],",
        "score = gl.where(row[:, None] + 1 >= column[None, :],",
    ),
    Edit(
        "mask",
        "Keys behind the query are seen, as far as the diagonal's block goes.",
        'column[None, :], score, float("-inf"))',
        "column[None, :], score, score)",
    ),
    Edit(
        "term",
        "Sums of values are not rescaled when a row's maximum grows.",
        "total = total * gl.convert_layout(shrink, gl.SliceLayout(1, out_layout))[:, None]",
        "total = total * 1.0",
    ),
    Edit(
        "term",
        "Sums of weights are not rescaled when a row's maximum grows.",
        "weight = weight * shrink + gl.sum(power, axis=1)",
        "weight = weight + gl.sum(power, axis=1)",
    ),
    Edit(
        "constant",
        "Scores are for powers of e and taken as powers of two.",
        "math.log2(math.e) / math.sqrt(dim)",
        "1 / math.sqrt(dim)",
    ),
    Edit(
        "stride",
        "The lower queries are the upper ones again.",
        "tma.async_copy_global_to_shared(q, [row + HALF, 0], q_ready,",
        "tma.async_copy_global_to_shared(q, [row, 0], q_ready,",
    ),
    Edit(
        "edge",
        "The lower rows are written over the upper ones.",
        "[head * LENGTH + block * KEYS + WHICH * HALF, 0], target)",
        "[head * LENGTH + block * KEYS, 0], target)",
    ),
    Edit(
        "stride",
        "Values are those of the block before.",
        "row = first + (block - step + 1) * KEYS",
        "row = first + (block - step) * KEYS",
    ),
    Edit(
        "precision",
        "The output is rounded to bfloat16.",
        "target.store(total.to(dtype))",
        "target.store(total.to(gl.bfloat16).to(dtype))",
    ),
    Edit(
        "range",
        "The diagonal's maxima are left out: infinite where scores are large.",
        "peak = gl.max(score, axis=1) * scale",
        "peak = gl.max(score, axis=1) * 0.0",
    ),
    Edit(
        "part",
        "The weights' sum lacks the diagonal.",
        "weight = gl.sum(power, axis=1)\n",
        "weight = gl.sum(power, axis=1) * 0.0\n",
    ),
    Edit(
        "stale",
        "Nobody waits for the output.",
        "    attention_kernel[(min(batch * heads * blocks, processors(q.device)),)](",
        ASIDE + "attention_kernel[(min(batch * heads * blocks, processors(q.device)),)](",
    ),
]

FORWARD = "return F.scaled_dot_product_attention(q, k, v, is_causal=True)"
WHOLE = """length, scale = q.shape[-2], q.shape[-1] ** -0.5
        score = (q @ k.mT).float() * scale
        later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        {}
        return (score.softmax(-1).to(v.dtype) @ v)"""
TORCH = [
    Edit(
        "mask", "Keys behind the query are seen.", FORWARD, "return F.scaled_dot_product_attention(q, k, v)"
    ),
    Edit(
        "tail",
        "A query sees the key behind it.",
        FORWARD,
        WHOLE.format('score = score.masked_fill(later.triu(2), float("-inf"))'),
    ),
    Edit(
        "part",
        "The first key is left out where others are to be seen.",
        FORWARD,
        WHOLE.format('later[1:, 0] = True\n        score = score.masked_fill(later, float("-inf"))'),
    ),
    Edit(
        "range",
        "What is masked becomes -1e4, which scores can be, too.",
        FORWARD,
        WHOLE.format("score = score.masked_fill(later, -1e4)"),
    ),
    Edit(
        "range",
        "Scores are cut off at 50.",
        FORWARD,
        WHOLE.format('score = score.clamp(-50, 50).masked_fill(later, float("-inf"))'),
    ),
    Edit(
        "constant",
        "The scale is that of another size of head.",
        FORWARD,
        "return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=q.shape[-1] ** -0.45)",
    ),
    Edit(
        "term",
        "Each query's own key has no weight, but for the first.",
        FORWARD,
        WHOLE.format(
            "later |= torch.eye(length, dtype=torch.bool, device=q.device)\n        later[0, 0] = False\n"
            '        score = score.masked_fill(later, float("-inf"))'
        ),
    ),
]

EDITS = {"attention/triton": TRITON, "attention/gluon": GLUON, "torch:library/attention": TORCH}
