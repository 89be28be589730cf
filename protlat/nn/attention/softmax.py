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
from protlat.ops.carry import carry_table, one_behind, step_mask, with_memory
from protlat.ops.segments import Segments


class SoftmaxAttention(nn.Module):
    """Every token sees every token of its own sequence, those up to itself when `causal`.

    A state holds all keys (turned) and values so far: it grows with the sequence.

    References
    ----------
    Vaswani et al. 2017, equation 1.
    """

    def __init__(self, rotary: bool, dropout: float, causal: bool = False) -> None:
        super().__init__()
        self.rotary, self.dropout, self.causal = rotary, dropout, causal

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
        if state is not None:
            return self._continue(q, k, v, segments, dropout, state)
        runs = segments.runs
        out = []
        for run, *parts in zip(runs, *(x.split([n * length for n, length in runs]) for x in (q, k, v)), strict=True):
            # (R * L, H, D) -> (R, H, L, D)
            queries, keys, values = (part.unflatten(0, run).transpose(1, 2) for part in parts)
            attended = F.scaled_dot_product_attention(queries, keys, values, dropout_p=dropout, is_causal=self.causal)
            out.append(attended.transpose(1, 2).flatten(0, 1))
        return out[0] if len(out) == 1 else torch.cat(out)

    def _continue(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        segments: Segments,
        dropout: float,
        state: RecurrentState,
    ) -> torch.Tensor:
        memories = state.get("keys"), state.get("values")
        size = 0 if memories[0] is None else memories[0].shape[1]
        if segments.is_step:
            keys, values = (one_behind(x, memory, size) for x, memory in zip((k, v), memories, strict=True))
            state.put("keys", keys)
            state.put("values", values)
            mask = step_mask(segments, size, q.dtype)
            keys, values = keys.transpose(1, 2), values.transpose(1, 2)
            return F.scaled_dot_product_attention(q[:, :, None], keys, values, mask, dropout)[:, :, 0]
        whole = carry_table(segments, size).segments.lengths
        parts = []
        for name, x, memory in zip(("keys", "values"), (k, v), memories, strict=True):
            longer = with_memory(x, memory, segments, size).split(whole)
            parts.append(longer)
            state.put(name, torch.stack([F.pad(part, (0, 0, 0, 0, max(whole) - len(part), 0)) for part in longer]))
        out = []
        for queries, keys, values in zip(q.split(segments.lengths), *parts, strict=True):
            # Query i of this call stands behind the remembered keys.
            n, n_keys = len(queries), len(keys)
            seen = torch.ones(n, n_keys, dtype=torch.bool, device=q.device).tril_(n_keys - n)
            queries, keys, values = (x.transpose(0, 1)[None] for x in (queries, keys, values))
            out.append(F.scaled_dot_product_attention(queries, keys, values, seen, dropout)[0].transpose(0, 1))
        return torch.cat(out)


class SoftmaxAttentionConfig(AttentionConfig):
    """Full softmax heads: time quadratic in length."""

    state_grows: ClassVar[bool] = True

    kind: Literal["softmax"] = "softmax"
    rotary: bool = True
    """Turn queries and keys by their position, so that scores depend on distance."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of attention weights dropped in training."""

    def build(self, head_dim: int, causal: bool) -> SoftmaxAttention:
        return SoftmaxAttention(self.rotary, self.dropout, causal)
