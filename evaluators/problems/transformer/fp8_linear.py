"""A product of FP8 factors with float32 scales: one for every 128 elements of a row of the activations, and
one for each block of 128 by 128 weights."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def forward(
        self, x: torch.Tensor, x_scales: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor
    ) -> torch.Tensor:
        x = x.float() * x_scales.repeat_interleave(128, dim=1)
        blocks = weight_scales.repeat_interleave(128, dim=0).repeat_interleave(128, dim=1)
        return F.linear(x, weight.float() * blocks).to(torch.bfloat16)


KEEPS_TYPES = True
rows = 4096
features = 4096
out_features = 4096


def get_inputs():
    x = torch.randn(rows, features).to(torch.float8_e4m3fn)
    weight = torch.randn(out_features, features).to(torch.float8_e4m3fn)
    scales = torch.rand(rows, features // 128), torch.rand(out_features // 128, features // 128)
    return [x, scales[0], weight, scales[1]]


def get_init_inputs():
    return []
