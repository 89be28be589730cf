"""Local heads: exact softmax attention inside a window."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from protlat.nn.attention.base import AttentionConfig
from protlat.nn.positions import rotate
from protlat.nn.state import RecurrentState
from protlat.ops.local import window_attention
from protlat.ops.segments import Segments


class WindowAttention(nn.Module):
    """Softmax over the keys at most `radius` tokens away; `dropout` acts on the weights in training."""

    def __init__(self, radius: int, rotary: bool, dropout: float) -> None:
        super().__init__()
        self.radius, self.rotary, self.dropout = radius, rotary, dropout

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        segments: Segments,
        write_gate: torch.Tensor | None = None,
        extra: torch.Tensor | None = None,
        state: RecurrentState | None = None,
    ) -> torch.Tensor:
        if self.rotary:
            q, k = rotate(q, segments), rotate(k, segments)
        return window_attention(q, k, v, segments, self.radius, self.dropout if self.training else 0.0)


class WindowAttentionConfig(AttentionConfig):
    """Local heads: softmax over the tokens at most `radius` away on either side; cost linear in length."""

    why_not_causal: ClassVar[str | None] = "not written yet"
    kind: Literal["window"] = "window"
    radius: int = Field(64, ge=1)
    """Greatest distance, in tokens, that a head sees on either side."""
    rotary: bool = True
    """Turn queries and keys by their position, so that scores depend on distance."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of attention weights dropped in training."""

    def build(self, head_dim: int, causal: bool) -> WindowAttention:
        return WindowAttention(self.radius, self.rotary, self.dropout)
