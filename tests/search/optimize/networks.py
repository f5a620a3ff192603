"""Small models of common kinds: diffusion, images, encoders and decoders."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

WIDTH = 16


class ResidualConvolutions(nn.Module):
    """Twice group norm, SiLU and a convolution, with the time embedding in between; a skip connection,
    through a convolution if the width changes."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, channels), nn.GroupNorm(4, out)
        self.conv1, self.conv2 = nn.Conv2d(channels, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.time, self.past = nn.Linear(WIDTH, out), nn.Conv2d(channels, out, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.conv1(functional.silu(self.norm1(x)))
        inner = inner + self.time(functional.silu(time))[:, :, None, None]
        inner = self.conv2(functional.silu(self.norm2(inner)))
        return inner + self.past(x)


class Attention(nn.Module):
    """Attention with `heads` query heads and `groups` key heads; cross-attention if a text is given."""

    def __init__(self, width: int = WIDTH, *, heads: int = 4, groups: int = 4, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.groups, self.causal, self.size = heads, groups, causal, width // heads
        self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.k, self.v = (nn.Linear(width, groups * self.size, bias=False) for _ in range(2))

    def forward(
        self, x: torch.Tensor, text: torch.Tensor | None = None, rotary: torch.Tensor | None = None
    ) -> torch.Tensor:
        read = x if text is None else text
        q, k, v = (
            each.view(x.shape[0], -1, heads, self.size).transpose(1, 2)
            for each, heads in (
                (self.q(x), self.heads),
                (self.k(read), self.groups),
                (self.v(read), self.groups),
            )
        )
        if rotary is not None:
            q, k = rotated(q, *rotary), rotated(k, *rotary)
        k, v = (each.repeat_interleave(self.heads // self.groups, 1) for each in (k, v))
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        mixed: torch.Tensor = self.out(found.transpose(1, 2).reshape(x.shape))
        return mixed


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding: halves of the width are the two parts of complex numbers."""
    one, other = x.chunk(2, -1)
    return x * cos + torch.cat([-other, one], -1) * sin


class Denoiser(nn.Module):
    """A UNet with two levels; inputs: sample, step and conditioning text."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.first, self.last = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)
        self.down, self.middle = nn.Conv2d(8, 8, 3, stride=2, padding=1), ResidualConvolutions(8, WIDTH)
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.up, self.end = ResidualConvolutions(WIDTH + 8, 8), nn.GroupNorm(4, 8)

    def forward(self, sample: torch.Tensor, step: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(-math.log(10000) * torch.arange(WIDTH // 2) / (WIDTH // 2))
        angles = step[:, None] * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        early = self.first(sample)
        x = self.middle(self.down(early), time)
        rows = x.flatten(2).transpose(1, 2)
        rows = rows + self.attention(self.norm(rows), text)
        x = rows.transpose(1, 2).reshape(x.shape)
        x = torch.cat([functional.interpolate(x, scale_factor=2.0), early], 1)
        found: torch.Tensor = self.last(functional.silu(self.end(self.up(x, time))))
        return found


class Images(nn.Module):
    """Convolutions with batch norms and residual sums."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.pool = self._layer(3, 8), nn.MaxPool2d(2)
        self.one, self.two, self.classes = self._layer(8, 8), self._layer(8, 8), nn.Linear(8, 5)

    @staticmethod
    def _layer(channels: int, out: int) -> nn.Sequential:
        norm = nn.BatchNorm2d(out)
        assert norm.running_mean is not None
        norm.running_mean.normal_()
        return nn.Sequential(nn.Conv2d(channels, out, 3, padding=1, bias=False), norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(functional.relu(self.stem(x), inplace=True))
        x = functional.relu(self.two(functional.relu(self.one(x))) + x)
        found: torch.Tensor = self.classes(functional.adaptive_avg_pool2d(x, 1).flatten(1))
        return found


class Encoder(nn.Module):
    """Attention and a GELU MLP, each with a layer norm after the residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, WIDTH), nn.Embedding(8, WIDTH)
        self.attention, self.norm1, self.norm2 = Attention(), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.fc, self.proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        x = self.norm1(x + self.attention(x))
        found: torch.Tensor = self.norm2(x + self.proj(functional.gelu(self.fc(x))))
        return found


class RmsNorm(nn.Module):
    """An RMS norm, written out."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class GatedMlp(nn.Module):
    """down(silu(gate(x)) * up(x))"""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return found


class Decoder(nn.Module):
    """RMS norms, grouped-query causal attention with rotary embeddings, and a gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, 20, bias=False)
        self.norm1, self.norm2, self.norm3 = RmsNorm(), RmsNorm(), RmsNorm()
        self.attention, self.mlp = Attention(groups=2, causal=True), GatedMlp()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(ids.shape[1])[:, None] / 100 ** torch.tensor([0.0, 0.5, 0.0, 0.5])
        x = self.words(ids)
        x = x + self.attention(self.norm1(x), rotary=torch.stack([angles.cos(), angles.sin()]))
        x = x + self.mlp(self.norm2(x))
        found: torch.Tensor = self.head(self.norm3(x))
        return found
