"""A product of FP8 factors with one float32 scale for each row of the activations and of the weights."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def forward(
        self, x: torch.Tensor, x_scales: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor
    ) -> torch.Tensor:
        found = F.linear(x.float() * x_scales[:, None], weight.float() * weight_scales[:, None])
        return found.to(torch.bfloat16)


KEEPS_TYPES = True
rows = 4096
features = 4096
out_features = 4096


def get_inputs():
    x = torch.randn(rows, features).to(torch.float8_e4m3fn)
    weight = torch.randn(out_features, features).to(torch.float8_e4m3fn)
    return [x, torch.rand(rows), weight, torch.rand(out_features)]


def get_init_inputs():
    return []
