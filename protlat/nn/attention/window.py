"""Local heads: exact softmax attention inside a window."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from protlat.nn.attention.base import AttentionConfig
from protlat.nn.positions import rotate
from protlat.nn.state import RecurrentState
from protlat.ops.carry import carry_table, last_rows, one_behind, step_mask, with_memory
from protlat.ops.local import window_attention
from protlat.ops.segments import Segments


class WindowAttention(nn.Module):
    """Softmax over the keys at most `radius` tokens away, those before and the token's own when `causal`.

    `dropout` acts on the weights in training. A state holds the last `radius` keys (turned) and values.
    """

    def __init__(self, radius: int, rotary: bool, dropout: float, causal: bool = False) -> None:
        super().__init__()
        self.radius, self.rotary, self.dropout, self.causal = radius, rotary, dropout, causal

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
        if state is None:
            return window_attention(q, k, v, segments, self.radius, dropout, self.causal)
        if segments.is_step:
            return self._step(q, k, v, segments, dropout, state)
        table = carry_table(segments, self.radius)
        longer_k, longer_v = (
            with_memory(x, state.get(name), segments, self.radius) for x, name in ((k, "keys"), (v, "values"))
        )
        for x, name in ((longer_k, "keys"), (longer_v, "values")):
            state.put(name, last_rows(x, segments, self.radius))
        longer_q = torch.zeros_like(longer_k).index_copy(0, table.new, q)
        out = window_attention(longer_q, longer_k, longer_v, table.segments, self.radius, dropout, causal=True)
        return out.index_select(0, table.new)

    def _step(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        segments: Segments,
        dropout: float,
        state: RecurrentState,
    ) -> torch.Tensor:
        keys, values = (one_behind(x, state.get(name), self.radius) for x, name in ((k, "keys"), (v, "values")))
        state.put("keys", keys[:, 1:])
        state.put("values", values[:, 1:])
        mask = step_mask(segments, self.radius, q.dtype)
        keys, values = keys.transpose(1, 2), values.transpose(1, 2)
        return F.scaled_dot_product_attention(q[:, :, None], keys, values, mask, dropout)[:, :, 0]


class WindowAttentionConfig(AttentionConfig):
    """Local heads: softmax over the tokens at most `radius` away on either side (before, in causal models)."""

    kind: Literal["window"] = "window"
    radius: int = Field(64, ge=1)
    """Greatest distance, in tokens, that a head sees on either side; causal heads see the token itself and `radius` before it."""
    rotary: bool = True
    """Turn queries and keys by their position, so that scores depend on distance."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of attention weights dropped in training."""

    def build(self, head_dim: int, causal: bool) -> WindowAttention:
        return WindowAttention(self.radius, self.rotary, self.dropout, causal)
