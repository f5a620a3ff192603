"""A small clone in KernelBench's layout, with references of ours."""

from __future__ import annotations

from pathlib import Path

REFERENCES = {
    (1, "1_Relu"): "torch.relu(x)",
    (1, "2_Zeros"): "x * 0",
    (1, "23_Softmax"): "torch.softmax(x, -1)",
    (2, "3_Scaled_sum_"): "(x * 2).sum(-1, keepdim=True) + x",
}
SOURCE = """import torch

size = 64


class Model(torch.nn.Module):
    def forward(self, x):
        return {expression}


def get_inputs():
    return [torch.rand(16, size)]


def get_init_inputs():
    return []
"""


def make_clone(root: Path) -> Path:
    for (level, name), expression in REFERENCES.items():
        file = root / "KernelBench" / f"level{level}" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(SOURCE.format(expression=expression))
    return root
