"""The sums of the embeddings of bags of indices, as in recommendation models: bag i has the indices from offsets[i] to the
next offset."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, entries: int, features: int):
        super().__init__()
        self.bag = nn.EmbeddingBag(entries, features, mode="sum")

    def forward(self, indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.bag(indices, offsets)


entries = 1_000_000
features = 128
bags = 16384
indices = 524_288


def get_inputs():
    offsets = torch.cat([torch.tensor([0]), torch.randint(indices + 1, (bags - 1,)).sort().values])
    return [torch.randint(entries, (indices,)), offsets]


def get_init_inputs():
    return [entries, features]


def get_cases():
    return [{}, {"sizes": {"entries": 1000, "features": 100, "bags": 33, "indices": 777}, "weight": 0}]
