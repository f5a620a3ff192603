"""Solutions that `definitions.py` writes for the two projects' example definitions: with kernels of the
library, and with a planted fault each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernel_library.catalogue.best import candidates, fitting_entries
from kernel_library.catalogue.entry import Entry
from kernel_library.overrides.choice import ranked


@dataclass(frozen=True, kw_only=True)
class LibraryCall:
    """How a kernel of the library solves a definition: the operation, its first inputs' dtype and shapes
    (typical ones, with a number of rows that is no multiple of a tile), and `run`, which calls it."""

    op: str
    dtype: str
    shapes: Sequence[Sequence[int]]
    run: str


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A wrong solution: what is wrong, and the code."""

    says: str
    code: str


MATMUL = ((293, 4096), (4096, 4096))
LIBRARY = {
    "solexec/softmax_h4096": LibraryCall(
        op="softmax",
        dtype="float32",
        shapes=[(293, 4096)],
        run="def run(input):\n    return softmax(input)\n",
    ),
    "solexec/rmsnorm_h4096": LibraryCall(
        op="rmsnorm",
        dtype="bfloat16",
        shapes=[(293, 4096)],
        run="def run(hidden_states, weight):\n    return rmsnorm(hidden_states, weight, 1e-5)\n",
    ),
    "solexec/allenai_Olmo-3-1025-7B_post_norm_residual": LibraryCall(
        op="rmsnorm",
        dtype="bfloat16",
        shapes=[(2, 293, 4096)],
        run="def run(sublayer_output, residual, weight, eps):\n"
        "    return residual + rmsnorm(sublayer_output, weight, eps)\n",
    ),
    "solexec/nvidia_Llama-3.3-Nemotron-70B-Select_rms_norm": LibraryCall(
        op="rmsnorm",
        dtype="bfloat16",
        shapes=[(2, 293, 8192)],
        run="def run(hidden_states, residual, weight, eps):\n"
        "    return rmsnorm(residual + hidden_states, weight, eps)\n",
    ),
    "solexec/ai21labs_AI21-Jamba-Reasoning-3B_attention_output_projection_with_residual": LibraryCall(
        op="matmul",
        dtype="bfloat16",
        shapes=[(293, 2560), (2560, 2560)],
        run="def run(attn_output, residual, o_proj_weight):\n"
        "    product = matmul(attn_output.flatten(0, 1), o_proj_weight.t())\n"
        "    return product.view_as(residual) + residual\n",
    ),
    "solexec/google_gemma-3-12b-it_gemma3_fused_gate_up_projection_with_swiglu": LibraryCall(
        op="matmul",
        dtype="bfloat16",
        shapes=[(293, 3072), (3072, 24576)],
        run="def run(x, gate_proj, up_proj):\n"
        "    rows = x.flatten(0, 1)\n"
        "    gate = torch.nn.functional.gelu(matmul(rows, gate_proj.t()), approximate='tanh')\n"
        "    return (gate * matmul(rows, up_proj.t())).view(*x.shape[:2], -1)\n",
    ),
    "solexec/linear_backward": LibraryCall(
        op="matmul",
        dtype="float32",
        shapes=[(293, 256), (256, 512)],
        run="def run(grad_output, x, weight):\n"
        "    return matmul(grad_output, weight), matmul(grad_output.mT, x)\n",
    ),
    "solexec/gemm_n4096_k4096": LibraryCall(
        op="matmul", dtype="float32", shapes=MATMUL, run="def run(A, B):\n    return matmul(A, B)\n"
    ),
    "solexec/custom_matmul": LibraryCall(
        op="matmul",
        dtype="float32",
        shapes=[(293, 512), (512, 256)],
        run="def run(A, B):\n    return matmul(A, B)\n",
    ),
    "flashinfer/gemm_n4096_k4096": LibraryCall(
        op="matmul", dtype="float16", shapes=MATMUL, run="def run(A, B):\n    return matmul(A, B.T)\n"
    ),
}
"""By problem. The library has nothing for the others: pairs of neighbours with two angles each, a sum of two
vectors, attention over a table of pages that also returns its log-sum-exp."""

