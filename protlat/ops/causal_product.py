"""The products of causal linear attention with a backward pass of their own: it keeps one state a chunk, and no scores.

Plain autograd keeps scores, wide copies of the features and both forms of every quotient; this is about half the time
and a third of the memory where measured.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from protlat.ops.divisor import least_weight


class CausalProduct(torch.autograd.Function):
    """(q S + tril(q k^T) v) / (q z + sum of tril(q k^T) + floor) for every chunk, S and z from the chunks before."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        memory: torch.Tensor,
        norm: torch.Tensor,
        floor: torch.Tensor | None,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """Shapes: q, k (B, C, M); v (B, C, D); memory (B, M, D); norm (B, M), wide; floor (B, C, 1); mask (C, C)."""
        value = torch.bmm(q, memory)
        weight = torch.bmm(q.to(norm.dtype), norm[..., None])
        if mask is not None:
            scores = torch.bmm(q, k.transpose(1, 2)).mul_(mask)
            value.baddbmm_(scores, v)
            weight += scores.sum(-1, keepdim=True, dtype=norm.dtype)
        if floor is not None:
            weight += floor
        # Nothing seen, or features that are all zero: the value is zero, and must not become 0 / 0.
        weight.masked_fill_(weight <= least_weight(weight.dtype), 1)
        out = value.div_(weight.to(value.dtype))
        ctx.save_for_backward(q, k, v, memory, norm, weight, out, mask)
        ctx.has_floor = floor is not None
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, memory, norm, weight, out, mask = ctx.saved_tensors
        narrow = weight.to(q.dtype)
        of_value = gradient / narrow
        of_weight = (gradient * out).sum(-1, keepdim=True, dtype=weight.dtype).neg_().div_(weight)
        small = of_weight.to(q.dtype)
        of_q = torch.baddbmm(small * norm.to(q.dtype)[:, None], of_value, memory.transpose(1, 2))
        of_memory = torch.bmm(q.transpose(1, 2), of_value)
        of_norm = torch.bmm(q.transpose(1, 2), small)[..., 0].to(norm.dtype)
        of_k = of_v = None
        if mask is not None:
            scores = torch.bmm(q, k.transpose(1, 2)).mul_(mask)
            of_v = torch.bmm(scores.transpose(1, 2), of_value)
            of_scores = torch.bmm(of_value, v.transpose(1, 2)).add_(small).mul_(mask)
            of_q.baddbmm_(of_scores, k)
            of_k = torch.bmm(of_scores.transpose(1, 2), q)
        return of_q, of_k, of_v, of_memory, of_norm, of_weight if ctx.has_floor else None, None
