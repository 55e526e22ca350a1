"""A small ConvNeXt: what its depthwise convolutions take for themselves is most of its peak."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class NormOfChannels(nn.LayerNorm):
    def forward(self, pictures: Tensor) -> Tensor:
        return super().forward(pictures.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    """Liu et al., A ConvNet for the 2020s: a depthwise convolution, and the rest with channels last."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.wide, self.narrow = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 1e-6))

    def forward(self, pictures: Tensor) -> Tensor:
        rows = self.norm(self.depthwise(pictures).permute(0, 2, 3, 1))
        return pictures + (self.scale * self.narrow(nn.functional.gelu(self.wide(rows)))).permute(0, 3, 1, 2)


def small_convnext() -> nn.Module:
    """For pictures of 64 x 64."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 4, 4), NormOfChannels(16), ConvNextBlock(16)),
        *(NormOfChannels(16), nn.Conv2d(16, 64, 2, 2), ConvNextBlock(64)),
    )
