"""A mixture-of-experts layer: each token goes through the experts that the router chose for it, gated feed-forward
layers whose outputs are summed with the router's weights."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self, experts: int, features: int, hidden: int):
        super().__init__()
        self.gate_up = nn.Parameter(torch.randn(experts, 2 * hidden, features) * features**-0.5)
        self.down = nn.Parameter(torch.randn(experts, features, hidden) * hidden**-0.5)

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for expert in range(self.gate_up.shape[0]):
            token, place = torch.where(chosen == expert)
            gate, up = F.linear(x[token], self.gate_up[expert]).chunk(2, dim=-1)
            y = F.linear(F.silu(gate) * up, self.down[expert])
            out.index_add_(0, token, y * weights[token, place, None])
        return out


tokens = 2048
features = 2048
experts = 32
hidden = 1024
active = 4


def get_inputs():
    chosen = torch.rand(tokens, experts).argsort(dim=-1)[:, :active].contiguous()
    return [torch.randn(tokens, features), chosen, torch.rand(tokens, active)]


def get_init_inputs():
    return [experts, features, hidden]


def get_cases():
    return [{}, {"sizes": {"tokens": 16}}]
