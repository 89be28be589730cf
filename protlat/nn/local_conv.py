"""Short depthwise convolution that restores locality to global heads."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, field_validator
from torch import nn

from protlat.config import Config
from protlat.errors import ConfigError
from protlat.nn.state import RecurrentState
from protlat.ops.local import depthwise_conv
from protlat.ops.segments import Segments


class LocalConv(nn.Module):
    """x + bias + depthwise convolution of x, zero at the start, so that a new layer is the identity."""

    def __init__(self, channels: int, size: int, causal: bool = False) -> None:
        super().__init__()
        if causal:
            raise ConfigError("local_conv: not written for causal models yet")
        self.causal = causal
        self.weight = nn.Parameter(torch.zeros(size, channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor, segments: Segments, state: RecurrentState | None = None) -> torch.Tensor:
        """(T, C) -> (T, C), reset at every border."""
        return depthwise_conv(x, self.weight, self.bias, segments)


class LocalConvConfig(Config):
    """Residual depthwise convolution inside the attention layer."""

    size: int = Field(3, ge=3)
    """Taps, an odd number."""
    target: Literal["v", "qkv"] = "v"
    """Convolve values only, or queries, keys and values."""

    @field_validator("size")
    @classmethod
    def _odd(cls, size: int) -> int:
        if size % 2 == 0:
            raise ValueError("the number of taps must be odd, so that the convolution is centred; use 3, 5 or 7")
        return size
