"""Models whose attributes decide what their forwards compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

WIDTH = 16


class Settings:
    """A config, as classes of transformers have one."""

    def __init__(self, heads: int = 4) -> None:
        self.heads, self.name = heads, "a"


@dataclass(frozen=True, slots=True)
class Factor:
    """A config without a dictionary."""

    factor: float = 2.0


class Heads(nn.Module):
    """Attention whose number of heads is in its config."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings, self.scale, self.qkv = settings, 0.25, nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = (each.unflatten(-1, (self.settings.heads, -1)) for each in self.qkv(x).chunk(3, -1))
        q, k, v = (each.transpose(-2, -3) for each in split)
        found = functional.scaled_dot_product_attention(q, k, v, scale=self.scale)
        return found.transpose(-2, -3).flatten(-2)


class Layer(nn.Module):
    """Attention with dropout, and numbers in a list, a tensor and a config."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.heads, self.norm, self.drop = Heads(settings), nn.LayerNorm(WIDTH), nn.Dropout(0.5)
        self.act, self.sizes, self.factor = nn.LeakyReLU(0.1), [1, 2], Factor()
        self.mask = torch.ones(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows = x.shape[0]
        x = self.drop(self.act(x + self.heads(self.norm(x))))
        found: torch.Tensor = x * self.sizes[0] * self.mask * self.factor.factor
        return found + self.lora(x) if hasattr(self, "lora") else found


class Stack(nn.Module):
    """A convolution, layers and a batch norm; `factor` is read as a number."""

    factor: torch.Tensor

    def __init__(self, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        settings = Settings(heads)
        self.conv = nn.Conv1d(5, 5, 3, padding=1, padding_mode="circular")
        self.layers = nn.ModuleList(Layer(settings) for _ in range(layers))
        self.bn, self.head, self.unread = nn.BatchNorm1d(5), nn.Linear(WIDTH, WIDTH, bias=False), 3
        self.register_buffer("factor", torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        for layer in self.layers:
            x = layer(x)
        found: torch.Tensor = self.head(self.bn(x))
        return found * 2 if self.factor.item() > 0 else found


class Simple(nn.Module):
    """A linear layer; `function` gets the model and the layer's result."""

    def __init__(self, function: Callable[[Any, torch.Tensor], torch.Tensor], **attributes: Any) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(WIDTH, WIDTH), function
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, self.linear(x))


class Lora(nn.Module):
    """A layer with an adapter."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.down = inner, nn.Linear(WIDTH, WIDTH)
        nn.init.constant_(self.down.weight, 0.1)
        nn.init.constant_(self.down.bias, 0.2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x) + self.down(x)


class Tripled(nn.Linear):
    """A linear layer, three times."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 3


class Doubled(nn.Module):
    """A parametrization."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * 2
