"""The routing of a mixture of experts: the weights of the `chosen` most likely experts of each token, which sum to 1, and
their numbers."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, chosen: int):
        super().__init__()
        self.chosen = chosen

    def forward(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, experts = torch.topk(torch.softmax(logits.float(), dim=-1), self.chosen, dim=-1)
        return weights / weights.sum(-1, keepdim=True), experts


tokens = 32768
experts = 128
chosen = 8


def get_inputs():
    return [torch.randn(tokens, experts)]


def get_init_inputs():
    return [chosen]


def get_cases():
    return [{}, {"sizes": {"tokens": 100, "experts": 60, "chosen": 4}, "weight": 0}]
