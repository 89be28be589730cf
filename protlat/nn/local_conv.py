"""Short depthwise convolution that restores locality to global heads."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, field_validator
from torch import nn

from protlat.config import Config
from protlat.nn.state import RecurrentState
from protlat.ops.carry import carry_table, last_rows, one_behind, with_memory
from protlat.ops.local import depthwise_conv
from protlat.ops.segments import Segments


class LocalConv(nn.Module):
    """x + bias + depthwise convolution of x, zero at the start, so that a new layer is the identity.

    When `causal` all taps stand at or before the token, and a state holds the last ``size - 1`` rows.
    """

    def __init__(self, channels: int, size: int, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.weight = nn.Parameter(torch.zeros(size, channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor, segments: Segments, state: RecurrentState | None = None) -> torch.Tensor:
        """(T, C) -> (T, C), reset at every border."""
        if state is None:
            return depthwise_conv(x, self.weight, self.bias, segments, self.causal)
        size = len(self.weight) - 1
        memory = state.get("rows")
        if segments.is_step:
            rows = one_behind(x, memory, size)
            state.put("rows", rows[:, 1:])
            return x + self.bias + (rows * self.weight).sum(1)
        longer = with_memory(x, memory, segments, size)
        state.put("rows", last_rows(longer, segments, size))
        table = carry_table(segments, size)
        return depthwise_conv(longer, self.weight, self.bias, table.segments, True).index_select(0, table.new)


class LocalConvConfig(Config):
    """Residual depthwise convolution inside the attention layer."""

    size: int = Field(3, ge=3)
    """Taps, an odd number: centred on the token, or, in causal models, at the token and before it."""
    target: Literal["v", "qkv"] = "v"
    """Convolve values only, or queries, keys and values."""

    @field_validator("size")
    @classmethod
    def _odd(cls, size: int) -> int:
        if size % 2 == 0:
            raise ValueError("the number of taps must be odd, so that the convolution is centred; use 3, 5 or 7")
        return size
