"""Full softmax attention: quadratic in length, the reference and baseline."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from protlat.nn.attention.base import AttentionConfig
from protlat.nn.positions import rotate
from protlat.nn.state import RecurrentState
from protlat.ops.segments import Segments


class SoftmaxAttention(nn.Module):
    """Every token sees every token of its own sequence.

    References
    ----------
    Vaswani et al. 2017, equation 1.
    """

    def __init__(self, rotary: bool, dropout: float) -> None:
        super().__init__()
        self.rotary, self.dropout = rotary, dropout

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
        dropout = self.dropout if self.training else 0.0
        runs = segments.runs
        out = []
        for run, *parts in zip(runs, *(x.split([n * length for n, length in runs]) for x in (q, k, v)), strict=True):
            # (R * L, H, D) -> (R, H, L, D)
            queries, keys, values = (part.unflatten(0, run).transpose(1, 2) for part in parts)
            attended = F.scaled_dot_product_attention(queries, keys, values, dropout_p=dropout)
            out.append(attended.transpose(1, 2).flatten(0, 1))
        return out[0] if len(out) == 1 else torch.cat(out)


class SoftmaxAttentionConfig(AttentionConfig):
    """Full softmax heads: time quadratic in length."""

    why_not_causal: ClassVar[str | None] = "not written yet"
    kind: Literal["softmax"] = "softmax"
    rotary: bool = True
    """Turn queries and keys by their position, so that scores depend on distance."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of attention weights dropped in training."""

    def build(self, head_dim: int, causal: bool) -> SoftmaxAttention:
        return SoftmaxAttention(self.rotary, self.dropout)
