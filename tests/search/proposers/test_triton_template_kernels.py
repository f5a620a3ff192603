"""Kernels rendered from the Triton templates give correct results in Triton's interpreter and on a GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from search.proposers.playbook.move import Knob
from search.proposers.playbook.workload import Workload
from tests.search.proposers.triton_workloads import conv2d, layernorm, matmul, softmax, template

torch = pytest.importorskip("torch")

GEMM: dict[str, Knob] = {"algorithm": "gemm", "precision": "fp16", "block_m": 64, "block_k": 32}
DEPTH: dict[str, Knob] = {
    **GEMM,
    "input": "depth",
    "weights": "packed",
    "columns": "exact",
    "launches": "merged",
}
RESIDENT: dict[str, Knob] = {**DEPTH, "resident": True}
SPLIT: dict[str, Knob] = {"split": "fp16x3", "block_m": 128, "block_n": 128, "warps": 8, "stages": 3}
ONLINE: dict[str, Knob] = {"algorithm": "online", "reduce": "lanes", "block": 1024, "order": "backward"}
PARTS: dict[str, Knob] = {"algorithm": "split", "order": "columns", "reverse": True, "hints": True}
SMALL = conv2d(2, 3, 23, 21, 20, 5, 5, 2, 2)
DILATED = conv2d(1, 4, 12, 13, 33, 3, 2, 1, 2, dilation=2, bias=0)
STRIDED = conv2d(2, 5, 17, 19, 24, 3, 7, 3, 1)
POOLED = conv2d(2, 3, 23, 21, 20, 5, 5, 2, 2, epilogue=("relu", "maxpool"))
BORDERED = conv2d(2, 3, 23, 21, 20, 5, 5, 2, 2, epilogue=("relu", "maxpool"), pool_pad=1)
TAIL = conv2d(2, 3, 23, 21, 20, 5, 5, 2, 2, epilogue=("maxpool", "relu"))

SPLIT_ERROR = 1e-6
"""Of three half-precision products: 1.2e-7 in the interpreter, 5.2e-7 on an H200, whose tensor cores do not
round their sums to nearest."""
CASES: list[tuple[Workload, dict[str, Knob], float]] = [
    (SMALL, {"channels": 8}, 1e-6),
    (SMALL, {"algorithm": "gemm"}, 1e-6),
    (SMALL, GEMM, 1e-3),
    (SMALL, {**GEMM, "weights": "packed"}, 1e-3),
    (SMALL, {**GEMM, "input": "half"}, 1e-3),
    (SMALL, {**GEMM, "input": "padded", "weights": "packed", "index": "table"}, 1e-3),
    (SMALL, {**GEMM, "input": "padded", "weights": "packed", "order": "rows", "launches": "merged"}, 1e-3),
    (SMALL, {**GEMM, "weights": "packed", "order": "rows"}, 1e-3),
    (SMALL, DEPTH, 1e-3),
    (SMALL, {**DEPTH, "columns": "tile", "launches": "separate"}, 1e-3),
    (SMALL, RESIDENT, 1e-3),
    (STRIDED, DEPTH, 1e-3),
    (STRIDED, {**DEPTH, "launches": "separate"}, 1e-3),
    (conv2d(1, 40, 7, 9, 16, 3, 3, 1, 1), DEPTH, 1e-3),
    (STRIDED, RESIDENT, 1e-3),
    (DILATED, {"channels": 16}, 1e-6),
    (DILATED, {**GEMM, "weights": "packed"}, 1e-3),
    (DILATED, {**GEMM, "input": "padded", "weights": "packed"}, 1e-3),
    (DILATED, {**GEMM, "input": "padded", "weights": "packed", "order": "rows"}, 1e-3),
    (POOLED, {"channels": 8}, 1e-6),
    (POOLED, {**DEPTH, "fuse": "relu"}, 1e-3),
    (POOLED, {**DEPTH, "fuse": "staged"}, 1e-3),
    (POOLED, {**DEPTH, "fuse": "window"}, 1e-3),
    (BORDERED, {**GEMM, "fuse": "window"}, 1e-3),
    (BORDERED, {**RESIDENT, "fuse": "staged"}, 1e-3),
    (TAIL, {**DEPTH}, 1e-3),
    (matmul(150, 90, 77), {}, 1e-6),
    (matmul(150, 90, 77), {"precision": "tf32x3", "block_m": 64, "block_n": 64, "group": 2}, 1e-6),
    (matmul(150, 90, 77), SPLIT, SPLIT_ERROR),
    (matmul(200, 264, 136), {**SPLIT, "group": 2, "persistent": True}, SPLIT_ERROR),
    (matmul(150, 90, 177), {**SPLIT, "sums": "promoted", "block_k": 64, "group": 2}, SPLIT_ERROR),
    (matmul(200, 264, 136), {**SPLIT, "loads": "descriptors", "persistent": True}, SPLIT_ERROR),
    (softmax(3, 5000), {}, 1e-6),
    (softmax(3, 5000), {"reduce": "lanes", "exp": "exp2"}, 1e-6),
    (softmax(3, 5000), {"algorithm": "online", "exp": "exp2"}, 1e-6),
    (softmax(3, 5000), {**ONLINE, "block": 2048, "exp": "exp2", "hints": True}, 1e-6),
    (softmax(2, 8192), {**ONLINE, "kept": 3072, "warps": 4}, 1e-6),
    (softmax(3, 5000), {"algorithm": "whole", "warps": 8, "exp": "exp2"}, 1e-6),
    (layernorm(3, 5000), {}, 1e-5),
    (layernorm(3, 5000), {"statistics": "merged"}, 1e-5),
    (layernorm(3, 5000), {"algorithm": "whole"}, 1e-5),
    (layernorm(4, 5000), {**PARTS, "rows_each": 2, "apply_block": 512}, 1e-5),
    (layernorm(4, 4096, bias=0), PARTS, 1e-5),
    (layernorm(4, 5000, affine=0, bias=0), {"algorithm": "split"}, 1e-5),
]
"""Workload, knobs other than naive, and the normwise error that is allowed."""

RUNNER = """
import importlib.util, sys, torch
path, device = sys.argv[1:]
cases = torch.load(path)
for case in cases:
    spec = importlib.util.spec_from_file_location("kernel", case["kernel"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.ModelNew()
    model.load_state_dict(case["state"])
    with torch.no_grad():
        given = [each.to(device) for each in case["inputs"]]
        case["out"] = model.to(device)(*given).cpu()
        given[0].view(-1)[given[0].numel() // 2] = torch.nan
        case["lost"] = model(*given).isnan().cpu()
torch.save([(case["out"], case["lost"]) for case in cases], path + ".out")
"""


def inputs(workload: Workload) -> list[Any]:
    s = workload.sizes
    if workload.op == "conv2d":
        return [torch.randn(s["N"], s["C"], s["H"], s["W"])]
    if workload.op == "matmul":
        return [torch.randn(s["M"], s["K"]) * 1e-3, torch.randn(s["K"], s["N"]) + 1]
    return [torch.randn(s["rows"], s["cols"]) + (10 if workload.op == "layernorm" else 0)]


def state(workload: Workload) -> dict[str, Any]:
    s = workload.sizes
    shapes = {}
    if workload.op == "conv2d":
        shapes = {"conv.weight": (s["K"], s["C"], s["R"], s["S"]), "conv.bias": (s["K"],)}
    if workload.op == "layernorm" and s["affine"]:
        shapes = {"norm.weight": (s["cols"],), "norm.bias": (s["cols"],)}
    if not s.get("bias", 1):
        shapes = {name: shape for name, shape in shapes.items() if "bias" not in name}
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def reference(workload: Workload, given: list[Any], weights: dict[str, Any]) -> Any:
    from torch.nn import functional

    s, values = workload.sizes, [each.double() for each in given]
    exact = {name.split(".")[1]: value.double() for name, value in weights.items()}
    if workload.op == "matmul":
        return values[0] @ values[1]
    if workload.op == "softmax":
        return values[0].softmax(-1)
    if workload.op == "layernorm":
        return functional.layer_norm(
            values[0], (s["cols"],), exact.get("weight"), exact.get("bias"), workload.eps
        )
    out = functional.conv2d(
        values[0], exact["weight"], exact.get("bias"), s["stride_h"], s["pad_h"], s["dilation_h"]
    )
    for op in workload.epilogue:
        pool = (s["pool"], s["pool_stride"], s["pool_pad"]) if op == "maxpool" else ()
        out = functional.max_pool2d(out, *pool) if pool else functional.relu(out)
    return out


def errors(cases: list[tuple[Workload, dict[str, Knob], float]], folder: Path, device: str) -> list[str]:
    """Runs the cases in a process of their own (Triton chooses its interpreter on import); what is wrong."""
    torch.manual_seed(0)
    work: list[dict[str, Any]] = []
    for place, (workload, knobs, _) in enumerate(cases):
        family = template(workload)
        full = {**family.naive, **knobs}
        assert family.valid(workload, full), (workload.op, knobs)
        kernel = folder / f"kernel_{place}.py"
        kernel.write_text(family.render(workload, full))
        work.append({"kernel": str(kernel), "inputs": inputs(workload), "state": state(workload)})
    torch.save(work, folder / "cases.pt")
    env = dict(os.environ, TRITON_INTERPRET="1" if device == "cpu" else "0")
    command = [sys.executable, "-c", RUNNER, str(folder / "cases.pt"), device]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    wrong = []
    for (workload, knobs, allowed), case, (out, lost) in zip(
        cases, work, torch.load(folder / "cases.pt.out"), strict=True
    ):
        exact = reference(workload, case["inputs"], case["state"])
        error = ((out.double() - exact).norm() / exact.norm()).item()
        if out.shape != exact.shape or not error <= allowed:
            wrong.append(f"{workload.op} {knobs}: error {error:.2e}")
        case["inputs"][0].view(-1)[case["inputs"][0].numel() // 2] = torch.nan
        kept = reference(workload, case["inputs"], case["state"]).isnan() <= lost  # padding may make more
        if not kept.all():
            wrong.append(f"{workload.op} {knobs}: {int((~kept).sum())} NaN are lost")
    return wrong


def numpy_can_interpret() -> bool:
    """Triton 3.6's interpreter takes arrays of one element for integers; numpy 2.4 no longer does."""
    numpy = pytest.importorskip("numpy")
    return tuple(int(part) for part in numpy.__version__.split(".")[:2]) < (2, 4)


@pytest.mark.slow
@pytest.mark.parametrize("op", ["conv2d", "matmul", "softmax", "layernorm"])
def test_kernels_are_right_in_the_interpreter(op: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs triton")
    looped = ("resident", "persistent")
    cases = [case for case in CASES if case[0].op == op]
    if not numpy_can_interpret():
        cases = [case for case in cases if not any(case[1].get(knob) for knob in looped)]
        cases = [case for case in cases if case[1].get("rows_each", 1) == 1]
    assert errors(cases, tmp_path, "cpu") == []


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["conv2d", "matmul", "softmax", "layernorm"])
def test_kernels_are_right_on_a_gpu(op: str, tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    cases = [case for case in CASES if case[0].op == op]
    if op == "matmul":
        bfloat: dict[str, Knob] = {**SPLIT, "split": "bf16x6"}
        cases += [
            (matmul(150, 90, 77), bfloat, 1e-6),
            (matmul(200, 264, 136), {**SPLIT, "split": "bf16x3"}, 2e-5),
        ]
    assert errors(cases, tmp_path, "cuda") == []