FAULTS = {
    "solexec/softmax_h4096": Fault(
        says="the row's maximum is not subtracted, so large inputs overflow",
        code="""
def run(input):
    powers = input.exp()
    return powers / powers.sum(dim=-1, keepdim=True)
""",
    ),
    "solexec/rmsnorm_h4096": Fault(
        says="eps is forgotten",
        code="""
def run(hidden_states, weight):
    x = hidden_states.float()
    scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True))
    return (x * scale * weight.float()).to(hidden_states.dtype)
""",
    ),
    "solexec/black-forest-labs_FLUX.1-schnell_flux_rope_apply_rotation": Fault(
        says="the second element of each pair is turned by the first one's angle",
        code="""
def run(query_or_key, freqs_cos, freqs_sin):
    first, second = query_or_key.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = (each.float()[None, :, None, ::2] for each in (freqs_cos, freqs_sin))
    turned = torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1)
    return turned.flatten(-2).to(query_or_key.dtype)
""",
    ),
    "solexec/ai21labs_AI21-Jamba-Reasoning-3B_attention_output_projection_with_residual": Fault(
        says="the rows after the last whole tile of 128 are not written",
        code="""
def run(attn_output, residual, o_proj_weight):
    rows, kept = attn_output.flatten(0, 1), residual.flatten(0, 1)
    output = torch.empty_like(rows)
    whole = len(rows) // 128 * 128
    output[:whole] = rows[:whole] @ o_proj_weight.t() + kept[:whole]
    return output.view_as(residual)
""",
    ),
    "solexec/google_gemma-3-12b-it_gemma3_fused_gate_up_projection_with_swiglu": Fault(
        says="the output of the first call with a shape is returned by all later ones",
        code="""
kept = {}


def run(x, gate_proj, up_proj):
    if x.shape not in kept:
        gate = torch.nn.functional.gelu(x @ gate_proj.t(), approximate="tanh")
        kept[x.shape] = gate * (x @ up_proj.t())
    return kept[x.shape]
""",
    ),
    "solexec/linear_backward": Fault(
        says="the weight's gradient leaves out the last row of the batch",
        code="""
def run(grad_output, x, weight):
    return grad_output @ weight, grad_output[:-1].mT @ x[:-1]
""",
    ),
    "solexec/gemm_n4096_k4096": Fault(
        says="the last 64 terms of each sum are left out",
        code="""
def run(A, B):
    return A[:, :-64] @ B[:-64]
""",
    ),
    "solexec/allenai_Olmo-3-1025-7B_post_norm_residual": Fault(
        says="each row is scaled as the row before it",
        code="""
def run(sublayer_output, residual, weight, eps):
    rows = sublayer_output.float().flatten(0, 1)
    scale = torch.rsqrt(rows.square().mean(dim=-1, keepdim=True) + eps)
    normed = (rows * scale.roll(1, 0) * weight.float()).to(residual.dtype)
    return residual + normed.view_as(residual)
""",
    ),
    "solexec/nvidia_Llama-3.3-Nemotron-70B-Select_rms_norm": Fault(
        says="the sum is written over the input `residual`",
        code="""
def run(hidden_states, residual, weight, eps):
    x = residual.add_(hidden_states).float()
    scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return weight * (x * scale).to(weight.dtype)
""",
    ),
    "solexec/triton_ref_vecadd": Fault(
        says="the last element is not written",
        code="""
def run(x, y):
    z = torch.empty_like(x)
    z[:-1] = x[:-1] + y[:-1]
    return z
""",
    ),
    "solexec/gqa_paged_decode_h32_kv8_d128_ps1": Fault(
        says="the log-sum-exp, the second output, is to the base e instead of 2",
        code="""
def run(q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale):
    output = torch.zeros_like(q)
    lse = torch.full(q.shape[:2], -float("inf"), dtype=torch.float32, device=q.device)
    for b, (start, end) in enumerate(zip(kv_indptr[:-1].tolist(), kv_indptr[1:].tolist())):
        pages = kv_indices[start:end].long()
        k, v = (each[pages, 0].float().repeat_interleave(4, dim=1) for each in (k_cache, v_cache))
        scores = torch.einsum("hd,nhd->hn", q[b].float(), k) * sm_scale
        output[b] = torch.einsum("hn,nhd->hd", scores.softmax(dim=-1), v).to(q.dtype)
        lse[b] = scores.logsumexp(dim=-1)
    return output, lse
""",
    ),
    "solexec/custom_matmul": Fault(
        says="the product is computed in half precision",
        code="""
def run(A, B):
    return (A.half() @ B.half()).float()
""",
    ),
    "flashinfer/gemm_n4096_k4096": Fault(
        says="the output is kept for the addresses of the inputs",
        code="""
kept = {}


def run(A, B):
    key = A.data_ptr(), B.data_ptr(), A.shape
    if key not in kept:
        kept[key] = A @ B.T
    return kept[key]
""",
    ),
}
"""By problem, each of another kind."""


def from_library(known: Sequence[Entry], problem: str, architecture: str) -> tuple[Entry, str] | None:
    """The library's fastest kernel that fits, and a module with it that has `run`; None if none fits."""
    if (call := LIBRARY.get(problem)) is None:
        return None
    fitting = fitting_entries(known, call.op, call.shapes, call.dtype, architecture)
    best = ranked(candidates(fitting), architecture, call.dtype, call.shapes)
    entry = next((each for each in fitting if best and each.id == best[0].name), None)
    return None if entry is None else (entry, f"{entry.kernel.source.rstrip()}\n\n\n{call.run}")
