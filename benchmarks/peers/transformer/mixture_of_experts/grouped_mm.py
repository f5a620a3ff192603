"""PyTorch's grouped products on sorted tokens."""
# ruff: noqa: D102

import torch
from torch import nn
from torch.nn.functional import grouped_mm, silu


class ModelNew(nn.Module):
    """With the problem's weights."""

    def __init__(self, experts, features, hidden):
        super().__init__()
        self.gate_up = nn.Parameter(torch.randn(experts, 2 * hidden, features) * features**-0.5)
        self.down = nn.Parameter(torch.randn(experts, features, hidden) * hidden**-0.5)

    def forward(self, x, chosen, weights):
        expert, order = chosen.flatten().sort(stable=True)
        ends = torch.searchsorted(expert, torch.arange(len(self.down), device=x.device), right=True).int()
        token = order // chosen.shape[1]
        gate, up = grouped_mm(x[token], self.gate_up.transpose(1, 2), offs=ends).chunk(2, dim=-1)
        y = grouped_mm(silu(gate) * up, self.down.transpose(1, 2), offs=ends)
        y = y * weights.flatten()[order, None]
        return torch.zeros_like(x).index_add_(0, token, y)
